"""What `linformer convert` does."""

import re
from pathlib import Path

from ..checkpoints.reading import UNTRAINED
from ..conversion.convert import convert, is_of_transformers
from .hub import here
from .program import quieten_transformers


def run(model: Path, overrides: list[str], out: Path, positions: str, fit_on: Path | None) -> None:
    """Writes the new checkpoint, and says what it took over."""
    source = here(model)
    if is_of_transformers(source):
        quieten_transformers()
    on_the_hub = model.as_posix() if source != model else None
    made, started, errors = convert(source, out, overrides, positions, fit_on, on_the_hub)
    if errors is not None:
        print("error of each layer's attention, before and after fitting:")
        for layer, (before, after) in enumerate(zip(*errors, strict=True)):
            print(f"  layer {layer}: {before:.3f} {after:.3f}")
    for said, names in (("starts anew", started.new), ("left out", started.left_out)):
        for name in dict.fromkeys(re.sub(r"\blayers\.\d+\.", "layers.*.", name) for name in names):
            print(f"{said}: {name.removeprefix('encoder.').removeprefix('sentence_encoder.')}")
    options = made.args
    print(f"{out / UNTRAINED}: written: attention={options.attention}, {options.max_positions:,} positions")
