"""Declaration of options, and the part of the model's configuration that a mechanism reads."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

from ..errors import check


class AttentionConfig(Protocol):
    """Resolved and validated configuration that a mechanism reads besides its own options."""

    encoder_layers: int
    encoder_embed_dim: int
    encoder_attention_heads: int
    attention_bias: bool
    attention_dropout: float
    max_positions: int
    positions: str
    rotary_base: float
    rotary_share: float
    projection: str
    projection_init: str | None  # None if there is no choice
    projection_multiplier: float | None
    projected_length: list[int]  # one per layer
    adaptive_length: bool
    sharing: str
    freeze_projection: bool


# An option that can differ per layer. OmegaConf has no type for "a number or a list of them", so at run time it is
# Any, which fairseq reads as text from the command line; spread_over_layers checks it.
if TYPE_CHECKING:
    PerLayer: TypeAlias = int | str | list[int] | None
else:
    PerLayer = Any


def option(
    default: Any,
    help: str,
    *,
    training_only: bool = False,
    smallest: int | None = None,
    per_layer: bool = False,
    multiple: int = 1,
) -> Any:
    """Declare an option as a field of a dataclass.

    Args:
        default: the value if the user gives none.
        help: the text of ``fairseq-train --help``.
        training_only: the option does not change the model: a run does not read it from its initial checkpoint.
        smallest: the lower bound of an integer.
        per_layer: the option may differ per layer. The user gives a ``PerLayer``; the mechanism reads a list[int].
        multiple: of such an option, see ``spread_over_layers``.
    """
    metadata = {"help": help, "training_only": training_only, "smallest": smallest}
    return field(default=default, metadata={**metadata, "per_layer": per_layer, "multiple": multiple})


def spread_over_layers(name: str, value: PerLayer, layers: int, multiple: int) -> list[int]:
    """Return the value of an option in each layer.

    Args:
        name: of the option, for messages.
        value: a number, a list of them (as text: 256,128), or FIRST..LAST, evenly spaced over the layers.
        layers: their number.
        multiple: numbers between FIRST and LAST are rounded to a multiple of it.

    Raises:
        UserError: the value is none of these.
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
    interpolated = (first + (last - first) * layer / max(1, layers - 1) for layer in range(layers))
    return [multiple * round(number / multiple) for number in interpolated]


def check_width(name: str, width: int) -> None:
    """Reject a convolution width that is neither 0 (none) nor odd."""
    check(name, width, width == 0 or (width > 0 and width % 2 == 1), "0 (none) or an odd width")


OptionsClass = TypeVar("OptionsClass", bound="Options")


@dataclass
class Options:
    """Options of a mechanism, by default none: numbers, booleans and strings, each declared by ``option``.

    The model has them under the same names: each begins with the name of its mechanism.
    """

    TEST_CASES: ClassVar[tuple[dict[str, Any], ...]] = ({},)  # of the contract suite, at 15 positions, d = 12

    @classmethod
    def read(cls: type[OptionsClass], config: Any) -> OptionsClass:
        """Return the options of a configuration: defaults replace None, and options per layer are lists."""
        values: dict[str, Any] = {}
        for declared in fields(cls):
            value: Any = getattr(config, declared.name, None)
            value = declared.default if value is None else value
            if declared.metadata["per_layer"]:
                value = spread_over_layers(declared.name, value, config.encoder_layers, declared.metadata["multiple"])
            values[declared.name] = value
        return cls(**values)

    def kind_of_layer(self, layer: int) -> str | None:
        """Return the kind of a layer, numbered from 0, if layers differ in kind: pruning preserves it."""
        return None

    def length_defaults(self, max_positions: int) -> dict[str, Any]:
        """Return defaults that follow from the longest sequence, by option; a lengthened model keeps them."""
        return {}

    def validate(self, config: AttentionConfig) -> None:
        """Check the values with ``check``; a mechanism extends this.

        Raises:
            UserError: a value is invalid.
        """
        for declared in fields(self):
            value, smallest = getattr(self, declared.name), declared.metadata["smallest"]
            for number in value if declared.metadata["per_layer"] else [value]:
                check(declared.name, number, smallest is None or number >= smallest, f"at least {smallest}")
