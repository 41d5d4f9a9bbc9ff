"""fairseq's dictionaries of pieces: reading, creation from a subword model, and the share of unknown pieces."""

import json
from collections.abc import Collection, Mapping
from copy import deepcopy
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary

from ..errors import UserError

DICTIONARY_FILE = "dict.txt"
REPORT_FILE = "corpus.json"  # of a prepared corpus: counts of its text
SHARDS_FILE = "shards.json"  # of a folder of several prepared corpora, as version 0.3.0 could write it
MASK = "<mask>"  # the tasks add it to the dictionary that they read

# Tensor cores are fastest when the sizes of matrices are multiples of eight; the vocabulary is such a size.
SIZE_MULTIPLE = 8

# Above this fraction of unknown pieces, the vocabulary was not made for the text.
MOST_UNKNOWN = 0.001

GIVEN_REMEDY = (  # for commands that use the tokenizer of a model
    "the texts need the vocabulary of their model, so take a checkpoint whose vocabulary has them, or pretrain one: a "
    "vocabulary that linformer prepare corpus makes now lacks none"
)


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


def load_dictionary(path: Path) -> Dictionary:
    """Load fairseq's Dictionary from a dict.txt; an error names the file."""
    try:
        with path.open(encoding="utf-8") as stream:
            return Dictionary.load(stream)
    except (ValueError, RuntimeError) as error:  # a malformed line, or not UTF-8; a word that occurs twice
        raise UserError(f"{path}: not a fairseq dictionary ({' '.join(str(error).split())})") from error


def with_mask(dictionary: Dictionary) -> Dictionary:
    """Return a copy of a dictionary, with <mask>."""
    dictionary = deepcopy(dictionary)
    dictionary.add_symbol(MASK)
    return dictionary


def without_mask(dictionary: Dictionary) -> list[str]:
    """Return the symbols of a dictionary by number, without <mask>, which the tasks add."""
    return [symbol for symbol in dictionary.symbols if symbol != MASK]


def fitting_dictionary(dictionary: Dictionary | None, pieces: Collection[str], model: Path) -> Dictionary:
    """Return the given dictionary, or one of the pieces, in their order.

    The latter is padded so that its size, with the tasks' <mask>, is a multiple of SIZE_MULTIPLE.

    Raises:
        UserError: the given dictionary is another model's, and would silently turn most of the text into <unk>.
    """
    if dictionary is not None:
        present = sum(piece in dictionary for piece in pieces)
        if 2 * present < len(pieces):
            raise UserError(
                f"{model}: the dictionary holds only {present} of its {len(pieces)} pieces, so it belongs to another "
                "model; more than half are needed"
            )
        return dictionary
    dictionary = Dictionary()
    for piece in pieces:
        dictionary.add_symbol(piece, n=0)
    for number in range(-(len(dictionary) + 1) % SIZE_MULTIPLE):
        dictionary.add_symbol(f"madeupword{number:04d}", n=0)
    return dictionary


def ids_of(pieces: Mapping[int, str], size: int, dictionary: Dictionary) -> np.ndarray:
    """Return the id of each of a model's `size` numbers, <unk> for those without a piece: int32, (size,)."""
    table = np.full(size, dictionary.unk(), dtype=np.int32)
    for number, piece in pieces.items():
        table[number] = dictionary.index(piece)
    return table


def unknown_warning(shares: Mapping[str, float], remedy: str = GIVEN_REMEDY) -> list[str]:
    """Return a warning if more than MOST_UNKNOWN of a split's pieces are <unk>; `shares` is that share by split."""
    high = ", ".join(f"{split} {share:.3%}" for split, share in shares.items() if share > MOST_UNKNOWN)
    if not high:
        return []
    return [
        f"warning: unknown pieces: {high}, more than {MOST_UNKNOWN:.1%}: the vocabulary lacks characters of this text, "
        f"which the model cannot tell apart: {remedy}"
    ]
