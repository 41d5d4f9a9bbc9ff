"""A checkpoint as a folder that transformers loads, without fairseq.

    python scripts/export_hf.py runs/tiny_512 exported
    python scripts/export_hf.py runs/finetune/SST-2/seed1 sst-2

A pretrained checkpoint becomes a masked language model, a fine-tuned one a classifier with its labels. The folder holds
the weights, the tokenizer and a model card, and also the code of the model, which transformers runs with
trust_remote_code=True. A model that is RoBERTa as transformers knows it (attention=softmax, norms after each block, no
convolution) needs none. Before the folder appears, its logits are compared with those in fairseq.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .arguments import make_parser
from .program import program, quieten_transformers


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("checkpoint", metavar="FILE|DIR", type=Path, help="checkpoint, or its run's folder (the best)")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to make")
    text = "prepared folder with its vocabulary, and labels (default: the one that it was trained on)"
    parser.add_argument("--data", metavar="DIR", type=Path, help=text)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(words)
    with program():
        quieten_transformers()
        from ..hf.exporting import export  # here, so that --help needs no transformers

        for remark in export(**vars(arguments)):
            print(f"note: {remark}")
        print(f"{arguments.out}: written; its model card is README.md")
