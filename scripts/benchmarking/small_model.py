"""Small models of the package that a comparison trains from scratch in minutes: their weights and their training."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor, nn
from yaml import YAMLError

from fairseq_linformer.attention import Attention
from fairseq_linformer.errors import UserError, check
from fairseq_linformer.model.architecture import ARCHITECTURES
from fairseq_linformer.model.config import ResolvedConfig
from fairseq_linformer.model.parts import LocalConvolution
from fairseq_linformer.model.resolve import resolve_config
from fairseq_linformer.model.roberta import LinformerRobertaModel

TEST_SEED = 2**32 - 1  # above all seeds of trainings; PyTorch takes a seed modulo 2^32
WARM_UP = 50  # updates
EVALUATED = 16_384  # tokens of a batch without gradients
HEAD = "label"  # the name of a classification head
# The first weights of the local convolution and of the positions, as multiples of those that the encoder draws.
CONVOLUTION, POSITIONS = 3.0, 0.2


def base_model(embed_dim: int) -> list[str]:
    """The options of a small model of two layers, two heads, a feed-forward network of d and a local convolution."""
    sizes = [f"encoder_embed_dim={embed_dim}", f"encoder_ffn_embed_dim={embed_dim}", "encoder_layers=2"]
    sizes += ["encoder_attention_heads=2", "encoder_normalize_before=true", "local_conv=3", "sharing=layerwise"]
    return ["_name=linformer_roberta_tiny", *sizes, "dropout=0", "attention_dropout=0"]


def configure_model(base: Sequence[str], overrides: Sequence[str], length: int) -> ResolvedConfig:
    """The model's configuration from Hydra-style overrides of `base`: ``model.attention=softmax``.

    Raises:
        UserError: an override is of something else than the model, is unknown, or cannot work.
    """
    for override in overrides:
        name, mark, value = override.partition("=")
        check(name, value, bool(mark) and name.startswith("model."), "model.OPTION=VALUE")
    own = [override.removeprefix("model.") for override in overrides]
    try:
        options = OmegaConf.from_dotlist([*base, *own])
        architecture = str(options._name)
    except (OmegaConfBaseException, YAMLError) as error:
        said = "a value is not YAML" if isinstance(error, YAMLError) else str(error).splitlines()[0]
        raise UserError(f"{' '.join(overrides)}: {said}") from error
    check("model._name", architecture, architecture in ARCHITECTURES, f"one of {', '.join(ARCHITECTURES)}")
    return resolve_config(options, length)


@torch.no_grad()
def build_model(
    config: ResolvedConfig, dictionary: Dictionary, seed: int, classes: int | None = None
) -> LinformerRobertaModel:
    """The model with weights drawn from a seed, larger than RoBERTa's, and with a head ``HEAD`` for that many classes.

    RoBERTa's standard deviation of 0.02 is d^-0.5 at d = 2,500. With it, with the encoder's own convolution and with
    positions as large as tokens, full attention took longer to tell which values a row of the study recall of 0.2.0
    holds than a run took there.
    """
    torch.manual_seed(seed)
    model = LinformerRobertaModel.of_config(config, dictionary)
    if classes is not None:
        model.register_classification_head(HEAD, num_classes=classes)
    if config.positions == "learned":
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


@dataclass(frozen=True)
class Rows:
    """Rows of tokens, and what is asked of them.

    Attributes:
        tokens: (N, n).
        answers: (N,) labels of the rows, or (N, D) tokens that belong at their masks, in the order of positions.
        texts: the rows as words, where something reads them.
    """

    tokens: Tensor
    answers: Tensor
    texts: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.tokens)


class SmallTrainer(ABC):
    """A model, its optimizer, and what draws the batches of one seed.

    Args:
        model: with its first weights.
        rows: to train on.
        batch: how many of them an update has.
        rate: the learning rate after ``WARM_UP`` updates; it then falls linearly to zero.
        seed: of batches.
        updates: of the whole training.
        device: of the model and what it computes. Weights and batches are drawn on the CPU, the same for every device.
    """

    def __init__(
        self, model: LinformerRobertaModel, rows: Rows, batch: int, rate: float, seed: int, updates: int, device: str
    ):
        self.model, self.updates, self.device = model.to(device), updates, device
        self.rows, self.batch = rows, batch
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate, betas=(0.9, 0.98))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._factor)

    def _factor(self, update: int) -> float:
        left = (self.updates - update) / max(1, self.updates - WARM_UP)
        return max(0.0, min((update + 1) / WARM_UP, left))

    @abstractmethod
    def numbers(self) -> Tensor:
        """Of the rows of a new batch, (batch,)."""

    @abstractmethod
    def logits(self, tokens: Tensor) -> Tensor:
        """Of rows (B, n) on the device: a line for each answer, in their order."""

    @torch.no_grad()
    def share(self, rows: Rows) -> float:
        """The share of answers that are found."""
        self.model.eval()
        batches = rows.tokens.split(max(1, EVALUATED // rows.tokens.size(1)))
        found = torch.cat([self.logits(batch.to(self.device)).argmax(-1).cpu() for batch in batches])
        return float((found == rows.answers.flatten()).double().mean())

    def train(self) -> None:
        """All updates."""
        self.model.train()
        for _ in range(self.updates):
            self.step()

    def step(self) -> None:
        """One update on a new batch."""
        self.model.set_num_updates(self.schedule.last_epoch)  # some mechanisms draw random features anew
        numbers = self.numbers()
        tokens, answers = (own[numbers].to(self.device) for own in (self.rows.tokens, self.rows.answers))
        F.cross_entropy(self.logits(tokens), answers.flatten()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
