"""Training of a sentencepiece vocabulary on a sample of the lines of a text."""

import heapq
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from ...errors import UserError, check

# sentencepiece's training silently leaves out lines of more bytes; this is the highest limit that it accepts.
_LONGEST_LINE = 2**30

# A sampled line is cut into pieces of at most this many characters, so that corpora with one document per line are
# sampled as evenly as those with one sentence per line. A cut may split a word, once in 2000 characters.
_PIECE_CHARACTERS = 2000

# The control symbols <unk>, <s> and </s>, a piece for each byte, the mark of a space and one letter.
FEWEST_PIECES = 3 + 256 + 2

# Above the largest vocabularies in use, and below the limits of sentencepiece and of memory.
MOST_PIECES = 1_000_000


class LineSample:
    """Random sample of the lines so far, the same for the same seed.

    This is a reservoir: each piece of a line draws a key, and the pieces with the smallest keys are kept. Once a key
    has been rejected, no larger one is accepted, so a piece's chance depends on neither its length nor its position.
    The sample of sentencepiece (input_sentence_size) counts lines: its memory and time grow with their length.

    Args:
        characters: maximum length of the sample; at least _PIECE_CHARACTERS.
        seed: seed of the keys, at least 0.
    """

    def __init__(self, characters: int, seed: int) -> None:
        check("--sample-characters", characters, characters >= _PIECE_CHARACTERS, f"at least {_PIECE_CHARACTERS}")
        self._room = characters
        self._random = np.random.default_rng(seed)
        self._heap: list[tuple[float, int, str]] = []  # largest key first
        self._smallest_rejected = 1.0
        self._piece_count = 0

    def add(self, lines: Sequence[str]) -> None:
        step = _PIECE_CHARACTERS
        pieces = [line[start : start + step] for line in lines for start in range(0, len(line), step)]
        keys = self._random.random(len(pieces))
        for index in np.flatnonzero(keys < self._smallest_rejected).tolist():
            if keys[index] >= self._smallest_rejected:
                continue
            heapq.heappush(self._heap, (-float(keys[index]), self._piece_count + index, pieces[index]))
            self._room -= len(pieces[index])
            while self._room < 0:
                negative_key, _, rejected = heapq.heappop(self._heap)
                self._smallest_rejected = -negative_key
                self._room += len(rejected)
        self._piece_count += len(pieces)

    def lines(self) -> list[str]:
        """Return the sampled pieces of lines, in the order of the text."""
        return [piece for _, _, piece in sorted(self._heap, key=lambda entry: entry[1])]


def train_sentencepiece(lines: Sequence[str], model: Path, vocab_size: int, threads: int = 16) -> None:
    """Train a unigram model and write it to `model`. No text has unknown pieces in it.

    The rarest 0.05 % of characters, and those that the lines lack, become the pieces of their UTF-8 bytes: in text from
    the web there are tens of thousands of these, and they would displace words.

    Args:
        lines: the text.
        model: the file to write.
        vocab_size: the number of pieces, control symbols and bytes included (``check_vocab_size``).
        threads: number of threads, which changes how partial sums are rounded, and so the scores of the model. By
            default it is not that of the machine's cores: the vocabulary should not depend on the machine.

    Raises:
        UserError: the text does not support `vocab_size`.
    """
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
        reason = str(error).rpartition("] ")[2]  # after a line of sentencepiece's source code
        raise UserError(f"vocabulary size {vocab_size}: {reason or 'there is no text'}") from error
    model.write_bytes(trained.getvalue())


def check_vocab_size(name: str, value: int) -> None:
    """Check the size of a vocabulary; `name` is that of the option."""
    allowed = f"from {FEWEST_PIECES} (256 of them bytes) to {MOST_PIECES:,}"
    check(name, value, FEWEST_PIECES <= value <= MOST_PIECES, allowed)
