"""Training of a sentencepiece vocabulary on lines of text."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import sentencepiece

from ...errors import UserError
from ..tokenizer import MOST_PIECES

# sentencepiece's training silently leaves out lines of more bytes; this is the highest limit that it accepts.
_LONGEST_LINE = 2**30

# The control symbols <unk>, <s> and </s>, a piece for each byte, the mark of a space and one letter.
FEWEST_PIECES = 3 + 256 + 2


def train_sentencepiece(lines: Sequence[str], model: Path, vocab_size: int, threads: int) -> None:
    """Trains a unigram model and writes it to `model`. No text has unknown pieces in it.

    The rarest 0.05 % of characters, and those that the lines lack, become the pieces of their UTF-8 bytes: in text from
    the web there are tens of thousands of these, and they would crowd out the words.

    Args:
        lines: the text.
        model: the file to write.
        vocab_size: the number of pieces, control symbols and bytes included; from FEWEST_PIECES to MOST_PIECES.
        threads: the same lines and the same number of threads give the same model. Another number may give slightly
            different scores, as partial sums are rounded.

    Raises:
        UserError: the text does not support `vocab_size`.
    """
    check_vocab_size("vocabulary size", vocab_size)
    trained = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=trained,
            vocab_size=vocab_size,
            model_type="unigram",
            character_coverage=0.9995,
            byte_fallback=True,
            max_sentence_length=_LONGEST_LINE,
            shuffle_input_sentence=False,
            num_threads=threads,
            minloglevel=2,  # errors only
        )
    except RuntimeError as error:
        raise UserError(_training_error(str(error), vocab_size)) from error
    model.write_bytes(trained.getvalue())


def check_vocab_size(name: str, value: int) -> None:
    """Refuses a size that no vocabulary can have; `name` is what the message calls it.

    Raises:
        UserError: it is not from FEWEST_PIECES to MOST_PIECES.
    """
    if not FEWEST_PIECES <= value <= MOST_PIECES:
        raise UserError(f"{name} {value}: must be from {FEWEST_PIECES} (256 of them bytes) to {MOST_PIECES:,}")


def _training_error(message: str, vocab_size: int) -> str:
    """What sentencepiece's message, which names a line of its source, means to the user."""
    if largest := re.search(r"Vocabulary size too high.*<= (\d+)", message):
        return f"vocabulary size {vocab_size}: too large, the text supports at most {largest[1]}"
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"vocabulary size {vocab_size}: too small, bytes and the characters of the text need at least {smallest[1]}"
        )
    if "sentences_.empty()" in message:
        return "no text to train a vocabulary on"
    return f"vocabulary size {vocab_size}: sentencepiece cannot train ({message})"
