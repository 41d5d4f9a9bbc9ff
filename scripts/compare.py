#!/usr/bin/env python3
"""Pretrains variants of one small model at equal updates, over seeds, and compares their perplexities.

    python scripts/compare.py --data data-bin/python --out runs/compare \\
        --variant softmax model.attention=softmax --variant linformer model.attention=linformer \\
        --variant control model.projection=mean-pool model.projected_length=1

A variant is a name and what it changes in configs/pretrain/tiny_512.yaml, here with two layers of d=64, 2,048 tokens
per update and a quarter of them masked. Overrides after --all apply to every variant. Each variant is trained with
every learning rate and the first seed, and with the best of them and the other seeds. Perplexity is measured at
the same masked tokens of valid for every variant and seed, a quarter of them, each of them <mask>, in at most 400
batches of 8 rows; the last column compares with the first variant, seed by seed. Completed runs are not repeated.

Table and picture are OUT/perplexity.md and OUT/perplexity.png; the runs lie beside them, in OUT/NAME/lrRATE/seedN.
"""

import argparse
from collections.abc import Sequence

from benchmarking.options import comparison_parser, own_variants, parse_once_each
from benchmarking.plots import draw_variants
from benchmarking.variants import Comparison, as_table

from fairseq_linformer.cli.program import program
from fairseq_linformer.system.files import write_whole


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a ``Comparison``."""
    parser = comparison_parser(__doc__, out="runs/compare", updates=1500)
    variant = "a name, then Hydra's overrides"
    parser.add_argument("--variant", metavar="WORD", nargs="+", action="append", required=True, help=variant)
    parser.add_argument("--all", metavar="OVERRIDE", nargs="+", default=[], help="Hydra's overrides for every variant")
    arguments = parse_once_each(parser, words)
    own = own_variants(parser, arguments)
    arguments.variants = {name: [*arguments.all, *overrides] for name, overrides in own.items()}
    del arguments.all, arguments.variant
    return arguments


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        tuned = Comparison(**vars(arguments)).run()
        table = as_table(tuned, tuned[0], arguments.updates)
        write_whole(arguments.out / "perplexity.md", f"{table}\n")
        draw_variants(
            {one.name: list(one.perplexities.values()) for one in tuned},
            arguments.updates,
            arguments.out / "perplexity.png",
        )
        print(f"\n{table}")
