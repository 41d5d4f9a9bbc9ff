"""A trained model as the start of another: full attention becomes Linformer, or a model reads longer texts.

    python scripts/convert_roberta.py runs/roberta converted model.attention=linformer
    python scripts/convert_roberta.py roberta-base converted model.attention=linformer model.linformer_window=128 \\
        model.projection=split-pool model.max_positions=4096
    fairseq-hydra-train --config-dir configs/pretrain --config-name continue task.data=data-bin/corpus \\
        checkpoint.finetune_from_model=converted/checkpoint.pt checkpoint.save_dir=runs/converted

The source is a checkpoint or a run's folder, of this package or of fairseq's RoBERTa, or a folder of transformers; a
name on the Hub of Hugging Face is fetched. What both models have is copied. E and F start at the means of segments or,
with --fit-on, where they keep each layer's attention output best on sample text. The new model needs some training
before it is used: the last command above.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from ..checkpoints.reading import UNTRAINED
from ..conversion.convert import convert, is_of_transformers
from ..conversion.start import EXTENSIONS
from .arguments import make_parser
from .hub import here
from .program import program, quieten_transformers


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    help_of_source = "checkpoint, run's folder (the best), transformers' folder, or name on the Hub"
    add("source", metavar="FILE|DIR", type=Path, help=help_of_source)
    add("out", metavar="OUT", type=Path, help="folder to make")
    add("overrides", metavar="model.NAME=VALUE", nargs="*", help="what the new model has other than the source")
    longer = "how positions beyond the source's longest start: as copies of the others, or all between them (tile)"
    add("--positions", choices=EXTENSIONS, default="tile", help=longer)
    add("--fit-on", metavar="DIR", type=Path, help="prepared corpus to fit E and F on (projection=linear)")
    return parser.parse_intermixed_args(words)  # options of the model may follow the others


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(words)
    with program():
        named = arguments.source
        arguments.source = here(named)
        if is_of_transformers(arguments.source):
            quieten_transformers()
        on_the_hub = named.as_posix() if arguments.source != named else None
        model, started, errors = convert(**vars(arguments), name=on_the_hub)
        if errors is not None:
            print("error of each layer's attention, before and after fitting:")
            for layer, (before, after) in enumerate(zip(*errors, strict=True)):
                print(f"  layer {layer}: {before:.3f} {after:.3f}")
        for said, names in (("starts anew", started.new), ("left out", started.left_out)):
            for name in dict.fromkeys(re.sub(r"\blayers\.\d+\.", "layers.*.", name) for name in names):
                print(f"{said}: {name.removeprefix('encoder.').removeprefix('sentence_encoder.')}")
        options = model.args
        print(
            f"{arguments.out / UNTRAINED}: written: attention={options.attention}, {options.max_positions:,} positions"
        )
