"""What `linformer convert` does."""

import re
from pathlib import Path

from ..attention.linformer import LinformerOptions
from ..checkpoints.reading import UNTRAINED
from ..checkpoints.sentence_modules import is_of_transformers
from ..conversion.convert import convert
from ..model.config import ResolvedConfig
from .fetching import here
from .program import quieten_transformers


def run(model: Path, overrides: list[str], out: Path, positions: str, fit_on: Path | None, long: int | None) -> None:
    """Writes the new checkpoint, and says what it took over."""
    source = here(model)
    if is_of_transformers(source):
        quieten_transformers()
    on_the_hub = model.as_posix() if source != model else None
    made, started, errors, remarks, old = convert(source, out, overrides, positions, fit_on, on_the_hub, long)
    for remark in remarks:
        print(f"note: {remark}")
    if errors is not None:
        print("error of each layer's attention, before and after fitting:")
        for layer, (before, after) in enumerate(zip(*errors, strict=True)):
            print(f"  layer {layer}: {before:.3f} {after:.3f}")
    for said, names in (("starts anew", started.new), ("left out", started.left_out)):
        for name in dict.fromkeys(re.sub(r"\blayers\.\d+\.", "layers.*.", name) for name in names):
            print(f"{said}: {name.removeprefix('encoder.').removeprefix('sentence_encoder.')}")
    options = made.args
    print(f"{out / UNTRAINED}: written: attention={options.attention}, {options.max_positions:,} positions")
    if long is not None and options.attention == "linformer" and options.projection == "mean-pool":
        same = positions == "tile" and options.local_conv >= old.local_conv  # a tap that is missing is a neighbour less
        print(_what_it_sees(options, same))


def _what_it_sees(options: ResolvedConfig, same: bool) -> str:
    """What --long chose, and what to expect of it; `same`: short texts have the positions and neighbours they had."""
    own = LinformerOptions.read(options)
    k, beside, fetched = min(options.projected_length), own.linformer_window[0] // 2, own.linformer_fetch[0]
    gain = "texts gain"
    if options.positions != "learned":
        which = f"with positions={options.positions} the first and the means have none"
        gain = f"{which}: no text is read as before; all gain"
    elif same and options.adaptive_length:  # else rows stand for several tokens
        gain = f"texts of at most {k} tokens are read as before; longer ones gain"
    segments = f", and {fetched} of the segments that these stand for" * (fetched > 0)
    return (
        f"each token sees the first {own.linformer_sinks}, {beside} or more neighbours on either side, and {k} "
        f"means of the text{segments}\n{gain} from a short training with the source as the teacher: recipe=encoder, or "
        "criterion=masked_lm_distillation"
    )
