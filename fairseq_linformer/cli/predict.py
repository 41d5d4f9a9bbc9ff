"""Labels and probabilities from a fine-tuned checkpoint: for your texts, or for GLUE's test sets.

    python scripts/predict.py --checkpoint runs/SST-2 --input reviews.txt > predictions.tsv
    python scripts/predict.py --checkpoint runs/RTE --input pairs.tsv --text sentence1 --second sentence2
    python scripts/predict.py --runs runs/finetune --data data-bin/tasks --submission submission

Texts are lines of a .txt file, a column of a .csv or .tsv file with a header, a key of a .jsonl file, or the words of a
.conll file; - is standard input.
What is printed has a row for each, in their order, so none may be blank; all are read once before the first is
predicted. It is a table with tabs, or JSON lines (--to jsonl).
Several classes are separated by commas. A model of token labels reads words between spaces, or JSON lists of words, and
prints a word and its label per line, with a blank line after each text. Long texts are shortened as in training; words
that this cuts have the most frequent label, and are counted.

A submission holds the files of GLUE's leaderboard, checked and zipped: those of each task of scripts/finetune.py's
folder, from the run that is best on the dev set; AX from MNLI's.
"""

import argparse
import contextlib
import heapq
import itertools
import json
import operator
import shutil
import signal
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

from ..checkpoints.reading import checkpoint_file
from ..data.prepare.examples import Example
from ..data.prepare.table_formats import FORMATS, check_filled, read_rows
from ..data.task_record import Task
from ..data.tasks import TASKS
from ..errors import UserError
from ..finetune.prediction import Prediction, Predictor
from ..finetune.results import best_checkpoints
from ..finetune.submission import FILES, check_submission, check_test_set, write_submission_file
from ..system.files import staged_folder
from .arguments import make_parser, number
from .program import program


def predict(
    checkpoint: Path,
    source: str,
    data: Path | None = None,
    kind: str | None = None,
    text: str | None = None,
    second: str | None = None,
    top: int | None = None,
    to: str | None = None,
) -> None:
    """Prints the predictions for the texts of a file."""
    kind = kind or ("txt" if source == "-" else Path(source).suffix.lower().removeprefix("."))
    if kind not in FORMATS:
        raise UserError(f"{source} ends in none of .{', .'.join(FORMATS)}: --from names its format")
    if kind == "txt" and (text or second):
        raise UserError(f"--text and --second name columns or keys, but {source} is read as txt: lines of text")
    with contextlib.nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as stream:
        predictor = Predictor(checkpoint_file(checkpoint), data)
        if predictor.pairs and second is None:
            raise UserError(
                f"{checkpoint} predicts pairs: --second names the second text, of a .csv, .tsv or .jsonl file"
            )
        if second is not None and not predictor.pairs:
            raise UserError(f"--second {second}: {checkpoint} predicts single texts")
        of = predictor.record.kind
        if top is not None and of not in ("single-label", "multi-label"):
            raise UserError(f"--top {top}: {checkpoint} predicts {of}, without probabilities of classes")
        name = "standard input" if source == "-" else source
        columns = (kind, name, text or ("0" if kind == "conll" else "text"), second)
        with _to_read_twice(stream) as lines:
            check_filled(lines, *columns)
            lines.seek(0)
            _print(predictor, read_rows(lines, *columns), top, to)


@contextlib.contextmanager
def _to_read_twice(stream: BinaryIO) -> Iterator[BinaryIO]:
    """A file, or a temporary copy of what comes from a pipe."""
    if stream.seekable() and stream.tell() == 0:
        yield stream
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        copy.seek(0)
        yield copy


def _print(predictor: Predictor, rows: Iterator[Example], top: int | None, to: str | None) -> None:
    of = predictor.record.kind
    if of == "token-label":
        _print_words(predictor, rows, to)
        return
    predictions = predictor.texts(rows)
    for line in _as_json(predictions, of, top) if to == "jsonl" else _as_table(predictions, predictor.record, top):
        print(line)


def _as_table(predictions: Iterator[Prediction], task: Task, top: int | None) -> Iterator[str]:
    header = {"regression": "score", "multi-label": "labels"}.get(task.kind, "label")
    if top is None:
        yield "\t".join([header, *task.classes])
    else:
        ranks = range(1, min(top, len(task.classes)) + 1)
        yield "\t".join([header, *(f"{column}{rank}" for rank in ranks for column in ("class", "probability"))])
    for prediction in predictions:
        label = prediction.label if isinstance(prediction.label, str) else ",".join(prediction.label)
        cells = [f"{value:.4f}" for value in prediction.probabilities.values()]
        if top is not None:
            pairs = most_probable(prediction.probabilities, top).items()
            cells = [cell for name, value in pairs for cell in (name, f"{value:.4f}")]
        yield "\t".join([label, *cells])


