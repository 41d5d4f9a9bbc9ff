"""GLUE tasks, from the official files, into folders that fairseq's sentence_prediction task trains on.

examples:
  python scripts/prepare_glue.py --source glue_data --tasks SST-2,MRPC --tokenizer data/books --out data/glue
  python scripts/prepare_glue.py --source https://dl.fbaipublicfiles.com --tokenizer data/books --out data/glue

The source is a folder that holds a folder a task, an archive of one (zip, tar.*), or the address of the official
downloads, or of a mirror with the same paths (checked by checksum, kept in the user's cache). The official train set
becomes the split train, the dev set valid (MNLI: matched valid, mismatched valid1), the test set test (without labels).
Texts are encoded as those the model was pretrained on were; nothing is shortened, which is the training's work.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from fairseq_linformer.data.classification import write_classification
from fairseq_linformer.data.glue import TASKS, GlueSplit, glue_folder, read_glue
from fairseq_linformer.data.tokenizer import load_tokenizer
from fairseq_linformer.errors import one_line_errors
from fairseq_linformer.running import fine_tuning_command


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--source", metavar="DIR|ARCHIVE|URL", required=True, help="where the official files are")
    add("--tasks", metavar="A,B,…", default=",".join(TASKS), help=f"default: {','.join(TASKS)}")
    add("--tokenizer", metavar="DIR", type=Path, required=True, help="the corpus that the model was pretrained on")
    add("--out", metavar="DIR", type=Path, required=True, help="folder to make a folder a task in")
    return parser.parse_args()


def report(split: str, read: GlueSplit) -> str:
    """The rows of a split beside those of the official file."""
    count = f"{split}: {read.rows.read:,} rows"
    official = (
        "as the official file" if read.rows.read == read.official_rows else f"the official: {read.official_rows:,}"
    )
    broken = f", {read.rows.broken} broken ones left out" if read.rows.broken else ""
    return f"{count} ({official}{broken})"


def main(source: str, tasks: str, tokenizer: Path, out: Path) -> None:
    loaded = load_tokenizer(tokenizer)
    names = tasks.split(",")
    with glue_folder(source, names) as folder:
        for task in names:
            splits = read_glue(folder, task)
            rows = {split: read.examples for split, read in splits.items()}
            summary = write_classification(out / task, rows, loaded, TASKS[task].labels)
            print(task, *summary.lines(), *(report(split, read) for split, read in splits.items()), sep="\n")
            print("next:", fine_tuning_command(task.lower().replace("-", "_"), out / task))


if __name__ == "__main__":
    with one_line_errors():
        main(**vars(parse_arguments()))
