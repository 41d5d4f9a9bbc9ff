"""A folder of transformers as a checkpoint of fairseq, to train on from.

    python scripts/import_hf.py exported imported
    python scripts/import_hf.py roberta-base imported
    python scripts/finetune.py --checkpoint imported/checkpoint.pt --data data-bin/tasks --out runs/finetune

The folder is one that export_hf.py wrote, one that transformers saved after it, or a stock RoBERTa, which becomes
attention=softmax; a name on the Hub of Hugging Face is fetched. The checkpoint has the same weights, bit for bit, and
its dictionary and subword model beside it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .arguments import make_parser
from .hub import here
from .program import program, quieten_transformers


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "source", metavar="FOLDER", type=Path, help="of the model in transformers, or its name on the Hub"
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to make")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(words)
    with program():
        quieten_transformers()
        from ..checkpoints.reading import UNTRAINED
        from ..hf.importing import import_folder  # here, so that --help needs no transformers

        for remark in import_folder(here(arguments.source), arguments.out):
            print(f"note: {remark}")
        print(f"{arguments.out / UNTRAINED}: written")
