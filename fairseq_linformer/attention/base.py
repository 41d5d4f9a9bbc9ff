"""The contract that every attention mechanism keeps, and the registry that names them.

Dimensions: B batch, n sequence length, d embedding, h heads, d_h = d / h.
Nothing under ``attention/`` imports fairseq: each mechanism can be read, tested, timed and exported alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from ..errors import UserError, check
from .blocks import into_blocks, leading
from .sdpa import attend


class AttentionConfig(Protocol):
    """What a mechanism may read of the model's configuration (``LinformerRobertaConfig``), resolved and validated."""

    encoder_layers: int
    encoder_embed_dim: int
    encoder_attention_heads: int
    attention_dropout: float
    max_positions: int
    projection: str
    projection_init: str | None  # None where there is no choice
    projection_multiplier: float | None
    projected_length: list[int]  # one per layer
    adaptive_length: bool
    sharing: str
    freeze_projection: bool


LARGEST = 2**20  # of an integer option, unless it says otherwise: above all that counts positions

# What a user may give for an option that can differ per layer. OmegaConf has no type for "a number or a list of them",
# so at run time it is Any, which fairseq reads as text from the command line; spread_over_layers checks it.
if TYPE_CHECKING:
    PerLayer: TypeAlias = int | str | list[int] | None
else:
    PerLayer = Any


def option(
    default: Any,
    help: str,
    *,
    recipe: bool = False,
    largest: int = LARGEST,
    per_layer: bool = False,
    multiple: int = 1,
) -> Any:
    """A field of a dataclass of options.

    Args:
        default: its value where the user gives none.
        help: what ``fairseq-train --help`` shows.
        recipe: it says how a model is trained or run, not what the model is: a run that starts from a checkpoint
            does not take it from there.
        largest: of an integer, the largest value.
        per_layer: it may differ per layer. The user gives a ``PerLayer``; the mechanism reads a list[int].
        multiple: of such an option, see ``spread_over_layers``.
    """
    metadata = {"help": help, "recipe": recipe, "largest": largest, "per_layer": per_layer, "multiple": multiple}
    return field(default=default, metadata=metadata)


def spread_over_layers(name: str, value: PerLayer, layers: int, multiple: int = 1) -> list[int]:
    """The value of an option in each layer, from what the user gave.

    Args:
        name: of the option, for messages.
        value: a number, a list of them (as text: 256,128), or FIRST..LAST, evenly spaced over the layers.
        layers: how many there are.
        multiple: numbers between FIRST and LAST are rounded to a multiple of it.

    Raises:
        UserError: it is none of these.
    """
    text = str(value).strip("[]")
    spaced = ".." in text
    try:
        numbers = [int(number) for number in text.split(".." if spaced else ",")]
    except ValueError:
        numbers = []
    readable = len(numbers) == 2 if spaced else bool(numbers)
    check(name, value, readable, "a number, one per layer (256,128,…) or FIRST..LAST")
    if not spaced:
        check(name, value, len(numbers) in (1, layers), f"one number or {layers}, one per layer")
        return numbers * layers if len(numbers) == 1 else numbers
    first, last = numbers
    divisible = first % multiple == 0 and last % multiple == 0
    check(name, value, divisible, f"FIRST..LAST where both are multiples of {multiple}")
    between = (first + (last - first) * layer / max(1, layers - 1) for layer in range(layers))
    return [multiple * round(number / multiple) for number in between]


@dataclass
class Options:
    """A mechanism's own options, by default none: numbers, booleans and strings, each made by ``option``.

    The field ``window`` of the mechanism ``longformer`` is the model's option ``longformer_window``. A value that a
    mechanism cannot work with is refused in ``validate``.
    """

    SMALL: ClassVar[tuple[dict[str, Any], ...]] = ({},)  # what the contract suite tries, at 15 positions, d = 12

    def validate(self, config: AttentionConfig, prefix: str) -> None:
        """Checks the values with ``check``; an option's name there is `prefix` and the name of its field.

        Raises:
            UserError: a value cannot work.
        """


