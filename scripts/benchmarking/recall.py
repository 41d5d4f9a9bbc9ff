"""Masked associative recall: rows of key-value pairs, and the training and testing of a small model on them.

The task is the multi-query associative recall of Arora et al. 2023 (arXiv 2312.04927), made bidirectional: pairs and
queries stand at random places of a row, in any order, and the value of a query is masked.

    noise  key 3  value 7  noise  noise  key 5  <mask>  key 5  value 1  key 3  <mask>  noise
                                                     = 1                            = 7

Which value belongs to which key is drawn anew for every row, so that there is nothing to remember between rows. A
model that sees which values a row holds, and not whose they are, brings back about 1 / D of them.

Dimensions: B rows, n positions, D pairs, Q queries, d embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_linformer.config import ResolvedConfig
from fairseq_linformer.errors import check

from .small_model import TEST_SEED, SmallTrainer, build_model, configure_model

MODEL = ["_name=linformer_roberta_tiny", "encoder_layers=2", "encoder_embed_dim=128", "encoder_ffn_embed_dim=128"]
MODEL += ["encoder_attention_heads=2", "encoder_normalize_before=true", "local_conv=3", "sharing=layerwise"]
MODEL += ["dropout=0", "attention_dropout=0"]
TOKENS = 1024  # of each update, at least one row
TESTED = 1024  # queries, at least, for each number of pairs
FIRST = 4  # number of the first key in the dictionary, after fairseq's own symbols


@dataclass(frozen=True)
class Task:
    """The rows that a model is trained and tested on.

    Args:
        length: n, at least 16. Half of a row are queries, Q = n / 4; a key may be asked for several times, or not.
        pairs: D, at most n / 4; a batch has one of them, drawn at random. There are as many keys, as many symbols of
            noise, and twice as many values, as the largest D.

    Raises:
        UserError: a number is out of its range.
    """

    length: int
    pairs: tuple[int, ...]

    def __post_init__(self) -> None:
        check("length", self.length, self.length >= 16, "at least 16")
        for pairs in self.pairs:
            most = self.length // 4
            check("pairs", pairs, 1 <= pairs <= most, f"from 1 to {most}, a quarter of n={self.length}")

    @property
    def keys(self) -> int:
        """How many keys there are: their numbers begin at ``FIRST``, then come values, noise and <mask>."""
        return max(self.pairs)

    @property
    def mask(self) -> int:
        """The number of <mask>."""
        return FIRST + 4 * self.keys

    @property
    def queries(self) -> int:
        """Q."""
        return self.length // 4

    def draw(self, rows: int, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of D = `pairs` pairs and Q queries, each of two neighbouring positions, and noise.

        Returns:
            Tokens (B, n); the masked positions (B, n); and the values that belong there, (B Q,), row by row.
        """
        keys = FIRST + torch.rand(rows, self.keys, generator=generator).argsort(1)[:, :pairs]  # each once
        values = FIRST + self.keys + torch.randint(2 * self.keys, (rows, pairs), generator=generator)
        asked = torch.randint(pairs, (rows, self.queries), generator=generator)
        # Pairs come first, then queries, then noise: things to lay out in a random order, the first two 2 long.
        twos = pairs + self.queries
        order = torch.rand(rows, self.length - twos, generator=generator).argsort(1)
        lengths = torch.where(order < twos, 2, 1)
        starts = torch.empty_like(order).scatter_(1, order, lengths.cumsum(1) - lengths)
        stored, query = starts[:, :pairs], starts[:, pairs:twos]
        noise = self.mask - self.keys, self.mask
        tokens = torch.randint(*noise, (rows, self.length), generator=generator)
        tokens.scatter_(1, stored, keys).scatter_(1, stored + 1, values)
        tokens.scatter_(1, query, keys.gather(1, asked)).scatter_(1, query + 1, self.mask)
        masked = tokens == self.mask
        answers = torch.zeros_like(tokens).scatter_(1, query + 1, values.gather(1, asked))
        return tokens, masked, answers[masked]


def configure(overrides: Sequence[str], length: int) -> ResolvedConfig:
    """The model's configuration from Hydra-style overrides of ``MODEL``, as ``configure_model`` takes them."""
    return configure_model(MODEL, overrides, length)


class Trainer(SmallTrainer):
    """A model, its optimizer, and the batches of one seed.

    Args:
        task: what is drawn.
        config: of the model.
        rate: the learning rate after the warm-up; it then falls linearly to zero.
        seed: of weights and batches.
        updates: of the whole training.
        device: as in ``SmallTrainer``.
    """

    def __init__(self, task: Task, config: ResolvedConfig, rate: float, seed: int, updates: int, device: str = "cpu"):
        self.task = task
        dictionary = Dictionary()
        for number in range(FIRST, task.mask):
            dictionary.add_symbol(f"symbol{number}")
        dictionary.add_symbol("<mask>")
        super().__init__(build_model(config, dictionary, seed), rate, seed, updates, device)

    def loss(self) -> Tensor:
        number = int(torch.randint(len(self.task.pairs), (), generator=self.generator))
        rows = max(1, TOKENS // self.task.length)
        logits, answers = self._draw(rows, self.task.pairs[number], self.generator)
        return F.cross_entropy(logits, answers)

    def _draw(self, rows: int, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What the model says of new rows, (B Q, symbols), and what is right, (B Q,)."""
        tokens, masked, answers = (own.to(self.device) for own in self.task.draw(rows, pairs, generator))
        return self.model(tokens, masked_tokens=masked, padded=False)[0], answers

    @torch.no_grad()
    def recall(self) -> dict[int, float]:
        """The share of values brought back by D, on the same rows for every model and seed."""
        self.model.eval()
        generator = torch.Generator().manual_seed(TEST_SEED)
        shares = {}
        for pairs in self.task.pairs:
            logits, answers = self._draw(-(-TESTED // self.task.queries), pairs, generator)
            shares[pairs] = float((logits.argmax(-1) == answers).double().mean())
        return shares
