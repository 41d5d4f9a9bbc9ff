"""Subword model together with the fairseq dictionary that numbers its pieces.

fairseq itself writes pieces as text and finds each one in the dictionary. Here one numpy table maps the model's ids to
the dictionary's, which makes preparation fast. The ids are the same, so models that are used later through fairseq's
encoders (`bpe: sentencepiece` or `bpe: gpt2`, and ours, `bpe: tokenizers`) get the tokens that they were trained on.
"""

import filecmp
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from fairseq.tokenizer import tokenize_line

from ..errors import UserError
from .dictionaries import (
    DICTIONARY_FILE,
    MASK,
    corpus_folders,
    dictionary_in,
    fitting_dictionary,
    ids_of,
    load_dictionary,
    without_mask,
)

# The names that fairseq's from_pretrained looks for next to a checkpoint.
SENTENCEPIECE_FILE = "sentencepiece.bpe.model"
ENCODER_FILE = "encoder.json"
MERGES_FILE = "vocab.bpe"
TOKENIZER_FILE = "tokenizer.json"  # of the library tokenizers; fairseq knows no such file

# All characters at which fairseq splits words.
WHITE_SPACE = [character for character in map(chr, range(0x3001)) if character.isspace()]

# The GPT-2 encoder caches every word. The cache is emptied beyond this many, about 200 MB.
_MOST_CACHED_WORDS = 1_000_000


class Tokenizer(ABC):
    """Encoder of lines of text as ids of `dictionary`.

    Args:
        dictionary: starts with fairseq's special symbols <s> <pad> </s> <unk>; the tasks add <mask> after the last
            piece.
        files: files of the model, by their names in a prepared folder.
    """

    def __init__(self, dictionary: Dictionary, files: Mapping[str, Path]) -> None:
        self.dictionary, self._files = dictionary, files

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


class GPT2Tokenizer(Tokenizer):
    """GPT-2's byte-level BPE, with fairseq's encoder. Its dictionary holds the encoder's numbers, written as text.

    Args:
        encoder_json: the pieces and their numbers.
        vocab_bpe: the merges.
        dictionary: by default the encoder's numbers, in their order.
    """

    def __init__(self, encoder_json: Path, vocab_bpe: Path, dictionary: Dictionary | None = None) -> None:
        try:
            self._encoder = get_encoder(str(encoder_json), str(vocab_bpe))
            pieces = {number: str(number) for number in sorted(self._encoder.encoder.values())}
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{encoder_json}, {vocab_bpe}: not a GPT-2 BPE ({error})") from error
        dictionary = fitting_dictionary(dictionary, pieces.values(), encoder_json)
        super().__init__(dictionary, {ENCODER_FILE: encoder_json, MERGES_FILE: vocab_bpe})
        self._table = ids_of(pieces, max(pieces) + 1, dictionary)

    def encode(self, lines: Sequence[str]) -> list[np.ndarray]:
        if len(self._encoder.cache) > _MOST_CACHED_WORDS:
            self._encoder.cache.clear()
        return [self._table[np.array(self._encoder.encode(line), dtype=np.int64)] for line in lines]

    def _decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        unknown, symbols = self.dictionary.unk(), self.dictionary.symbols
        runs = (groupby(row, key=lambda token: token == unknown) for row in rows)
        return [
            "".join(
                "\ufffd" if is_unknown else self._encoder.decode([int(symbols[token]) for token in tokens])
                for is_unknown, tokens in row_runs
            )
            for row_runs in runs
        ]


