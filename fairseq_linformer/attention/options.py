"""Options: how one is written, and what a mechanism reads of the model's configuration."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from ..errors import check


class AttentionConfig(Protocol):
    """What a mechanism may read of the model's configuration, resolved and validated, beside its own options."""

    encoder_layers: int
    encoder_embed_dim: int
    encoder_attention_heads: int
    attention_dropout: float
    max_positions: int
    positions: str
    rotary_base: float
    rotary_share: float
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
    smallest: int | None = None,
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
        smallest, largest: bounds of an integer.
        per_layer: it may differ per layer. The user gives a ``PerLayer``; the mechanism reads a list[int].
        multiple: of such an option, see ``spread_over_layers``.
    """
    bounds = {"smallest": smallest, "largest": largest}
    metadata = {"help": help, "recipe": recipe, "per_layer": per_layer, "multiple": multiple, **bounds}
    return field(default=default, metadata=metadata)


def spread_over_layers(name: str, value: PerLayer, layers: int, multiple: int) -> list[int]:
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


def check_sliding_window(name: str, window: int) -> None:
    """Refuses a sliding window that has not as many positions on either side, one at least."""
    check(name, window, window >= 2 and window % 2 == 0, "even and at least 2")


def check_width(name: str, width: int) -> None:
    """Refuses a width of a convolution that is neither 0, for none, nor odd."""
    check(name, width, width == 0 or (width > 0 and width % 2 == 1), "0 (none) or an odd width")


@dataclass
class Options:
    """A mechanism's own options, by default none: numbers, booleans and strings, each made by ``option``.

    They are options of the model as they stand: each begins with the name of its mechanism. A value beyond ``smallest``
    is refused; ``validate`` refuses what else a mechanism cannot work with.
    """

    SMALL: ClassVar[tuple[dict[str, Any], ...]] = ({},)  # what the contract suite tries, at 15 positions, d = 12

    @classmethod
    def read(cls, config: Any) -> Any:
        """The options of a configuration: defaults where it has None or nothing, lists where they are per layer."""
        values: dict[str, Any] = {}
        for own in fields(cls):
            given = getattr(config, own.name, None)
            value: Any = own.default if given is None else given
            if own.metadata["per_layer"]:
                value = spread_over_layers(own.name, value, config.encoder_layers, own.metadata["multiple"])
            values[own.name] = value
        return cls(**values)

    def kind_of_layer(self, layer: int) -> str | None:
        """What its number, counted from 0, makes of a layer; None where all are of one kind. Pruning must keep it.

        It is asked before ``validate``.
        """
        return None

    def following(self, max_positions: int) -> dict[str, Any]:
        """What follows from the longest sequence where it is left open, by name: a longer model keeps it."""
        return {}

    def validate(self, config: AttentionConfig) -> None:
        """Checks the values with ``check``; a mechanism extends this.

        Raises:
            UserError: a value cannot work.
        """
        for own in fields(self):
            value, smallest = getattr(self, own.name), own.metadata["smallest"]
            for number in value if own.metadata["per_layer"] else [value]:
                check(own.name, number, smallest is None or number >= smallest, f"at least {smallest}")
