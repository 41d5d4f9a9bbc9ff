"""Long texts: truncation of the sequences of fine-tuning, and chunks of the length of a teacher.

fairseq's own ``shorten_method`` ignores special tokens: ``truncate`` loses the closing ``</s>`` and may lose all of a
second text, ``random_crop`` loses the ``<s>`` that the classification head reads.
"""

import bisect
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset
from torch import Tensor

from ..errors import check
from .targets import remap

METHODS = ("head", "tail", "head-tail", "random-crop")


def max_length_and_method(task: Any, longest: int) -> tuple[int, str]:
    """Return the length and the method by which a task truncates sequences outside train, without randomness.

    ``sentence_prediction`` has no options for it: it takes `longest`, the maximum of the model, and the head.
    """
    method = str(getattr(task, "truncation", "head"))
    return getattr(task, "truncate_to", None) or longest, "head" if method == "random-crop" else method


def kept_tokens(row: Tensor, length: int, method: str, bos: int, eos: int, fraction: float = 0.0) -> Tensor:
    """Return True for the tokens of a sequence that are kept: `length` of them, or all if it is no longer than that.

    Special tokens are kept: a first token that is `bos`, and every `eos`; and as much of the text between them as fits.
    Of a pair, the longer text is shortened first, then both alike, as Hugging Face's ``longest_first`` does. ``head``
    keeps the first m tokens of a text, ``tail`` the last, ``random-crop`` consecutive ones from the index
    int(fraction · (excess + 1)), and ``head-tail`` the first (m + 2) // 4 and the remaining ones from the end: 128 and
    382 of 510, the best of Sun et al. 2019, "How to Fine-Tune BERT for Text Classification?" (arXiv 1905.05583).

    Args:
        row: ids, (tokens,): ``<s> A </s>`` or ``<s> A </s> </s> B </s>``.
        length: at least one more than the number of special tokens.
        method: one of METHODS.
        fraction: start of a random crop, at least 0 and below 1.

    Returns:
        True for each token that is kept, (tokens,).

    Raises:
        UserError: `length` is too small.
    """
    keep = row == eos
    keep[:1] |= row[:1] == bos
    special = keep.nonzero()[:, 0].tolist()
    check("length", length, length > len(special), f"at least {len(special) + 1}, one more than the special tokens")
    if len(row) <= length:
        return torch.ones_like(keep)
    texts = [(previous + 1, end) for previous, end in pairwise([-1, *special, len(row)])]  # texts may be empty
    counts = _shares([end - start for start, end in texts], length - len(special))
    for (start, end), count in zip(texts, counts, strict=True):
        if method == "random-crop":
            first = start + int(fraction * (end - start - count + 1))
            keep[first : first + count] = True
        else:
            head = {"head": count, "tail": 0, "head-tail": (count + 2) // 4}[method]
            keep[start : start + head] = True
            keep[end - (count - head) : end] = True
    return keep


def _shares(lengths: Sequence[int], room: int) -> list[int]:
    """Return the number of tokens to keep of each text, `room` in total: the longest text loses tokens first.

    If several texts are the longest, the last of them loses one, so an indivisible remainder goes to the first.
    """

    def total(level: int) -> int:
        return sum(min(length, level) for length in lengths)

    level = bisect.bisect_right(range(1, room + 1), room, key=total)
    longer = [number for number, length in enumerate(lengths) if length > level]
    favoured = longer[: room - total(level)]
    return [min(length, level) + (number in favoured) for number, length in enumerate(lengths)]


class TruncatedDataset(BaseWrapperDataset):
    """Sequences of fairseq's ``sentence_prediction``, each truncated to `length` tokens.

    Items are tokens, their counts and, if present, the ``word_starts`` (``WordTargetDataset``).

    Args:
        dataset: the dataset that SentencePredictionTask loads.
        length, method, bos, eos: as for ``kept_tokens``.
        seed: of random crops. A crop depends on the seed, the epoch and the sequence alone, so it is the same in every
            process and after a resumption.
        by_length: group sequences of similar length, so that batches have little padding. Sequences of one length keep
            the order of `dataset`; fairseq's epoch iterator shuffles the batches.
    """

    def __init__(
        self, dataset: FairseqDataset, length: int, method: str, bos: int, eos: int, *, seed: int, by_length: bool
    ) -> None:
        super().__init__(dataset)
        self.length, self.method, self.bos, self.eos = length, method, bos, eos
        self.seed = seed
        self.by_length = by_length
        self.epoch = 1
        self._sizes = np.minimum(dataset.sizes[0], length)

    batch_by_size = FairseqDataset.batch_by_size  # by these sizes, not those of the wrapped dataset

    @property
    def sizes(self) -> np.ndarray:
        """Tokens of each sequence, (rows,)."""
        return self._sizes

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self.dataset[index]
        # A generator for each sequence: neither worker process nor reading order changes the draws.
        random = self.method == "random-crop"
        fraction = np.random.default_rng((self.seed, self.epoch, index)).random() if random else 0.0
        tokens = item["net_input.src_tokens"]
        keep_mask = kept_tokens(tokens, self.length, self.method, self.bos, self.eos, fraction)
        changed: dict[str, Any] = dict.fromkeys(("net_input.src_lengths", "ntokens"), int(keep_mask.sum()))
        changed["net_input.src_tokens"] = tokens[keep_mask]
        if "word_starts" in item:
            changed["word_starts"] = remap(item["word_starts"], keep_mask)
        return {**item, **changed}

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    size = num_tokens

    def ordered_indices(self) -> np.ndarray:
        """Return the sequences in the order that batches are cut from, (rows,)."""
        order = self.dataset.ordered_indices()
        return order[np.argsort(self.sizes[order], kind="stable")] if self.by_length else order

    def filter_indices_by_size(self, indices: np.ndarray, max_sizes: object) -> tuple[np.ndarray, list[int]]:
        """Return every index: none is left out for its length, because sequences are truncated."""
        return indices, []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        super().set_epoch(epoch)


class Chunks(NamedTuple):
    """Texts cut into chunks. Dimensions: B texts of n tokens, C chunks, s the length of the longest, d embedding.

    Attributes:
        tokens: (C, s) token ids, padded on the right.
        text: index of the text of each chunk, (C,).
        last: position of the </s> of each chunk, (C,).
        sources: (B, n), index in C x s of each token of a text; arbitrary for <s>, </s> and padding.
        ends: position of the </s> of each text, (B,).
    """

    tokens: Tensor
    text: Tensor
    last: Tensor
    sources: Tensor
    ends: Tensor

    def joined(self, features: Tensor) -> Tensor:
        """Return the features of the texts, (B, n, d), from those of their chunks, (C, s, d).

        A token has its features in its chunk, <s> and </s> the mean over those of all chunks. Padding is arbitrary.
        """
        joined = features.flatten(0, 1)[self.sources]
        rows, counts = torch.arange(len(joined), device=joined.device), self.text.bincount(minlength=len(joined))
        for position, in_chunk in ((0, self.last * 0), (self.ends, self.last)):
            chunk_features = features[torch.arange(len(features), device=joined.device), in_chunk]
            sums = features.new_zeros(joined[:, 0].shape).index_add_(0, self.text, chunk_features)
            joined[rows, position] = sums / counts.unsqueeze(1)
        return joined


def cut_texts(tokens: Tensor, longest: int, pad: int) -> Chunks:
    """Cut each text that is too long into the fewest chunks, of one length, each between <s> and </s>.

    Chunks depend on their own text alone, not on the others of the batch.

    Args:
        tokens: (B, n): <s>, text, </s>, and padding on the right.
        longest: maximum length of a chunk, with <s> and </s>, at least 3.
        pad: fairseq's index of padding.
    """
    device, columns = tokens.device, torch.arange(tokens.size(1), device=tokens.device)
    ends = tokens.ne(pad).sum(1) - 1  # (B,)
    inner_lengths = (ends - 1).clamp(min=1)  # without <s> and </s>
    counts = -(-inner_lengths // (longest - 2))
    sizes = -(-inner_lengths // counts)
    firsts = counts.cumsum(0) - counts  # the first chunk of each text
    text = torch.repeat_interleave(torch.arange(len(tokens), device=device), counts)
    # Number of the text's tokens in earlier chunks.
    offset = (torch.arange(len(text), device=device) - firsts[text]) * sizes[text]
    last = torch.minimum(sizes[text], inner_lengths[text] - offset) + 1
    positions = torch.arange(int(last.max()) + 1, device=device)  # (s,)
    source = torch.where(positions == last.unsqueeze(1), ends[text].unsqueeze(1), offset.unsqueeze(1) + positions)
    source = source.masked_fill(positions == 0, 0).clamp(max=tokens.size(1) - 1)  # (C, s)
    chunk_tokens = tokens[text.unsqueeze(1), source].masked_fill(positions > last.unsqueeze(1), pad)
    inner = (columns - 1).clamp(min=0).minimum(inner_lengths.unsqueeze(1) - 1)  # (B, n)
    chunk = firsts.unsqueeze(1) + inner // sizes.unsqueeze(1)
    return Chunks(chunk_tokens, text, last, chunk * len(positions) + 1 + inner % sizes.unsqueeze(1), ends)
