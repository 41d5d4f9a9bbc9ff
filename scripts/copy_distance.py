"""Perplexity of a masked language model by copy distance, that of the nearest unmasked copy of a masked token.

A masked token is easy to predict if the same token is unmasked nearby, and hard if the sequence has no copy. The mean
over all masked tokens hides the effect of attention at a distance.

Sequences are cut as fairseq's ``masked_lm`` cuts them: n - 1 tokens of the text after <s>. The masks belong to
positions of the text, so that all models predict the same tokens, for any n.

Dimensions: T tokens of the text, N of them masked, S sequences, n tokens of a sequence with <s>, C classes of distance.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.data import data_utils
from torch import Tensor

from fairseq_linformer.data.dictionaries import DICTIONARY_FILE, load_dictionary

MASKED_SHARE = 0.25  # of the tokens, each replaced by <mask>
MAX_TOKENS = 2**19  # of the text
BATCH_TOKENS = 4096  # at least one sequence
# A local window of 128 in blocks reaches 64 to 191 tokens to a side: it always holds copies within 64, never those
# beyond 192.
LIMITS = (64, 192)
# Tokens with a larger share of the text are left out: a comma has copies near every position, and needs no attention.
MAX_FREQUENCY = 5e-4
NO_COPY = 0  # the distance of a token without an unmasked copy in its sequence
RESAMPLES = 1000


def copy_distances(tokens: np.ndarray, masked: np.ndarray) -> np.ndarray:
    """Return the distance of each masked token to the nearest unmasked copy in its sequence.

    Args:
        tokens: (S, n) ids, at masked positions those to predict.
        masked: (S, n) bool.

    Returns:
        (N,) in the order of ``tokens[masked]``, at least 1; ``NO_COPY`` where there is none.
    """
    length = tokens.shape[1]
    sequence, position = np.indices(tokens.shape)
    # Copies in one sequence have keys that differ by their distance; all other keys differ by more than n.
    key = (sequence * (int(tokens.max(initial=0)) + 1) + tokens) * (2 * length) + position
    unmasked = np.sort(key[~masked])
    queries = key[masked]
    index = np.searchsorted(unmasked, queries)
    infinity = np.iinfo(unmasked.dtype).max // 2
    bounded = np.concatenate([[-infinity], unmasked, [infinity]])
    nearest = np.minimum(queries - bounded[index], bounded[index + 1] - queries)
    return np.where(nearest < length, nearest, NO_COPY)


def class_limits(length: int) -> list[int]:
    """Return upper limits of the classes of distance: ``LIMITS``, then twice the last and so on, up to the length."""
    limits = [limit for limit in LIMITS if limit < length]
    while limits and 2 * limits[-1] < length:
        limits.append(2 * limits[-1])
    return [*limits, length]


@dataclass(frozen=True)
class ClassLosses:
    """Losses at masked tokens, summed by sequence and class of distance."""

    limits: tuple[int, ...]  # upper limits of the classes, ascending; the class NO_COPY comes before them
    sums: np.ndarray  # (S, C) of losses in nats
    counts: np.ndarray  # (S, C) of masked tokens

    @classmethod
    def of_tokens(
        cls, losses: np.ndarray, distances: np.ndarray, sequences: np.ndarray, limits: Sequence[int]
    ) -> "ClassLosses":
        """Sum losses (N,) with their distances (N,) and sequences (N,)."""
        rows = np.unique(sequences, return_inverse=True)[1]
        columns = np.searchsorted([NO_COPY, *limits], distances)
        shape = (int(rows.max(initial=-1)) + 1, len(limits) + 1)
        cells = np.ravel_multi_index((rows, columns), shape)
        sums, counts = (np.bincount(cells, weights, minlength=shape[0] * shape[1]) for weights in (losses, None))
        return cls(tuple(limits), sums.reshape(shape), counts.reshape(shape))

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "ClassLosses":
        """Return the result of ``as_json`` as an object."""
        shape = (-1, len(content["limits"]) + 1)
        cells = (np.array(content[name]).reshape(shape) for name in ("sums", "counts"))
        return cls(tuple(content["limits"]), *cells)

    def as_json(self) -> dict[str, Any]:
        """Return limits, sums and counts as plain data."""
        return {"limits": list(self.limits), "sums": self.sums.tolist(), "counts": self.counts.tolist()}

    def __add__(self, other: "ClassLosses") -> "ClassLosses":
        """Add the losses of two models at the same masked tokens: perplexities of the sum are geometric means."""
        return ClassLosses(self.limits, self.sums + other.sums, self.counts + other.counts)

    def merge_beyond(self, limit: int) -> "ClassLosses":
        """Join all classes beyond a limit."""
        first = self.limits.index(limit) + 2
        cells = (np.hstack([x[:, :first], x[:, first:].sum(1, keepdims=True)]) for x in (self.sums, self.counts))
        return ClassLosses((*self.limits[: first - 1], self.limits[-1]), *cells)

    def names(self) -> list[str]:
        """Return the classes' names: no copy, 1 to 64, ..."""
        firsts = [limit + 1 for limit in (0, *self.limits[:-1])]
        return ["no copy", *(f"{first} to {last}" for first, last in zip(firsts, self.limits, strict=True))]

    def perplexities(self) -> np.ndarray:
        """Return the perplexity of each class, (C,); NaN where it has no tokens."""
        with np.errstate(invalid="ignore"):
            return np.exp(self.sums.sum(0) / self.counts.sum(0))

    def intervals(self, reference: "ClassLosses | None" = None) -> np.ndarray:
        """Return 95 % intervals of the perplexities, or of their ratios to those of another model: (2, C).

        Whole sequences are resampled, the same for all models, because tokens of one sequence are not independent.
        """
        losses = self._resample() - (0.0 if reference is None else reference._resample())
        present = ~np.isnan(losses)
        bounds = np.full((2, losses.shape[1]), np.nan)
        for column in np.flatnonzero(present.any(0)):
            bounds[:, column] = np.exp(np.percentile(losses[present[:, column], column], [2.5, 97.5]))
        return bounds

    def _resample(self) -> np.ndarray:
        """Return mean losses of resampled sequences, (RESAMPLES, C)."""
        number = len(self.sums)
        if not number:
            return np.full((RESAMPLES, self.sums.shape[1]), np.nan)
        draws = np.random.default_rng(0).multinomial(number, np.full(number, 1 / number), size=RESAMPLES)
        with np.errstate(invalid="ignore"):
            return (draws @ self.sums) / (draws @ self.counts)


