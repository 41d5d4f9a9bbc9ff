"""Small classifiers of long rows: the model and its training (scripts/long_documents.py)."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_linformer.config import ResolvedConfig

from .rows_of_text import PAD, Rows, TaskData
from .small_model import HEAD, SmallTrainer, build_model

EVALUATED = 16_384  # tokens of a batch without gradients


class Trainer(SmallTrainer):
    """A model with a classification head on ``<s>``, and the batches of one seed.

    Args:
        data: what it is trained and tested on.
        config: of the model.
        rate: the learning rate after the warm-up; it then falls linearly to zero.
        seed: of weights and batches. Rows are in a random order, all once before one is there again.
        updates: of the whole training.
        tokens: of an update, with padding; at least one row.
        device: as in ``SmallTrainer``.
    """

    def __init__(
        self,
        data: TaskData,
        config: ResolvedConfig,
        rate: float,
        seed: int,
        updates: int,
        tokens: int,
        device: str = "cpu",
    ):
        super().__init__(build_model(config, data.dictionary, seed, data.classes), rate, seed, updates, device)
        self.data = data
        self.batches = self._batches(max(1, tokens // data.train.tokens.size(1)))

    def _batches(self, rows: int) -> Iterator[Tensor]:
        """Numbers of rows, (rows,) each."""
        left = torch.empty(0, dtype=torch.int64)
        while True:
            while len(left) < rows:
                left = torch.cat([left, torch.randperm(len(self.data.train), generator=self.generator)])
            yield left[:rows]
            left = left[rows:]

    def _logits(self, tokens: Tensor) -> Tensor:
        """Of rows (B, n), without the padding that all of them have; (B, classes)."""
        longest = int((tokens != PAD).sum(1).max())
        shown = tokens[:, :longest].to(self.device)
        logits: Tensor = self.model(shown, features_only=True, classification_head_name=HEAD)[0]
        return logits

    def loss(self) -> Tensor:
        numbers = next(self.batches)
        labels = self.data.train.labels[numbers].to(self.device)
        return F.cross_entropy(self._logits(self.data.train.tokens[numbers]), labels)

    @torch.no_grad()
    def accuracy(self, rows: Rows) -> float:
        """The share of rows whose label is found."""
        self.model.eval()
        batches = rows.tokens.split(max(1, EVALUATED // rows.tokens.size(1)))
        found = torch.cat([self._logits(batch).argmax(-1) for batch in batches]).cpu()
        return float((found == rows.labels).double().mean())
