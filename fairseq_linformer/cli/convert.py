"""Convert a trained model to another attention, such as Linformer's, or to longer texts.

    linformer convert runs/roberta --out converted model.attention=linformer
    linformer convert sentence-transformers/all-MiniLM-L6-v2 --out longer --long 4096
    linformer convert roberta-base --out converted model.attention=linformer model.linformer_window=128 \\
        model.projection=split-pool model.max_positions=4096
    fairseq-hydra-train --config-dir configs/pretrain --config-name continue task.data=data-bin/corpus \\
        checkpoint.finetune_from_model=converted/checkpoint.pt checkpoint.save_dir=runs/converted

The source is a checkpoint or a run's folder, of this package or of fairseq's RoBERTa, or a folder of transformers; a
name on the Hub of Hugging Face is downloaded. Parameters that both models have are copied. E and F are initialized to
means of segments or, with --fit-on, fitted to the output of each attention layer on sample text. The new model needs
some training before use: the last command above.

--long N selects options for texts of up to N tokens at linear cost: configs/pretrain/preset/long.yaml, with as many
projected keys as the source has positions. With learned positions, texts of at most the source's length have the same
outputs as before. Options at the end of the command have priority.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import EXTENSIONS, Parser, number
from .program import quieten_transformers, resolve_model

if TYPE_CHECKING:
    from ..model.options import ResolvedConfig


def add_arguments(parser: Parser) -> None:
    sources = "checkpoint, run's folder (its best checkpoint), folder of transformers, or name on the Hub"
    parser.add_shared("model", help=sources)
    parser.take_overrides("MODEL --out DIR [options] [model.NAME=VALUE ...]")
    parser.add_shared("--out")
    long = "options for N tokens at linear cost, not full attention; N must be a multiple of the source's positions"
    parser.add_argument("--long", metavar="N", type=number(int, minimum=1), help=long)
    longer = "embeddings of further positions: repeat the source's (tile) or stretch them over all (interpolate)"
    parser.add_argument("--positions", choices=EXTENSIONS, default="tile", help=longer)
    corpus = "prepared corpus to fit E and F, or Hedgehog's feature map"
    parser.add_argument("--fit-on", metavar="DIR", type=Path, help=corpus)


def run(model: Path, overrides: list[str], out: Path, positions: str, fit_on: Path | None, long: int | None) -> None:
    from ..checkpoint import UNTRAINED
    from ..convert import convert
    from ..sentence_modules import is_of_transformers

    source = resolve_model(model)
    if is_of_transformers(source):
        quieten_transformers()
    hub_name = model.as_posix() if source != model else None
    converted, report, errors, remarks, source_args = convert(source, out, overrides, positions, fit_on, hub_name, long)
    for remark in remarks:
        print(f"note: {remark}")
    if errors is not None:
        print("error of each layer's attention, before and after fitting:")
        for layer, (before, after) in enumerate(zip(*errors, strict=True)):
            print(f"  layer {layer}: {before:.3f} {after:.3f}")
    for title, names in (("starts anew", report.new), ("left out", report.left_out)):
        for name in dict.fromkeys(re.sub(r"\blayers\.\d+\.", "layers.*.", name) for name in names):
            print(f"{title}: {name.removeprefix('encoder.').removeprefix('sentence_encoder.')}")
    options = converted.args
    print(f"{out / UNTRAINED}: written: attention={options.attention}, {options.max_positions:,} positions")
    if long is not None and options.attention == "linformer" and options.projection == "mean-pool":
        print(_describe_long(options, positions == "tile" and options.local_conv >= source_args.local_conv))


def _describe_long(options: ResolvedConfig, same_neighbours: bool) -> str:
    """Describe the choices of --long and the expected results.

    `same_neighbours` is True if short texts have the source's positions and local convolution.
    """
    from ..attention.linformer import LinformerOptions

    config = LinformerOptions.read(options)
    k, neighbours = min(options.projected_length), config.linformer_window[0] // 2
    gain = "texts gain"
    if options.positions != "learned":
        gain = f"sink tokens and means have no {options.positions} positions, so all texts have new outputs, and gain"
    elif same_neighbours and options.adaptive_length:  # otherwise projected keys average several tokens
        gain = f"texts of at most {k} tokens have the same outputs as before; longer ones gain"
    return (
        f"each token attends to the first {config.linformer_sinks} tokens, {neighbours} or more neighbours on either "
        f"side, and {k} means of the text\n{gain} from a short training with the source as the teacher: "
        "recipe=encoder, or criterion=masked_lm_distillation"
    )
