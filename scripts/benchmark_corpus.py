"""Times prepare_corpus.py against sentencepiece to text plus fairseq-preprocess, on the same text and vocabulary.

example:
  python scripts/benchmark_corpus.py books.txt --megabytes 20 --workers 2

Both sides start from the same sentencepiece model and dict.txt and use the same number of workers. Training the model
is not timed; starting each program is. The datasets must be byte for byte the same: otherwise the exit status is 1.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarking.corpus_speed import compare_preparations

from fairseq_linformer.cli.program import program
from fairseq_linformer.system.processes import available_cores
from linformer_cli.arguments import make_parser, number


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add, count = parser.add_argument, number(int, least=1)
    add("text", type=Path, help="text file: plain, .gz or .xz")
    add("--megabytes", metavar="N", type=number(float, above=0), help="use about this much of it (default: all)")
    add("--vocab-size", metavar="N", type=count, default=8000, help="pieces (default 8000)")
    add("--workers", metavar="N", type=count, default=available_cores(), help="default: one per core")
    return parser.parse_args(words)


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        different = compare_preparations(**vars(arguments))
    if different:
        sys.exit(f"error: the datasets differ in {', '.join(different)}")
    print("datasets: byte for byte the same")
