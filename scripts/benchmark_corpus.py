"""Times prepare_corpus.py against sentencepiece to text plus fairseq-preprocess, on the same text and vocabulary.

example:
  python scripts/benchmark_corpus.py books.txt --megabytes 20 --workers 2

Both sides start from the same sentencepiece model and dict.txt and use the same number of workers. Training the model
is not timed; starting each program is. The datasets must be byte for byte the same: otherwise the exit status is 1.
"""

import argparse
import sys
from pathlib import Path

from benchmarking.corpus_speed import compare_preparations

from fairseq_linformer.errors import check, one_line_errors
from fairseq_linformer.system.processes import available_cores


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="text file: plain, .gz or .xz")
    parser.add_argument("--megabytes", metavar="N", type=float, help="use about this much of it (default: all)")
    parser.add_argument("--vocab-size", metavar="N", type=int, default=8000, help="pieces (default 8000)")
    parser.add_argument("--workers", metavar="N", type=int, default=available_cores(), help="default: one per core")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_arguments()
    with one_line_errors():
        check("--workers", arguments.workers, arguments.workers >= 1, "at least 1")
        different = compare_preparations(**vars(arguments))
    if different:
        sys.exit(f"error: the datasets differ in {', '.join(different)}")
    print("datasets: byte for byte the same")