class JsonTokenizer(Tokenizer):
    """WordPiece, Unigram or BPE model of the library ``tokenizers``, as ``hf/importing.py`` writes it.

    Its ids equal the ids of the dictionary, which holds them as text. Names of special tokens, such as [CLS], are plain
    text within a text.

    Args:
        file: a tokenizer.json.
        dictionary: by default its ids.
    """

    def __init__(self, file: Path, dictionary: Dictionary | None = None) -> None:
        self.model = _read_tokenizer_json(file)
        size = self.model.get_vocab_size(with_added_tokens=True)
        ids = Dictionary()
        for number in range(ids.nspecial, size - 1):  # the last is <mask>
            ids.add_symbol(str(number), n=0)
        if dictionary is not None and without_mask(dictionary) != ids.symbols:
            raise UserError(f"{file} has {size} ids, so the {DICTIONARY_FILE} in its folder belongs to another model")
        super().__init__(dictionary or ids, {TOKENIZER_FILE: file})
        self._table = np.arange(size, dtype=np.int32)
        self._table[[ids.bos(), ids.pad(), ids.eos(), size - 1]] = ids.unk()  # no text has special tokens

    def encode(self, lines: Sequence[str]) -> list[np.ndarray]:
        # Not encode_batch, whose threads would run in each of the processes that prepare a corpus.
        encoded = (self.model.encode(line, add_special_tokens=False) for line in lines)
        return [self._table[np.array(line.ids, dtype=np.int64)] for line in encoded]

    def _decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return self.model.decode_batch([list(row) for row in rows], skip_special_tokens=False)


def _read_tokenizer_json(file: Path) -> Any:
    """Load the tokenizer of a file, which reads the names of the five special tokens as text."""
    import tokenizers  # of the extra "hf"

    text = file.read_bytes()
    try:
        content = json.loads(text)
        added = content["added_tokens"]
        last = max(token["id"] for token in added)  # <mask>
        for token in added:
            token["special"] = token["id"] in (*range(4), last)
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # tokenizers raises no other class
        raise UserError(f"{file}: not a file of tokenizers ({' '.join(str(error).split())[:200]})") from error
    tokenizer.encode_special_tokens = True
    return tokenizer


# By fairseq's names: the class, and its files by fairseq's options, in its order. In a folder the first match counts.
SUBWORD_MODELS: Mapping[str, tuple[Callable[..., Tokenizer], Mapping[str, str]]] = {
    "sentencepiece": (SentencePieceTokenizer, {"sentencepiece_model": SENTENCEPIECE_FILE}),
    "gpt2": (GPT2Tokenizer, {"gpt2_encoder_json": ENCODER_FILE, "gpt2_vocab_bpe": MERGES_FILE}),
    "tokenizers": (JsonTokenizer, {"tokenizers_file": TOKENIZER_FILE}),
}
VOCABULARY_FILES = (DICTIONARY_FILE, SENTENCEPIECE_FILE, ENCODER_FILE, MERGES_FILE, TOKENIZER_FILE)
A_SUBWORD_MODEL = f"{SENTENCEPIECE_FILE} (or {ENCODER_FILE} and {MERGES_FILE}, or {TOKENIZER_FILE})"  # in messages


def subword_model_options(folder: Path, bpe: str | None = None) -> dict[str, str]:
    """Return fairseq's options for the subword model in a folder, "bpe" among them; empty if there is none."""
    for name, (_, files) in SUBWORD_MODELS.items():
        paths = {option: folder / file for option, file in files.items()}
        if bpe in (None, name) and all(path.is_file() for path in paths.values()):
            return {"bpe": name, **{option: str(path) for option, path in paths.items()}}
    return {}


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a prepared folder, or of a sentencepiece model and an optional dict.txt in its folder."""
    if path.suffix == ".model" or path.is_file():
        return SentencePieceTokenizer(path, dictionary_in(path.parent))
    folder = corpus_folders(path)[0]
    dictionary, options = dictionary_in(folder), subword_model_options(folder)
    missing = [DICTIONARY_FILE] * (dictionary is None) + [A_SUBWORD_MODEL] * (not options)
    if missing:
        raise FileNotFoundError(f"{folder} is no prepared folder or run: it lacks {' and '.join(missing)}")
    load, files = SUBWORD_MODELS[options["bpe"]]
    return load(*(folder / file for file in files.values()), dictionary)
