"""GLUE tasks, as officially downloaded, into folders that fairseq's sentence_prediction task trains on.

example:
  python scripts/prepare_glue.py --source glue_data --tasks SST-2 --tokenizer data/books --out data/glue

The official train set becomes the split train, the dev set valid, the test set test (without labels). Texts are
encoded as those the model was pretrained on were; nothing is shortened, which is the training's work.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from fairseq_linformer.data.classification import fine_tuning_command, write_classification
from fairseq_linformer.data.glue import TASKS, read_glue
from fairseq_linformer.data.tokenizer import load_tokenizer
from fairseq_linformer.errors import one_line_errors


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--source", metavar="DIR", type=Path, required=True, help="folder that holds a folder a task, such as SST-2")
    add("--tasks", metavar="TASK", nargs="+", default=list(TASKS), help=f"default: {' '.join(TASKS)}")
    add("--tokenizer", metavar="DIR", type=Path, required=True, help="the corpus that the model was pretrained on")
    add("--out", metavar="DIR", type=Path, required=True, help="folder to make a folder a task in")
    return parser.parse_args()


def main(source: Path, tasks: list[str], tokenizer: Path, out: Path) -> None:
    loaded = load_tokenizer(tokenizer)
    for task in tasks:
        summary = write_classification(out / task, read_glue(source, task), loaded)
        print(task, *summary.lines(), sep="\n")
        print("next:", fine_tuning_command(task.lower().replace("-", "_"), out / task))


if __name__ == "__main__":
    with one_line_errors():
        main(**vars(parse_arguments()))
