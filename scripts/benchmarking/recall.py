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
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor, nn

from fairseq_linformer.attention import Attention
from fairseq_linformer.config import ResolvedConfig
from fairseq_linformer.errors import UserError, check
from fairseq_linformer.layer import LocalConvolution
from fairseq_linformer.model import LinformerRobertaEncoder, LinformerRobertaModel
from fairseq_linformer.resolve import resolve_config

MODEL = ["_name=linformer_roberta_tiny", "encoder_layers=2", "encoder_embed_dim=128", "encoder_ffn_embed_dim=128"]
MODEL += ["encoder_attention_heads=2", "encoder_normalize_before=true", "local_conv=3", "sharing=layerwise"]
MODEL += ["dropout=0", "attention_dropout=0"]
TOKENS = 1024  # of each update, at least one row
WARM_UP = 50  # updates
TESTED = 1024  # queries, at least, for each number of pairs
TEST_SEED = 2**32 - 1  # above all seeds of trainings; PyTorch takes a seed modulo 2^32
FIRST = 4  # number of the first key in the dictionary, after fairseq's own symbols
# The first weights of the local convolution and of the positions, as multiples of those that the encoder draws.
CONVOLUTION, POSITIONS = 3.0, 0.2


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
    """The model's configuration from Hydra-style overrides of ``MODEL``: ``model.attention=softmax``.

    Raises:
        UserError: an override is of something else than the model, is unknown, or cannot work.
    """
    for override in overrides:
        name, mark, value = override.partition("=")
        check(name, value, bool(mark) and name.startswith("model."), "model.OPTION=VALUE")
    own = [override.removeprefix("model.") for override in overrides]
    try:
        options = OmegaConf.from_dotlist([*MODEL, *own])
    except OmegaConfBaseException as error:
        raise UserError(f"{' '.join(overrides)}: {str(error).splitlines()[0]}") from error
    return resolve_config(options, length)


@torch.no_grad()
def build_model(task: Task, config: ResolvedConfig, seed: int) -> LinformerRobertaModel:
    """The model with weights drawn from a seed, larger than RoBERTa's.

    RoBERTa's standard deviation of 0.02 is d^-0.5 at d = 2,500. With it, with the encoder's own convolution and with
    positions as large as tokens, full attention took longer to tell which values a row holds than a run takes here.
    """
    dictionary = Dictionary()
    for number in range(FIRST, task.mask):
        dictionary.add_symbol(f"symbol{number}")
    dictionary.add_symbol("<mask>")
    torch.manual_seed(seed)
    model = LinformerRobertaModel(config, LinformerRobertaEncoder(config, dictionary))
    model.encoder.sentence_encoder.embed_positions.weight.mul_(POSITIONS)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.weight.size(1) ** -0.5)
        elif isinstance(module, LocalConvolution):
            module.conv.weight.mul_(CONVOLUTION)
    for module in model.modules():
        if isinstance(module, Attention):
            module.finish_initialisation()  # what starts from other weights
    return model


class Trainer:
    """A model, its optimizer, and the batches of one seed.

    Args:
        task: what is drawn.
        config: of the model.
        rate: the learning rate after ``WARM_UP`` updates; it then falls linearly to zero.
        seed: of weights and batches.
        updates: of the whole training.
    """

    def __init__(self, task: Task, config: ResolvedConfig, rate: float, seed: int, updates: int):
        self.task, self.updates = task, updates
        self.model = build_model(task, config, seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate, betas=(0.9, 0.98))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._factor)

    def _factor(self, update: int) -> float:
        left = (self.updates - update) / max(1, self.updates - WARM_UP)
        return max(0.0, min((update + 1) / WARM_UP, left))

    def train(self) -> None:
        """All updates."""
        self.model.train()
        for _ in range(self.updates):
            self.step()

    def step(self) -> None:
        """One update on a new batch."""
        number = int(torch.randint(len(self.task.pairs), (), generator=self.generator))
        rows = max(1, TOKENS // self.task.length)
        tokens, masked, answers = self.task.draw(rows, self.task.pairs[number], self.generator)
        logits = self.model(tokens, masked_tokens=masked, padded=False)[0]
        F.cross_entropy(logits, answers).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()

    @torch.no_grad()
    def recall(self) -> dict[int, float]:
        """The share of values brought back by D, on the same rows for every model and seed."""
        self.model.eval()
        generator = torch.Generator().manual_seed(TEST_SEED)
        shares = {}
        for pairs in self.task.pairs:
            tokens, masked, answers = self.task.draw(-(-TESTED // self.task.queries), pairs, generator)
            found = self.model(tokens, masked_tokens=masked, padded=False)[0].argmax(-1)
            shares[pairs] = float((found == answers).double().mean())
        return shares
