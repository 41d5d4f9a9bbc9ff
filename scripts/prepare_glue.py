"""GLUE tasks, from the official files, into folders that fairseq's sentence_prediction task trains on.

examples:
  python scripts/prepare_glue.py --source glue_data --tasks SST-2,MRPC --tokenizer data/books --out data/tasks
  python scripts/prepare_glue.py --source https://dl.fbaipublicfiles.com --tokenizer runs/books --out data/tasks

The source is a folder that holds a folder a task, an archive of one (zip, tar.*), or the address of the official
downloads, or of a mirror with the same paths (checked by checksum, kept in the user's cache). The official train set
becomes the split train, the dev set valid (MNLI: matched valid, mismatched valid1), the test set test (without labels).
Texts are encoded as those the model was pretrained on were; nothing is shortened, which is the training's work. Tasks
that the folder holds already, with the same vocabulary, are left as they are.

The tokenizer is that of a prepared corpus, a checkpoint (runs/x/checkpoint_best.pt) or a run's folder (runs/x): the one
beside the checkpoint where there is a dict.txt, else that of the data it was trained on. Or it is a sentencepiece model
itself, with the dict.txt beside it if there is one.
"""

import argparse
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from fairseq_linformer.data.prepare.glue import SOURCES, glue_folder, read_glue
from fairseq_linformer.data.prepare.labelled import write_labelled
from fairseq_linformer.data.tasks import SUMMARY_FILE, TASKS
from fairseq_linformer.data.tokenizer import (
    DICTIONARY_FILE,
    Tokenizer,
    load_dictionary,
    load_tokenizer,
)
from fairseq_linformer.errors import one_line_errors
from fairseq_linformer.system.files import check_data_path
from fairseq_linformer.training.launch import config_name


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--source", metavar="DIR|ARCHIVE|URL", required=True, help="where the official files are")
    add("--tasks", metavar="A,B,…", default=",".join(SOURCES), help=f"default: {','.join(SOURCES)}")
    from_where = "the corpus that the model was pretrained on, the model (checkpoint or run's folder), or a .model file"
    add("--tokenizer", metavar="DIR|FILE", type=Path, required=True, help=from_where)
    add("--out", metavar="DIR", type=Path, required=True, help="folder to make a folder a task in")
    return parser.parse_args()


def is_prepared(folder: Path, tokenizer: Tokenizer) -> bool:
    """Whether an earlier command, interrupted or for other tasks, has prepared a task with the same vocabulary."""
    complete = (folder / SUMMARY_FILE).is_file()
    return complete and load_dictionary(folder / DICTIONARY_FILE).symbols == tokenizer.dictionary.symbols


def main(source: str, tasks: str, tokenizer: Path, out: Path) -> None:
    check_data_path(out)  # before anything is downloaded
    loaded = load_tokenizer(tokenizer)
    names = tasks.split(",")
    with glue_folder(source, names) as folder:
        for task in names:
            if is_prepared(out / task, loaded):
                print(f"{task}: is prepared in {out / task}")
                continue
            splits = read_glue(folder, task)
            rows = {split: read.examples for split, read in splits.items()}
            summary = write_labelled(out / task, TASKS[task], rows, loaded)
            print(task, *summary.lines(), *(read.report(split) for split, read in splits.items()), sep="\n")
    trained = ",".join(config_name(task) for task in names if TASKS[task].trained_as is None)
    print(f"next: python scripts/finetune.py --checkpoint CHECKPOINT --data {shlex.quote(str(out))} --tasks {trained}")


if __name__ == "__main__":
    with one_line_errors():
        main(**vars(parse_arguments()))
