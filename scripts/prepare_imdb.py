"""The IMDB reviews, as officially downloaded, into a folder that fairseq's sentence_prediction task trains on.

example:
  python scripts/prepare_imdb.py --source aclImdb_v1.tar.gz --tokenizer data/books --out data/imdb

The source is the archive (.tar.gz, also .tar.xz, .tar.bz2 or .tar), which is not unpacked to disk, or the folder
aclImdb. There is no official dev set: as in the papers, the test set becomes the split valid. Texts are encoded as
those the model was pretrained on were; nothing is shortened, which is the training's work.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from fairseq_linformer.data.classification import write_classification
from fairseq_linformer.data.imdb import read_imdb
from fairseq_linformer.data.tokenizer import load_tokenizer
from fairseq_linformer.errors import one_line_errors
from fairseq_linformer.running import fine_tuning_command


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--source", metavar="DIR|ARCHIVE", type=Path, required=True, help="the folder aclImdb, or its archive")
    add("--tokenizer", metavar="DIR", type=Path, required=True, help="the corpus that the model was pretrained on")
    add("--out", metavar="DIR", type=Path, required=True, help="folder to make; must not exist, or be empty")
    return parser.parse_args()


def main(source: Path, tokenizer: Path, out: Path) -> None:
    summary = write_classification(out, read_imdb(source), load_tokenizer(tokenizer))
    print(*summary.lines(), sep="\n")
    print("next:", fine_tuning_command("imdb", out))


if __name__ == "__main__":
    with one_line_errors():
        main(**vars(parse_arguments()))
