"""GLUE tasks, from the official files, into folders that fairseq's sentence_prediction task trains on.

examples:
  python scripts/prepare_glue.py --source glue_data --tasks SST-2,MRPC --tokenizer data/books --out data/tasks
  python scripts/prepare_glue.py --source https://dl.fbaipublicfiles.com --tokenizer runs/books --out data/tasks

The source is a folder with one folder per task, an archive of such a folder (zip, tar.*), or the address of the
official downloads or of a mirror with the same paths (checked by checksum, kept in the user's cache). The official
train set becomes the split train, the dev set valid (MNLI: matched valid, mismatched valid1), the test set test
(without labels). Texts are encoded like those that the model was pretrained on. They are not shortened: training does
that. Tasks that the folder already holds, with the same vocabulary, are left as they are.

The tokenizer is that of a prepared corpus, a checkpoint (runs/x/checkpoint_best.pt) or a run's folder (runs/x): the one
beside the checkpoint where there is a dict.txt, else that of the data that it was trained on. Or it is a sentencepiece
model, with the dict.txt beside it if there is one.
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..checkpoints.reading import find_tokenizer
from ..data.prepare.glue import DOWNLOADS, glue_folder, known_task, read_glue
from ..data.prepare.labelled_folder import write_labelled
from ..data.summary import SUMMARY_FILE
from ..data.tasks import TASKS
from ..data.tokenizer import DICTIONARY_FILE, Tokenizer, load_dictionary, load_tokenizer
from ..data.unknown_pieces import GIVEN_REMEDY, Unknown
from ..system.files import check_data_path
from .arguments import comma_list, make_parser
from .program import program, typed


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--source", metavar="DIR|ARCHIVE|URL", required=True, help="where the official files are")
    add(
        "--tasks",
        metavar="A,B,…",
        type=comma_list(str),
        help=f"default: those of {','.join(DOWNLOADS)} that the source holds; small letters will do",
    )
    from_where = "the corpus that the model was pretrained on, the model (checkpoint or run's folder), or a .model file"
    add("--tokenizer", metavar="DIR|FILE", type=Path, required=True, help=from_where)
    add("--out", metavar="DIR", type=Path, required=True, help="folder for one folder per task")
    return parser.parse_args(words)


def is_prepared(folder: Path, tokenizer: Tokenizer) -> bool:
    """Whether an earlier command has prepared the task in `folder` with the same vocabulary."""
    complete = (folder / SUMMARY_FILE).is_file()
    return complete and load_dictionary(folder / DICTIONARY_FILE).symbols == tokenizer.dictionary.symbols


def _found(folder: Path, tasks: Sequence[str], all_needed: bool) -> list[str]:
    """The tasks whose files are all there.

    Raises:
        FileNotFoundError: none is there, or `all_needed` and one is not; the message has what each lacks.
    """
    missing = {}
    for task in tasks:
        try:
            read_glue(folder, task)  # which reads no row yet
        except FileNotFoundError as error:
            missing[task] = str(error)
    if missing and (all_needed or len(missing) == len(tasks)):
        raise FileNotFoundError("; ".join(missing.values()))
    if missing:
        print("not prepared, as the source does not hold them:", *(f"  {why}" for why in missing.values()), sep="\n")
    return [task for task in tasks if task not in missing]


def prepare_glue(source: str, tasks: Sequence[str] | None, tokenizer: Path, out: Path) -> None:
    """Prepares the tasks, or those of the source where None are named."""
    asked = list(dict.fromkeys(map(known_task, tasks or DOWNLOADS)))
    check_data_path(out)  # before anything is downloaded
    loaded = load_tokenizer(find_tokenizer(tokenizer))
    done = [task for task in asked if is_prepared(out / task, loaded)]
    for task in done:
        print(f"{task}: already prepared in {out / task}")
    unknown = Unknown()
    left = [task for task in asked if task not in done]
    with glue_folder(source, left) as folder:
        found = _found(folder, left, all_needed=tasks is not None)
        for task in found:
            splits = read_glue(folder, task)
            rows = {split: read.examples for split, read in splits.items()}
            summary = write_labelled(out / task, TASKS[task], rows, loaded)
            unknown.update(summary.unknown, task)
            print(task, *summary.lines(), *(read.report(split) for split, read in splits.items()), sep="\n")
    for line in unknown.warning(GIVEN_REMEDY):
        print(line)
    trained = ",".join(task for task in asked if task in {*done, *found} and TASKS[task].trained_as is None)
    if trained:
        print(f"next: {typed('finetune')} --checkpoint CHECKPOINT --data {shlex.quote(str(out))} --tasks {trained}")


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(words)
    with program():
        prepare_glue(**vars(arguments))
