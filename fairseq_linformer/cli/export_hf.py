"""A checkpoint as a folder that transformers loads, without fairseq.

    python scripts/export_hf.py runs/tiny_512 exported
    python scripts/export_hf.py runs/finetune/SST-2/seed1 sst-2
    python scripts/export_hf.py runs/tiny_512 exported --push me/tiny-512 --dry-run

A pretrained checkpoint becomes a masked language model, a fine-tuned one a classifier with its labels. The folder holds
the weights, the tokenizer and a model card, and also the code of the model, which transformers runs with
trust_remote_code=True. A model that is RoBERTa as transformers knows it (attention=softmax, norms after each block, no
convolution) needs none. Before the folder appears, its logits are compared with those in fairseq.

--push uploads the folder to the Hugging Face Hub, with the token of hf auth login or HF_TOKEN. A folder that is there
already must be this very export, whose model card you may have edited, and is pushed as it is.
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
    text = "upload it to this model on the Hub, which is made if it is new"
    parser.add_argument("--push", metavar="[OWNER/]NAME", help=text)
    parser.add_argument("--private", action="store_true", help="if it is new, nobody else sees it")
    parser.add_argument("--dry-run", action="store_true", help="list what --push would upload, and upload nothing")
    arguments = parser.parse_args(words)
    if arguments.push is None and (arguments.private or arguments.dry_run):
        parser.error("--private and --dry-run go with --push")
    return arguments


def main(words: Sequence[str] | None = None) -> None:
    given = parse_arguments(words)
    with program():
        quieten_transformers()
        from ..hf.exporting import export  # here, so that --help needs no transformers
        from ..hf.pushing import check_is_export, check_target, push

        if given.push is not None:
            check_target(given.push, given.dry_run)
        if given.push is not None and given.out.is_dir() and any(given.out.iterdir()):
            check_is_export(given.checkpoint, given.out, given.data)
        else:
            for remark in export(given.checkpoint, given.out, given.data):
                print(f"note: {remark}")
            print(f"{given.out}: written; its model card is README.md")
        if given.push is not None:
            for line in push(given.out, given.push, given.private, given.dry_run):
                print(line)
