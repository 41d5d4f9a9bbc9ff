"""Subword models of a prepared folder: sentencepiece, GPT-2's BPE, or a model of the library ``tokenizers``."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from ..errors import UserError
from .dictionaries import DICTIONARY_FILE, fitting_dictionary, ids_of, load_dictionary, without_mask
from .tokenizer import SENTENCEPIECE_FILE, SentencePieceTokenizer, Tokenizer

ENCODER_FILE, MERGES_FILE = "encoder.json", "vocab.bpe"  # fairseq's from_pretrained looks for them, too
TOKENIZER_FILE = "tokenizer.json"  # of the library tokenizers; fairseq knows no such file
SHARDS_FILE = "shards.json"  # in a folder of several prepared corpora, which version 0.3.0 could write

# The GPT-2 encoder caches every word. The cache is emptied beyond this many, about 200 MB.
_MOST_CACHED_WORDS = 1_000_000


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


def corpus_folders(folder: Path) -> list[Path]:
    """Return the prepared corpora in a folder that version 0.3.0 wrote for several; for any other the folder itself."""
    if not (folder / SHARDS_FILE).is_file():
        return [folder]
    count = len(json.loads((folder / SHARDS_FILE).read_text(encoding="utf-8"))["shards"])
    return [folder / f"shard{number:0{len(str(count))}}" for number in range(1, count + 1)]


def dictionary_in(folder: Path) -> Dictionary | None:
    """Return the dict.txt of a folder; None if it has none."""
    path = folder / DICTIONARY_FILE
    return load_dictionary(path) if path.is_file() else None


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


def load_tokenizer_for_corpus(path: Path) -> Tokenizer:
    """Load a tokenizer as ``load_tokenizer`` does; a folder of GPT-2's files needs no dict.txt."""
    encoder, merges = path / ENCODER_FILE, path / MERGES_FILE
    return GPT2Tokenizer(encoder, merges, dictionary_in(path)) if encoder.is_file() else load_tokenizer(path)
