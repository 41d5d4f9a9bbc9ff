"""Subword model together with the fairseq dictionary that numbers its pieces: the base class, and sentencepiece.

fairseq itself writes pieces as text and finds each one in the dictionary. Here one numpy table maps the model's ids to
the dictionary's, which makes preparation fast. The ids are the same, so models that are used later through fairseq's
encoders (`bpe: sentencepiece` or `bpe: gpt2`, and ours, `bpe: tokenizers`) get the tokens that they were trained on.
"""

import filecmp
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import sentencepiece
from fairseq.data import Dictionary
from fairseq.tokenizer import tokenize_line

from ..errors import UserError
from .dictionaries import DICTIONARY_FILE, MASK, fitting_dictionary, ids_of, load_dictionary, without_mask

SENTENCEPIECE_FILE = "sentencepiece.bpe.model"  # fairseq's from_pretrained looks for it next to a checkpoint

# All characters at which fairseq splits words.
WHITE_SPACE = [character for character in map(chr, range(0x3001)) if character.isspace()]


class Tokenizer(ABC):
    """Encoder of lines of text as ids of `dictionary`. A subclass takes its files, in their order, and a dictionary.

    Args:
        dictionary: starts with fairseq's special symbols <s> <pad> </s> <unk>; the tasks add <mask> after the last
            piece.
        files: files of the model, by their names in a prepared folder.
    """

    def __init__(self, dictionary: Dictionary, files: Mapping[str, Path]) -> None:
        self.dictionary, self._files = dictionary, files

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[Path | Dictionary, ...]]:
        """Pickle the paths of the model's files, and the dictionary; the files are loaded again."""
        return type(self), (*self._files.values(), self.dictionary)

    @abstractmethod
    def encode(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Return the tokens of each line as dictionary ids: int32 arrays of shape (tokens,), without <s> and </s>."""

    def decode(self, rows: Sequence[np.ndarray]) -> list[str]:
        """Return the text of the ids of each row, (tokens,): without <s>, <pad> and </s>, with a mark for <unk>."""
        first, unknown = self.dictionary.nspecial, self.dictionary.unk()
        return self._decode([[token for token in map(int, row) if token >= first or token == unknown] for row in rows])

    @abstractmethod
    def _decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row of ids of pieces and <unk>."""

    def save(self, folder: Path) -> None:
        """Copy the model's files, but not the dictionary, into `folder`."""
        for name, path in self._files.items():
            shutil.copyfile(path, folder / name)

    def is_in(self, folder: Path) -> bool:
        """Return True if a prepared folder holds the model's files, and the symbols of `dictionary` in their order.

        <mask>, which the tasks add, may be in one of the two alone.
        """
        for name, path in self._files.items():
            if not (folder / name).is_file() or not filecmp.cmp(path, folder / name, shallow=False):
                return False
        return without_mask(load_dictionary(folder / DICTIONARY_FILE)) == without_mask(self.dictionary)


class SentencePieceTokenizer(Tokenizer):
    """sentencepiece model of any type and any layout of control ids.

    Args:
        model: the file.
        dictionary: pieces that are not in it become <unk>. By default it has the model's pieces, in their order.
    """

    def __init__(self, model: Path, dictionary: Dictionary | None = None) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.Load(str(model))
        except RuntimeError as error:
            raise UserError(f"{model}: not a sentencepiece model ({error})") from error
        pieces = self._pieces()
        dictionary = fitting_dictionary(dictionary, pieces.values(), model)
        super().__init__(dictionary, {SENTENCEPIECE_FILE: model})
        self._table = ids_of(pieces, self._processor.GetPieceSize(), dictionary)
        self._ambiguous = self._find_ambiguous(set(pieces.values()))

    def _pieces(self) -> dict[int, str]:
        """Return the model's pieces by id, without those that the dictionary cannot hold.

        Left out: control symbols and unused pieces, which encoding never returns; the unknown piece, whose text is that
        of the line; pieces with white space, which fairseq would split; and <mask>, which the tasks add.
        """
        model = self._processor
        return {
            number: piece
            for number in range(model.GetPieceSize())
            if not (model.IsControl(number) or model.IsUnused(number) or model.IsUnknown(number))
            and tokenize_line(piece := model.IdToPiece(number)) == [piece]
            and piece != MASK
        }

    def _find_ambiguous(self, pieces: set[str]) -> list[str]:
        """Return the strings in a line for which the table may give other tokens than fairseq.

        An unknown piece is a part of the line itself. fairseq splits or drops it if it holds white space that the model
        does not treat as such (mostly U+0085), and looks it up in the dictionary, which may hold the same text.
        """
        model = self._processor
        spaces = [space for space in WHITE_SPACE if space in "".join(model.Encode(f"a{space}a", out_type=str))]
        unlisted = [symbol for symbol in self.dictionary.symbols if symbol not in pieces]
        return spaces + [symbol for symbol in unlisted if symbol in model.Encode(symbol, out_type=str)]

    def encode(self, lines: Sequence[str]) -> list[np.ndarray]:
        numbered = self._processor.Encode(list(lines), out_type=int, num_threads=1)
        sizes = np.fromiter(map(len, numbered), dtype=np.int64, count=len(numbered))
        tokens = self._table[np.fromiter(chain.from_iterable(numbered), dtype=np.int64, count=int(sizes.sum()))]
        encoded = [tokens[start:end] for start, end in pairwise([0, *np.cumsum(sizes).tolist()])]
        text = "\n".join(lines)  # searched as a whole: few texts need a search of each line
        if ambiguous := [string for string in self._ambiguous if string in text]:
            for row, line in enumerate(lines):
                if any(string in line for string in ambiguous):  # as fairseq does, about twenty times as slowly
                    pieces = " ".join(self._processor.Encode(line, out_type=str))
                    ids = self.dictionary.encode_line(pieces, append_eos=False, add_if_not_exist=False)
                    encoded[row] = ids.numpy()
        return encoded

    def _decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        model, symbols = self._processor, self.dictionary.symbols
        return model.Decode([[model.PieceToId(symbols[token]) for token in row] for row in rows])