def _as_json(predictions: Iterator[Prediction], kind: str, top: int | None) -> Iterator[str]:
    for prediction in predictions:
        if kind == "regression":
            yield json.dumps({"score": float(cast(str, prediction.label))})
        else:
            named = {"label" if kind == "single-label" else "labels": prediction.label}
            yield json.dumps({**named, "probabilities": most_probable(prediction.probabilities, top)})


def most_probable(probabilities: dict[str, float], top: int | None) -> dict[str, float]:
    """The `top` classes with the highest probabilities, the highest first; all in their own order for None."""
    if top is None:
        return probabilities
    return dict(heapq.nlargest(top, probabilities.items(), key=operator.itemgetter(1)))


def _print_words(predictor: Predictor, rows: Iterator[Example], to: str | None) -> None:
    """A word and its label per line, and a blank line after each row; or a JSON object per row."""
    words, again = itertools.tee(map(_in_words, rows))
    total = cut = 0
    for row, prediction in zip(words, predictor.texts(again), strict=True):
        total, cut = total + len(row.text), cut + prediction.cut
        if to == "jsonl":
            print(json.dumps({"words": row.text, "labels": prediction.label}))
        else:
            print(*map("\t".join, zip(row.text, prediction.label, strict=True)), "", sep="\n")
    if cut:
        print(f"{cut:,} of {total:,} words were cut, and have the most frequent label", file=sys.stderr)


def _in_words(row: Example) -> Example:
    return row if isinstance(row.text, tuple) else replace(row, text=tuple(row.text.split()))


def submit(runs: Path, data: Path, submission: Path) -> None:
    """Writes the files of a submission for every task of a folder of runs, and zips them when they are checked."""
    checkpoints = best_checkpoints(runs)
    found: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for name, (task, _) in FILES.items():
        trained = TASKS[task].trained_as or task
        if trained not in checkpoints:
            missing[name] = f"{runs} has no run of {trained}"
        elif not (data / task).is_dir():
            missing[name] = f"there is no {data / task}"
        else:
            check_test_set(data / task, name)  # now, not after an hour of predicting
            found[name] = checkpoints[trained]
    if not found:
        raise UserError(f"no task of GLUE has both a run in {runs} and its prepared data in {data}")
    with staged_folder(submission.absolute(), "submission.json") as (folder, mark):
        for name, checkpoint in found.items():
            task, split = FILES[name]
            predictions, _ = Predictor(checkpoint, data / task).split(split)
            write_submission_file(folder, name, [cast(str, prediction.label) for prediction in predictions])
        check_submission(folder)
        with zipfile.ZipFile(folder / "submission.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
            for name in found:
                zipped.write(folder / name, name)
        json.dump(found, mark, indent=1, default=str)
    print(f"{submission / 'submission.zip'}: {', '.join(found)}")
    if missing:
        print("The leaderboard takes whole submissions alone, and this one lacks:")
        print(*(f"{name}: {reason}" for name, reason in missing.items()), sep="\n")


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    texts = parser.add_argument_group("your texts")
    add = texts.add_argument
    add("--checkpoint", metavar="FILE|DIR", type=Path, help="fine-tuned, or its run's folder (checkpoint_best.pt)")
    add("--input", dest="source", metavar="FILE", help=f"texts: .{', .'.join(FORMATS)}, or - for standard input")
    add("--from", dest="kind", choices=FORMATS, help="format of the input (default: by its name; txt for -)")
    add("--text", metavar="NAME", help="column or key of the text (default: text)")
    add("--second", metavar="NAME", help="column or key of the second text, for pairs")
    text = "the N most probable classes with their probabilities, instead of all"
    add("--top", metavar="N", type=number(int, least=1), help=text)
    add("--to", choices=("tsv", "jsonl"), help="format of what is printed (default: tsv)")
    submission = parser.add_argument_group("GLUE's test sets")
    submission.add_argument("--runs", metavar="DIR", type=Path, help="a folder of scripts/finetune.py")
    submission.add_argument("--submission", metavar="DIR", type=Path, help="folder to make")
    text = "prepared task, for its vocabulary and labels (default: the training's); with --runs: a folder of tasks"
    parser.add_argument("--data", metavar="DIR", type=Path, help=text)
    arguments = parser.parse_args(words)
    given = {name for name, value in vars(arguments).items() if value is not None}
    own_texts = {"checkpoint", "source"} <= given and not given & {"runs", "submission"}
    if not own_texts and given != {"runs", "data", "submission"}:
        parser.error("give --checkpoint and --input, with what goes with them, or --runs, --data and --submission")
    return arguments


def main(words: Sequence[str] | None = None) -> None:
    options = {name: value for name, value in vars(parse_arguments(words)).items() if value is not None}
    with program():
        if "submission" in options:
            submit(**options)
        else:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends this program as it ends cat
            predict(**options)
