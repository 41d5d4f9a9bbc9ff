"""A random sample of the lines of a text, to train a vocabulary on."""

import heapq
from collections.abc import Sequence

import numpy as np

from ...errors import UserError

# A sampled line is cut into pieces of at most this many characters, so that corpora with one document per line are
# sampled as evenly as those with one sentence per line. A cut may split a word, once in 2000 characters.
_PIECE_CHARACTERS = 2000


class LineSample:
    """A random sample of the lines seen so far, the same for the same seed.

    This is a reservoir: each piece of a line draws a key, and the pieces with the smallest keys are kept. Once a key
    has been rejected, no larger one is accepted, so a piece's chance depends on neither its length nor its position.
    Not sentencepiece's own sample (input_sentence_size), which counts lines: its memory and time grow with theirs.

    Args:
        characters: of the sample, at most; at least _PIECE_CHARACTERS.
        seed: at least 0.

    Raises:
        UserError: a number is too small.
    """

    def __init__(self, characters: int, seed: int) -> None:
        if characters < _PIECE_CHARACTERS:
            raise UserError(f"sample of {characters} characters: must be at least {_PIECE_CHARACTERS}")
        if seed < 0:
            raise UserError(f"seed {seed}: must be at least 0")
        self._room = characters
        self._random = np.random.default_rng(seed)
        self._heap: list[tuple[float, int, str]] = []  # largest key first
        self._smallest_refused = 1.0
        self._seen = 0

    def add(self, lines: Sequence[str]) -> None:
        step = _PIECE_CHARACTERS
        pieces = [line[start : start + step] for line in lines for start in range(0, len(line), step)]
        keys = self._random.random(len(pieces))
        for place in np.flatnonzero(keys < self._smallest_refused).tolist():
            if keys[place] >= self._smallest_refused:
                continue
            heapq.heappush(self._heap, (-float(keys[place]), self._seen + place, pieces[place]))
            self._room -= len(pieces[place])
            while self._room < 0:
                negative_key, _, refused = heapq.heappop(self._heap)
                self._smallest_refused = -negative_key
                self._room += len(refused)
        self._seen += len(pieces)

    def lines(self) -> list[str]:
        """The sampled pieces of lines, in the order of the text."""
        return [piece for _, _, piece in sorted(self._heap, key=lambda entry: entry[1])]
