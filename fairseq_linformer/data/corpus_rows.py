"""Sequences from the lines of a corpus: texts of any length between <s> and </s>, or lines."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset
from torch import Tensor

ENDS = 2  # <s> and </s>
LENGTHS_PER_DRAW = 4096
LONG = 512  # tokens left of a line, from which on the next text may begin within it; a paragraph has fewer


class MixedTexts(FairseqDataset):
    """Texts whose lengths have a log-uniform distribution: as many of 8 to 16 tokens as of 2,048 to 4,096.

    A text begins with a line and continues with the next lines of its document, without the </s> between them, up to
    its length. The remainder of its last line is left out, unless it is long, as in a corpus of one document per line:
    then the next text begins with it. The texts depend on the seed alone.

    Args:
        lines: a corpus as ``prepare_corpus`` writes it: lines that end with </s>, documents that end with a lone </s>.
        sizes: their tokens, int, (lines,).
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
        self._begins = np.concatenate([[0], np.cumsum(sizes.astype(np.int64) - 1)])  # of each line, without any </s>
        within = max(shortest, min(LONG, longest))
        lengths = _draw_lengths(shortest, longest, seed)
        self._begin, self._tokens = self._find(sizes == 1, lengths, shortest - ENDS, within)
        self.sizes = self._tokens + ENDS

    def _find(
        self, blank: np.ndarray, lengths: Iterator[int], least: int, within: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the start of each text, as in ``_begins``, and its tokens without <s> and </s>, int64, (texts,)."""
        begins, ends = self._begins, np.append(blank.nonzero()[0], len(blank))  # of documents, as lines
        texts, line, begin, length = list[tuple[int, int]](), 0, 0, next(lengths)
        while line < len(blank):
            end = ends[np.searchsorted(ends, line)]
            tokens = min(length, begins[end] - begin)
            if tokens >= least:
                texts.append((begin, tokens))
                length = next(lengths)
            begin += tokens
            after = int(np.searchsorted(begins, begin))
            if begins[after] - begin >= within:
                line = after - 1
            else:
                line = max(line + 1, after)
                begin = begins[line]
        text_begins, tokens = np.array(texts, dtype=np.int64).reshape(-1, 2).T
        return text_begins, tokens

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Tensor:
        begin, tokens = self._begin[index], self._tokens[index]
        first = np.searchsorted(self._begins, begin, side="right") - 1
        after = np.searchsorted(self._begins, begin + tokens)
        lines = torch.cat([self._lines[line][:-1] for line in range(first, after)])
        text = lines[begin - self._begins[first] :][:tokens]
        return torch.cat([text.new_tensor([self._bos]), text, text.new_tensor([self._eos])])

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    size = num_tokens


def _draw_lengths(shortest: int, longest: int, seed: int) -> Iterator[int]:
    """Yield the lengths of texts without <s> and </s>, endlessly."""
    chance = np.random.RandomState(seed)
    while True:
        drawn = np.exp(chance.uniform(np.log(shortest), np.log(longest + 1), LENGTHS_PER_DRAW)).astype(np.int64)
        yield from (drawn.clip(shortest, longest) - ENDS).tolist()


class CutLines(BaseWrapperDataset):
    """Lines of a corpus; one that is longer than a sequence is cut into parts of nearly equal length.

    If sequences keep lines or documents whole, fairseq leaves out the lines that are too long.

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
        part_index = np.arange(len(self._line)) - np.repeat(np.cumsum(parts) - parts, parts)  # of a part in its line
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
        return [batches[number] for number in np.random.default_rng(0).permutation(len(batches))]