@dataclass(frozen=True)
class MaskedText:
    """Text and its masks: tokens (T,), int64, and masked (T,), bool."""

    tokens: Tensor
    masked: Tensor

    @classmethod
    def of_stream(cls, stream: np.ndarray) -> "MaskedText":
        """Mask the first tokens of a stream of ids; masks are the same in every run."""
        tokens = torch.from_numpy(stream[:MAX_TOKENS].astype(np.int64))
        draws = torch.rand(MAX_TOKENS, generator=torch.Generator().manual_seed(1))
        return cls(tokens, draws[: len(tokens)] < MASKED_SHARE)

    @cached_property
    def digest(self) -> str:
        """Hash of tokens and masks."""
        return hashlib.sha256(self.tokens.numpy().tobytes() + self.masked.numpy().tobytes()).hexdigest()

    def sequences(self, length: int) -> Iterator[Tensor]:
        """Yield batches of sequences of n tokens, as indices into the text (B, n - 1); the last sequence is shorter."""
        width = length - 1
        full = len(self.tokens) // width * width
        yield from torch.arange(full).view(-1, width).split(max(1, BATCH_TOKENS // length))
        if full < len(self.tokens):
            yield torch.arange(full, len(self.tokens)).unsqueeze(0)

    def masked_inputs(self, task: Any, indices: Tensor) -> Tensor:
        """Return the token ids that a model of a fairseq task reads, (B, n), of one batch of ``sequences``."""
        ids = self.tokens[indices].masked_fill(self.masked[indices], task.mask_idx)
        return F.pad(ids, (1, 0), value=task.source_dictionary.bos())

    @torch.no_grad()
    def token_losses(self, roberta: Any, length: int) -> Tensor:
        """Return the loss of a model, as fairseq's hub interface, at each masked token in nats: (N,)."""
        roberta.eval()
        losses = [torch.zeros(0)]
        for indices in self.sequences(length):
            masked = self.masked[indices]
            if masked.any():
                tokens = self.masked_inputs(roberta.task, indices).to(roberta.device)
                positions = F.pad(masked, (1, 0)).to(roberta.device)
                logits = roberta.model(tokens, masked_tokens=positions, padded=False)[0].float().cpu()
                losses.append(F.cross_entropy(logits, self.tokens[indices][masked], reduction="none"))
        return torch.cat(losses)

    def class_losses(self, losses: Tensor, length: int) -> ClassLosses:
        """Sum losses (N,) of ``token_losses`` by sequence and copy distance, without those of frequent tokens."""
        batches = ((self.tokens[indices].numpy(), self.masked[indices].numpy()) for indices in self.sequences(length))
        distances = np.concatenate([copy_distances(*batch) for batch in batches])
        frequent = torch.bincount(self.tokens)[self.tokens] > MAX_FREQUENCY * len(self.tokens)
        sequences = self.masked.nonzero().flatten().numpy() // (length - 1)
        rare = ~frequent[self.masked].numpy()
        return ClassLosses.of_tokens(
            losses.double().numpy()[rare], distances[rare], sequences[rare], class_limits(length)
        )


def token_stream(corpus: Path, split: str) -> np.ndarray:
    """Return the ids of all items of a split of a prepared corpus, one after another, read as they are needed.

    Raises:
        FileNotFoundError: the corpus does not have the split.
    """
    dictionary = load_dictionary(corpus / DICTIONARY_FILE)
    dataset = data_utils.load_indexed_dataset(str(corpus / split), dictionary, dataset_impl="mmap")
    if dataset is None:
        raise FileNotFoundError(f"{corpus} has no {split} split")
    return np.memmap(corpus / f"{split}.bin", dtype=dataset._index.dtype, mode="r")
