"""Text files into a folder that fairseq's masked_lm task trains on.

example:
  python scripts/prepare_corpus.py --train books/ more.txt.xz --valid held_out.txt --out data/books --vocab-size 8000

Files are plain text in UTF-8, or such text as .gz or .xz; a folder stands for all .txt, .gz and .xz files below it,
and - for standard input. Each line is a training item; a blank line, or the end of a file, ends a document. The folder
appears under its name when it is complete: repeat a command that was interrupted.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..data.prepare.corpus import DEFAULT_SAMPLE_CHARACTERS, DEFAULT_VOCAB_SIZE, prepare_corpus
from ..training.launch import command_line, override
from .arguments import make_parser
from .program import program


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--train", metavar="FILE", nargs="+", type=Path, required=True, help="text to train on")
    add("--valid", metavar="FILE", nargs="+", type=Path, required=True, help="text to validate on")
    add("--out", metavar="DIR", type=Path, required=True, help="folder to make; must not exist, or be empty")
    spm = "use this sentencepiece model, with the dict.txt beside it if any, or that of a prepared folder or a run"
    add("--spm", metavar="MODEL|DIR", type=Path, help=spm)
    add("--gpt2-bpe", metavar="DIR", type=Path, help="use encoder.json and vocab.bpe there, and dict.txt if any")
    add("--vocab-size", metavar="N", type=int, help=f"pieces to train otherwise (default {DEFAULT_VOCAB_SIZE})")
    letters = "make every letter and ASCII character a piece, however rare, up to a tenth of the vocabulary"
    add("--cover-letters", action="store_true", help=letters)
    add(
        "--sample-characters",
        metavar="N",
        type=int,
        help=f"train the pieces on at most this many characters (default {DEFAULT_SAMPLE_CHARACTERS:,})",
    )
    add("--seed", metavar="N", type=int, default=1, help="seed of that sample, at least 0 (default 1)")
    add("--workers", metavar="N", type=int, help="processes that encode (default: one per core)")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(words)
    with program():
        prepare_corpus(**vars(arguments))
        print("next:", command_line("pretrain/tiny_512", override("task.data", arguments.out)))
