"""Sequences from the lines of a corpus: texts of any length between <s> and </s>, or lines."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset
from torch import Tensor

SPECIAL_TOKENS = 2  # of a text: <s> and </s>
LENGTHS_PER_DRAW = 4096
# If at least as many tokens of a line remain after a text, the next text begins with them. Paragraphs are shorter.
LONG_REMAINDER = 512


class MixedTexts(FairseqDataset):
    """Texts whose lengths have a log-uniform distribution: as many of 8 to 16 tokens as of 2,048 to 4,096.

    A text begins with a line and continues with the next lines of its document, without the </s> between them, up to
    its length. The remainder of its last line is left out, unless it is long, as in a corpus of one document per line:
    then the next text begins with it. The texts depend on the seed alone.

    Args:
        lines: a corpus as ``prepare_corpus`` writes it: lines that end with </s>, documents that end with a lone </s>.
        sizes: number of tokens of each line, int, (lines,).
        shortest, longest: lengths of a text with <s> and </s>, in tokens, 3 <= shortest <= longest. The end of a
            document makes a text shorter; one below `shortest` is left out.
        bos, eos: fairseq's indices of <s> and </s>.
        seed: seed of the lengths.
    """

    def __init__(
        self, lines: FairseqDataset, sizes: np.ndarray, shortest: int, longest: int, bos: int, eos: int, seed: int
    ) -> None:
        super().__init__()
        self._lines, self._bos, self._eos = lines, bos, eos
        # First position of each line in the corpus without </s>, and the end of the corpus.
        self._line_starts = np.concatenate([[0], np.cumsum(sizes.astype(np.int64) - 1)])
        min_remainder = max(shortest, min(LONG_REMAINDER, longest))
        lengths = _draw_lengths(shortest, longest, seed)
        self._starts, self._tokens = self._divide(sizes == 1, lengths, shortest - SPECIAL_TOKENS, min_remainder)
        self.sizes = self._tokens + SPECIAL_TOKENS

    def _divide(
        self, blank: np.ndarray, lengths: Iterator[int], min_tokens: int, min_remainder: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Divide the corpus into texts.

        Args:
            blank: True for lines that are a lone </s>, (lines,).
            lengths: tokens of the texts.
            min_tokens: a shorter text is left out.
            min_remainder: if at least as many tokens of a line remain, the next text begins with them.

        Returns:
            The first position of each text in the corpus without </s>, and its number of tokens, int64, (texts,) each.
        """
        line_starts = self._line_starts
        document_ends = np.append(blank.nonzero()[0], len(blank))  # as lines
        texts, line, start, length = list[tuple[int, int]](), 0, 0, next(lengths)
        while line < len(blank):
            document_end = document_ends[np.searchsorted(document_ends, line)]
            tokens = min(length, line_starts[document_end] - start)
            if tokens >= min_tokens:
                texts.append((start, tokens))
                length = next(lengths)
            start += tokens
            next_line = int(np.searchsorted(line_starts, start))
            if line_starts[next_line] - start >= min_remainder:
                line = next_line - 1
            else:
                line = max(line + 1, next_line)
                start = line_starts[line]
        text_starts, tokens = np.array(texts, dtype=np.int64).reshape(-1, 2).T
        return text_starts, tokens

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Tensor:
        start, tokens = self._starts[index], self._tokens[index]
        first_line = np.searchsorted(self._line_starts, start, side="right") - 1
        next_line = np.searchsorted(self._line_starts, start + tokens)
        lines = torch.cat([self._lines[line][:-1] for line in range(first_line, next_line)])
        text = lines[start - self._line_starts[first_line] :][:tokens]
        return torch.cat([text.new_tensor([self._bos]), text, text.new_tensor([self._eos])])

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    size = num_tokens


def _draw_lengths(shortest: int, longest: int, seed: int) -> Iterator[int]:
    """Yield the lengths of texts without <s> and </s>, endlessly."""
    random = np.random.RandomState(seed)
    while True:
        lengths = np.exp(random.uniform(np.log(shortest), np.log(longest + 1), LENGTHS_PER_DRAW)).astype(np.int64)
        yield from (lengths.clip(shortest, longest) - SPECIAL_TOKENS).tolist()


class CutLines(BaseWrapperDataset):
    """Lines of a corpus; one that is longer than a sequence is cut into parts of nearly equal length.

    It is for sequences of whole lines or documents, for which fairseq would leave out the lines that are too long.

    Args:
        lines: a corpus as ``prepare_corpus`` writes it, with ``sizes``, int, (lines,).
        longest: maximum tokens of a line, at least 3, so that no part is a lone </s>, which ends a document.
    """

    def __init__(self, lines: FairseqDataset, longest: int) -> None:
        super().__init__(lines)
        sizes = np.asarray(lines.sizes, np.int64)
        parts = -(-sizes // longest)
        self._line = np.repeat(np.arange(len(sizes)), parts)
        size, count = sizes[self._line], parts[self._line]
        part_index = np.arange(len(self._line)) - np.repeat(np.cumsum(parts) - parts, parts)  # within its line
        self._begin, self._end = part_index * size // count, (part_index + 1) * size // count

    @property
    def sizes(self) -> np.ndarray:
        return self._end - self._begin

    def __len__(self) -> int:
        return len(self._line)

    def __getitem__(self, index: int) -> Tensor:
        return self.dataset[int(self._line[index])][self._begin[index] : self._end[index]]


class ShuffledBatches(BaseWrapperDataset):
    """Batches of sequences of similar length, shuffled in the same order every time.

    fairseq sorts sequences by length and validates on the batches in this order: with a maximum number of them
    (``dataset.max_valid_steps``) it would validate on the shortest texts alone.
    """

    def batch_by_size(self, *arguments: Any, **limits: Any) -> list[Any]:
        batches = list(super().batch_by_size(*arguments, **limits))
        return [batches[index] for index in np.random.default_rng(0).permutation(len(batches))]
