"""fairseq's dictionaries of pieces: reading, creation from a subword model, and a warning of unknown pieces."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary

from ..errors import UserError

DICTIONARY_FILE = "dict.txt"
REPORT_FILE = "corpus.json"  # counts of the text of a prepared corpus
MASK = "<mask>"  # the tasks add it to the dictionary that they read

# Tensor cores are fastest when the sizes of matrices are multiples of eight; the vocabulary is such a size.
SIZE_MULTIPLE = 8

# Above this fraction of unknown pieces, the vocabulary was not made for the text.
MOST_UNKNOWN = 0.001

MODEL_REMEDY = (  # for commands that use the tokenizer of a model
    "take a checkpoint whose vocabulary has them, or pretrain one: a vocabulary of linformer prepare corpus has all"
)


def load_dictionary(path: Path) -> Dictionary:
    """Load a dictionary from a dict.txt; an error names the file."""
    try:
        with path.open(encoding="utf-8") as stream:
            return Dictionary.load(stream)
    except (ValueError, RuntimeError) as error:  # a malformed line, text that is not UTF-8, a repeated word
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
    """Return `dictionary`, or if it is None one of the pieces, in their order.

    The new one is padded so that its size, with the tasks' <mask>, is a multiple of SIZE_MULTIPLE.

    Raises:
        UserError: `dictionary` is that of another model, and would silently turn most of the text into <unk>.
    """
    if dictionary is not None:
        present = sum(piece in dictionary for piece in pieces)
        if 2 * present < len(pieces):
            held = f"the dictionary has only {present} of its {len(pieces)} pieces, fewer than half"
            raise UserError(f"{model}: {held}, so it belongs to another model")
        return dictionary
    dictionary = Dictionary()
    for piece in pieces:
        dictionary.add_symbol(piece, n=0)
    for number in range(-(len(dictionary) + 1) % SIZE_MULTIPLE):
        dictionary.add_symbol(f"madeupword{number:04d}", n=0)
    return dictionary


def ids_of(pieces: Mapping[int, str], size: int, dictionary: Dictionary) -> np.ndarray:
    """Return the dictionary's id of each id of a model, <unk> for ids without a piece: int32, (size,)."""
    table = np.full(size, dictionary.unk(), dtype=np.int32)
    for number, piece in pieces.items():
        table[number] = dictionary.index(piece)
    return table


def unknown_warning(shares: Mapping[str, float], remedy: str = MODEL_REMEDY) -> list[str]:
    """Return a warning if more than MOST_UNKNOWN of a split's pieces are <unk>; `shares` is that share by split."""
    high = ", ".join(f"{split} {share:.3%}" for split, share in shares.items() if share > MOST_UNKNOWN)
    reason = "the vocabulary lacks characters of this text, which the model cannot tell apart"
    return [f"warning: unknown pieces: {high}, more than {MOST_UNKNOWN:.1%}: {reason}: {remedy}"] if high else []
