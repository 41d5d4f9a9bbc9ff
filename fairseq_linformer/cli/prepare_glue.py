"""What `linformer prepare glue` does: the tasks that a source holds, each into its folder."""

from collections.abc import Sequence
from pathlib import Path

from ..checkpoints.reading import find_tokenizer
from ..data.dictionaries import unknown_warning
from ..data.prepare.glue import DOWNLOADS, glue_folder, known_task, read_glue
from ..data.prepare.labelled_folder import write_labelled
from ..data.task_record import SUMMARY_FILE
from ..data.tasks import TASKS
from ..data.tokenizer import Tokenizer, load_tokenizer
from ..system.files import check_data_path
from .program import print_next


def is_prepared(folder: Path, tokenizer: Tokenizer) -> bool:
    """Whether an earlier command has prepared the task in `folder` with the same vocabulary and subword model."""
    return (folder / SUMMARY_FILE).is_file() and tokenizer.is_in(folder)


def _found(folder: Path, tasks: Sequence[str], all_needed: bool, some_needed: bool) -> list[str]:
    """The tasks whose files are all there.

    Raises:
        FileNotFoundError: one that is needed is not there; the message has what each lacks.
    """
    missing = {}
    for task in tasks:
        try:
            read_glue(folder, task)  # which reads no row yet
        except FileNotFoundError as error:
            missing[task] = str(error)
    if missing and (all_needed or (some_needed and len(missing) == len(tasks))):
        raise FileNotFoundError("; ".join(missing.values()))
    if missing:
        print("not prepared, as the source does not hold them:", *(f"  {why}" for why in missing.values()), sep="\n")
    return [task for task in tasks if task not in missing]


def run(source: str, tasks: Sequence[str] | None, tokenizer: Path, out: Path) -> None:
    """Prepares the tasks, or those of the source where None are named."""
    asked = list(dict.fromkeys(map(known_task, tasks or DOWNLOADS)))
    check_data_path(out)  # before anything is downloaded
    loaded = load_tokenizer(find_tokenizer(tokenizer))
    done = [task for task in asked if is_prepared(out / task, loaded)]
    for task in done:
        print(f"{task}: already prepared in {out / task}")
    unknown: dict[str, float] = {}
    left = [task for task in asked if task not in done]
    with glue_folder(source, left) as folder:
        found = _found(folder, left, all_needed=tasks is not None, some_needed=not done)
        for task in found:
            splits = read_glue(folder, task)
            rows = {split: read.examples for split, read in splits.items()}
            summary = write_labelled(out / task, TASKS[task], rows, loaded)
            unknown |= {f"{task} {split}": share for split, share in summary.unknown_shares.items()}
            print(task, *summary.lines(), *(read.report(split) for split, read in splits.items()), sep="\n")
    for line in unknown_warning(unknown):
        print(line)
    trained = [task for task in asked if task in {*done, *found} and TASKS[task].trained_as is None]
    print_next(out, trained, tokenizer)