class Attention(nn.Module, ABC):
    """Bidirectional self-attention over a batch of sequences: the four linear maps, and what mechanisms share.

    Contract, held by one test suite over the whole registry:

    * ``forward(x, padding_mask, first_values)`` takes x (B, n, d) and a boolean mask (B, n), True where a position is
      padding, or None; it returns (B, n, d). Padding stands on the right.
    * Once ``add_value_residual`` was called it takes ``first_values`` (B, n, d), the first layer's, and where it uses
      its values V it uses u V + w V_1: ``values`` gives them.
    * The output at real positions does not depend on padded ones, on their number or on the other rows of the batch.
      The output at padded positions is finite and otherwise free.
    * n is any length from 1 to ``max_positions``; the encoder refuses longer ones.
    * Attention dropout applies to the attention weights, in training mode only. A mechanism that never has them
      (``HAS_WEIGHTS``) is not built with any.
    """

    Options: ClassVar[type[Options]] = Options  # set by register_attention, as is the name
    name: ClassVar[str]
    HAS_WEIGHTS: ClassVar[bool] = True
    USES_PROJECTION: ClassVar[bool] = False  # whether it reads the options of E and F, which are validated if so
    INPUT_MAPS: ClassVar[tuple[str, ...]] = ("k_proj", "v_proj", "q_proj")  # those that it has, in fairseq's order

    k_proj: nn.Linear
    v_proj: nn.Linear
    q_proj: nn.Linear
    value_mix: nn.Parameter | None

    def __init__(self, embed_dim: int, num_heads: int, dropout: float, **before_out_proj: nn.Module):
        """Adds the linear maps, and `before_out_proj`, modules of the mechanism that stand before the last map.

        The order is that of fairseq's own code, because optimizers keep their state by the order of parameters.
        """
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        for name in Attention.INPUT_MAPS:
            linear = nn.Linear(embed_dim, embed_dim)  # drawn even if left out: seeds keep their meaning
            if name in self.INPUT_MAPS:
                self.add_module(name, linear)
        for name, module in before_out_proj.items():
            self.add_module(name, module)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.register_parameter("value_mix", None)

    @classmethod
    def build_layers(cls, config: AttentionConfig) -> list["Attention"]:
        """Builds the attention of every layer, all at once, so that layers can share parameters."""
        options = cls.read_options(config)
        return [cls.build(config, **cls.arguments(config, options, layer)) for layer in range(config.encoder_layers)]

    @classmethod
    def build(cls, config: AttentionConfig, **arguments: Any) -> "Attention":
        """Builds the attention of one layer from the sizes and the constructor's arguments after these."""
        return cls(config.encoder_embed_dim, config.encoder_attention_heads, config.attention_dropout, **arguments)

    @classmethod
    def arguments(cls, config: AttentionConfig, options: Any, layer: int) -> dict[str, Any]:
        """The constructor's arguments after the sizes, for one layer, numbered from 0.

        They are the mechanism's own (validated) options; a mechanism that takes others extends this.
        """
        values = ((own, getattr(options, own.name)) for own in fields(options))
        return {own.name: value[layer] if own.metadata["per_layer"] else value for own, value in values}

    @classmethod
    def read_options(cls, config: AttentionConfig) -> Any:
        """The mechanism's own options: defaults where the configuration has None, lists where they are per layer."""
        values: dict[str, Any] = {}
        for name, own in cls.option_fields():
            given = getattr(config, name, None)
            value: Any = own.default if given is None else given
            if own.metadata["per_layer"]:
                value = spread_over_layers(name, value, config.encoder_layers, own.metadata["multiple"])
            values[own.name] = value
        return cls.Options(**values)

    @classmethod
    def option_fields(cls) -> Iterator[tuple[str, Field]]:
        """The mechanism's own options by their names in the model's configuration."""
        return ((cls.prefix() + own.name, own) for own in fields(cls.Options))

    @classmethod
    def prefix(cls) -> str:
        """What stands before the names of the mechanism's own options: ``long_short_`` for long-short."""
        return cls.name.replace("-", "_") + "_"

    def finish_initialisation(self) -> None:
        """Sets what starts from other parameters. The model calls it again once it has drawn all linear maps anew."""

    def upgrade_state_dict_named(self, state: dict[str, Tensor], name: str) -> None:
        """Adds, in place, what the checkpoint of another mechanism or of an earlier version lacks.

        fairseq calls it before the parameters are compared with the model's, and loaded.

        Args:
            state: parameters and buffers of the whole checkpoint.
            name: of this module there.
        """

    def add_value_residual(self) -> None:
        """From now on ``forward`` mixes the first layer's values into its own; ``values`` says how."""
        self.value_mix = nn.Parameter(torch.empty(2))
        self.reset_value_mix()

    def reset_value_mix(self) -> None:
        """Sets both weights of a value residual to their start."""
        if self.value_mix is not None:
            nn.init.constant_(self.value_mix, 0.5)  # not fill_: transformers sees to it that this spares loaded weights

    @abstractmethod
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        """Maps (B, n, d) to (B, n, d); see the class for the contract."""

    def values(self, x: Tensor, first_values: Tensor | None) -> Tensor:
        """V = X W_v + b, (B, n, d) -> (B, n, d); with a value residual u V + w V_1, ``value_mix`` being (u, w).

        V_1 (B, n, d) are the values of the first layer (ResFormer with learned weights, Zhou et al. 2024, arXiv
        2410.17897). Both weights start at 1/2. It costs B n d, and in projected attention F V_1.
        """
        return self.with_first_values(self.v_proj(x), first_values)

    def with_first_values(self, values: Tensor, first_values: Tensor | None) -> Tensor:
        """Values of any shape and the first layer's of the same one, mixed; without a value residual the former."""
        if self.value_mix is None or first_values is None:
            return values
        own, first = self.value_mix
        return own * values + first * first_values

    def project(self, x: Tensor, first_values: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: (B, n, d) -> three times (B, n, d)."""
        return self.q_proj(x), self.k_proj(x), self.values(x, first_values)

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, n, d) -> (B, h, n, d_h)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def join_heads(self, heads: Tensor) -> Tensor:
        """(B, h, n, d_h) -> (B, n, d), joined and projected."""
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    @staticmethod
    def real_positions(x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """(B, n), True where a position is no padding."""
        return x.new_ones(x.shape[:2], dtype=torch.bool) if padding_mask is None else ~padding_mask

    @staticmethod
    def zero_padding(x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """(B, n, d) with zeros at padded positions."""
        return x if padding_mask is None else x.masked_fill(padding_mask.unsqueeze(-1), 0.0)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """softmax(Q K^T / sqrt(d_h)) V, in training with dropout on the weights.

        Args:
            queries: (B, h, n, d_h).
            keys, values: (B, h, m, d_h), m keys of whatever kind.
            attn_mask: boolean, broadcast to (B, h, n, m), True where a query attends to a key; None for everywhere.

        Returns:
            (B, h, n, d_h).
        """
        return attend(queries, keys, values, attn_mask, self.dropout if self.training else 0.0)

    def attend_in_blocks(self, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor, size: int) -> Tensor:
        """Queries in N blocks of b, each with keys of its own: blocks attend as the rows of a larger batch do.

        Args:
            queries: (B, n, d).
            keys, values: (B N, h, m, d_h).
            attn_mask: boolean, (B, N, m), True for the keys that a block attends to.
            size: b.

        Returns:
            (B, h, n, d_h).
        """
        blocks = into_blocks(queries, size).flatten(0, 1)  # (B N, b, d)
        heads = self.attend(self.split_heads(blocks), keys, values, attn_mask.flatten(0, 1)[:, None, None, :])
        positions = heads.transpose(1, 2).flatten(0, 1).unflatten(0, (queries.size(0), -1))  # (B, N b, h, d_h)
        return leading(positions, queries.size(1), dim=1).transpose(1, 2)

    def softmax_attention(
        self, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        """``attend``, heads joined and projected: (B, n, d)."""
        return self.join_heads(self.attend(queries, keys, values, attn_mask))


ATTENTIONS: dict[str, type[Attention]] = {}

AttentionClass = TypeVar("AttentionClass", bound=type[Attention])


def register_attention(name: str, options: type[Options] = Options) -> Callable[[AttentionClass], AttentionClass]:
    """Class decorator: registers a mechanism, with its own options, as ``attention=name``.

    Raises:
        UserError: the name is taken.
    """

    def register(cls: AttentionClass) -> AttentionClass:
        if name in ATTENTIONS:
            raise UserError(f"attention={name} is registered already, by {ATTENTIONS[name].__name__}")
        ATTENTIONS[name] = cls
        cls.name, cls.Options = name, options
        return cls

    return register


def get_attention(name: str) -> type[Attention]:
    """The mechanism of that name.

    Raises:
        UserError: there is none; the message lists those that there are.
    """
    if name not in ATTENTIONS:
        raise UserError(f"attention={name} is not known; choose from {', '.join(sorted(ATTENTIONS))}")
    return ATTENTIONS[name]
