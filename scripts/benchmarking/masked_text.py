"""Losses at the same masked tokens of a text, however long the rows are that it is cut into.

Rows are cut as fairseq's ``masked_lm`` cuts them: n - 1 tokens of the text after <s>, whatever documents they are of.
The masks belong to positions of the text, so that models of different n, or one model with rows of different lengths,
have the same tokens to predict.

Beside the loss of a token stands how far from it, in its row, the same token stands unmasked.

Dimensions: T tokens of the text, N of them masked, B rows, n tokens of a row with <s>.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary, data_utils
from fairseq.models.roberta import RobertaHubInterface
from torch import Tensor

from fairseq_linformer.data.dictionaries import DICTIONARY_FILE, load_dictionary
from fairseq_linformer.errors import UserError

from .losses_by_distance import LossesByDistance, answer_distances, octaves

SHARE = 0.25  # of the tokens are masked, each by <mask>
TOKENS = 2**19  # of the text at most
BATCH_TOKENS = 4096  # at least one row
# Limits of the first classes of distance: near_and_far's window of 128 reaches 64 to 191 positions to a side, so that
# what is at most 64 away is always in it, and what is more than 192 away never is.
WINDOW = (64, 192)
# Of the text: a token that is more frequent is left out. Commas and the like stand near nearly every place, and a model
# guesses them without looking there.
COMMONEST = 5e-4


@dataclass(frozen=True)
class MaskedText:
    """A text, and which of its tokens are masked.

    Attributes:
        tokens: (T,) int64.
        masked: (T,) bool.
    """

    tokens: Tensor
    masked: Tensor

    @classmethod
    def of_stream(cls, stream: np.ndarray) -> "MaskedText":
        """The first ids of a stream, at most ``TOKENS``; a position's mask is the same whenever it is drawn."""
        tokens = torch.from_numpy(stream[:TOKENS].astype(np.int64))
        return cls(tokens, torch.rand(TOKENS, generator=torch.Generator().manual_seed(1))[: len(tokens)] < SHARE)

    @cached_property
    def digest(self) -> str:
        """Of tokens and masks."""
        return hashlib.sha256(self.tokens.numpy().tobytes() + self.masked.numpy().tobytes()).hexdigest()

    @cached_property
    def rare(self) -> np.ndarray:
        """Which masked tokens are at most ``COMMONEST`` of the text, (N,) bool."""
        often = torch.bincount(self.tokens)[self.tokens] > COMMONEST * len(self.tokens)
        return ~often[self.masked].numpy()

    def rows(self, length: int) -> Iterator[Tensor]:
        """The text in rows of `length`, as places in it, (B, n - 1); a shorter row, alone, where the text ends."""
        width = length - 1
        whole = len(self.tokens) // width * width
        yield from torch.arange(whole).view(-1, width).split(max(1, BATCH_TOKENS // length))
        if whole < len(self.tokens):
            yield torch.arange(whole, len(self.tokens)).unsqueeze(0)

    @torch.no_grad()
    def token_losses(self, roberta: RobertaHubInterface, length: int) -> Tensor:
        """The loss in nats at each masked token, (N,), in the order of the text.

        Args:
            roberta: a model for rows of `length` at least; in evaluation mode afterwards.
            length: n of the rows that it is given.
        """
        roberta.eval()
        shown = self.tokens.masked_fill(self.masked, roberta.task.mask_idx)
        start = roberta.task.source_dictionary.bos()
        losses = [torch.zeros(0)]
        for places in self.rows(length):
            wanted = self.masked[places]
            if wanted.any():
                inputs = F.pad(shown[places], (1, 0), value=start).to(roberta.device)
                asked = F.pad(wanted, (1, 0)).to(roberta.device)
                logits = roberta.model(inputs, masked_tokens=asked, padded=False)[0].float().cpu()
                losses.append(F.cross_entropy(logits, self.tokens[places][wanted], reduction="none"))
        return torch.cat(losses)

    def distances(self, length: int) -> np.ndarray:
        """How far from each masked token, (N,), the same token stands unmasked in its row of `length`."""
        rows = ((self.tokens[places].numpy(), self.masked[places].numpy()) for places in self.rows(length))
        return np.concatenate([answer_distances(*row) for row in rows])

    def by_distance(self, losses: Tensor, length: int) -> LossesByDistance:
        """Losses at the masked tokens that are ``rare``, by distance.

        Args:
            losses: as ``token_losses`` gives them, (N,).
            length: that they were measured with.
        """
        rows = self.masked.nonzero().flatten().numpy() // (length - 1)
        kept, distances, rows = (own[self.rare] for own in (losses.double().numpy(), self.distances(length), rows))
        return LossesByDistance.of(kept, distances, rows, octaves(WINDOW, length))


def perplexity(losses: Tensor) -> float:
    """Of losses in nats, (N,); infinity beyond all floats."""
    return float(losses.double().mean().exp())


def token_stream(prefix: str, dictionary: Dictionary) -> np.ndarray:
    """The ids of all items of a dataset, one after another, (tokens,), read as they are asked for.

    Args:
        prefix: the dataset's path without .bin.
        dictionary: of the dataset.

    Raises:
        FileNotFoundError: there is no such dataset.
    """
    dataset = data_utils.load_indexed_dataset(prefix, dictionary, dataset_impl="mmap")
    if dataset is None:
        raise FileNotFoundError(f"there is no dataset {prefix}")
    return np.memmap(f"{prefix}.bin", dtype=dataset._index.dtype, mode="r")  # which holds nothing else


def read_split(corpus: Path, split: str, least: int) -> np.ndarray:
    """The ids of a split, one after another.

    Args:
        corpus: a prepared corpus without shards, or one of its shards.
        split: train or valid.
        least: the tokens that it must have.

    Raises:
        OSError: the corpus does not have the split.
        UserError: it is shorter.
    """
    stream = token_stream(str(corpus / split), load_dictionary(corpus / DICTIONARY_FILE))
    if len(stream) < least:
        raise UserError(f"{corpus}: {split} has {len(stream):,} tokens, fewer than the longest block, {least:,}")
    return stream
