"""Prepare GLUE's tasks, from the official files, for fine-tuning.

examples:
  linformer prepare glue --source glue_data --tasks SST-2 MRPC --tokenizer data/books --out data/tasks
  linformer prepare glue --source https://dl.fbaipublicfiles.com --tokenizer runs/books --out data/tasks

The source is a folder with one folder per task, an archive of such a folder (zip, tar.*), or the address of the
official downloads or of a mirror with the same paths. Downloads are checked by checksum and kept in the user's cache.
The official train set becomes the split train, the dev set becomes valid, and the test set, which has no labels,
becomes test; MNLI's mismatched sets become valid1 and test1. Texts are encoded with the model's vocabulary, and
truncated only in training. Tasks that were already prepared with the same vocabulary are skipped.
"""

from collections.abc import Sequence
from pathlib import Path

from .arguments import Parser
from .program import print_next


def add_arguments(parser: Parser) -> None:
    parser.add_shared("--source", help="folder, archive or address of the official files")
    parser.add_shared("--tasks", help="tasks, in upper or lower case (default: all that the source holds)")
    parser.add_shared("--tokenizer")
    parser.add_shared("--out", help="folder for one folder per task")


def run(source: str, tasks: Sequence[str] | None, tokenizer: Path, out: Path) -> None:
    """Prepare the tasks; by default all tasks of the source."""
    from ..checkpoint import find_tokenizer
    from ..data.dictionaries import unknown_warning
    from ..data.prepare.glue import DOWNLOADS, SOURCES, find_task, glue_folder, read_glue
    from ..data.prepare.labelled_folder import write_labelled
    from ..data.subword_models import load_tokenizer
    from ..data.task_record import SUMMARY_FILE
    from ..data.tasks import TASKS
    from ..files import check_data_path

    selected = list(dict.fromkeys(map(find_task, tasks or DOWNLOADS)))
    check_data_path(out)  # before anything is downloaded
    encoder = load_tokenizer(find_tokenizer(tokenizer))
    prepared = [task for task in selected if (out / task / SUMMARY_FILE).is_file() and encoder.is_in(out / task)]
    for task in prepared:
        print(f"{task}: already prepared in {out / task}")
    unknown_shares: dict[str, float] = {}
    remaining = [task for task in selected if task not in prepared]
    with glue_folder(source, remaining) as folder:
        complete = _complete_tasks(folder, remaining, all_needed=tasks is not None, any_needed=not prepared)
        for task in complete:
            summary = write_labelled(out / task, TASKS[task], read_glue(folder, task), encoder)
            unknown_shares |= {f"{task} {split}": share for split, share in summary.unknown_shares.items()}
            official_rows = {split: file.rows for split, file in SOURCES[task].files.items()}
            print(task, *summary.lines(official_rows), sep="\n")
    for line in unknown_warning(unknown_shares):
        print(line)
    trainable = [task for task in selected if task in {*prepared, *complete} and TASKS[task].trained_as is None]
    print_next(out, trainable, tokenizer)


def _complete_tasks(folder: Path, tasks: Sequence[str], all_needed: bool, any_needed: bool) -> list[str]:
    """Return the tasks with complete files.

    Raises:
        FileNotFoundError: a task lacks files and `all_needed` is True, or all of them do and `any_needed` is True.
    """
    from ..data.prepare.glue import read_glue

    missing = {}
    for task in tasks:
        try:
            read_glue(folder, task)  # looks for the files; rows are read by iteration
        except FileNotFoundError as error:
            missing[task] = str(error)
    if missing and (all_needed or (any_needed and len(missing) == len(tasks))):
        raise FileNotFoundError("; ".join(missing.values()))
    if missing:
        print("not prepared, because the source lacks files:", *(f"  {text}" for text in missing.values()), sep="\n")
    return [task for task in tasks if task not in missing]
