"""The IMDB reviews, as officially downloaded, into a folder that fairseq's sentence_prediction task trains on.

examples:
  python scripts/prepare_imdb.py --source aclImdb_v1.tar.gz --tokenizer data/books --out data/tasks/IMDB
  python scripts/prepare_imdb.py --source http://ai.stanford.edu/~amaas/data/sentiment --tokenizer runs/books \\
      --out data/tasks/IMDB

The source is the folder aclImdb or its parent, an archive of one (zip, tar.*), or the address below which the official
archive lies, or a mirror's (checked by checksum, kept in the user's cache). There is no official dev set: as in the
papers, the test set becomes the split valid. Texts are encoded as those the model was pretrained on were; nothing is
shortened, which is the training's work.

The tokenizer is that of a prepared corpus, a checkpoint (runs/x/checkpoint_best.pt) or a run's folder (runs/x): the one
beside the checkpoint where there is a dict.txt, else that of the data it was trained on. Or it is a sentencepiece model
itself, with the dict.txt beside it if there is one.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from fairseq_linformer.data.prepare.imdb import ADDRESS, imdb_folder, read_imdb
from fairseq_linformer.data.prepare.labelled import write_labelled
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.data.tokenizer import load_tokenizer
from fairseq_linformer.errors import one_line_errors
from fairseq_linformer.system.files import check_data_path
from fairseq_linformer.training.launch import fine_tuning_command


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--source", metavar="DIR|ARCHIVE|URL", required=True, help=f"where the reviews are; officially, {ADDRESS}")
    from_where = "the corpus that the model was pretrained on, the model (checkpoint or run's folder), or a .model file"
    add("--tokenizer", metavar="DIR|FILE", type=Path, required=True, help=from_where)
    add("--out", metavar="DIR", type=Path, required=True, help="folder to make; must not exist, or be empty")
    return parser.parse_args()


def main(source: str, tokenizer: Path, out: Path) -> None:
    check_data_path(out)  # before anything is downloaded
    loaded = load_tokenizer(tokenizer)
    with imdb_folder(source) as folder:
        splits = read_imdb(folder)
        rows = {split: read.examples for split, read in splits.items()}
        summary = write_labelled(out, TASKS["IMDB"], rows, loaded)
    print(*summary.lines(), *(read.report(split) for split, read in splits.items()), sep="\n")
    print("next:", fine_tuning_command("imdb", out))


if __name__ == "__main__":
    with one_line_errors():
        main(**vars(parse_arguments()))
