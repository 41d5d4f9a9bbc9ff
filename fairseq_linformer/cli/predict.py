"""Predict labels and probabilities of your texts, or of GLUE's test sets.

    linformer predict runs/SST-2 --input reviews.txt > predictions.tsv
    linformer predict runs/RTE --input pairs.tsv --text sentence1 --second sentence2
    linformer predict --runs runs/finetune --data data-bin/tasks --out submission

Texts are lines of a .txt file, a column of a .csv or .tsv file with a header, a key of a .jsonl file, or the words of a
.conll file; - is standard input.
The output has one row per text in the same order, as a table with tabs or as JSON lines (--to jsonl). No text may be
blank; all are checked before the first prediction.
Several classes are separated by commas. A model of token labels takes words between spaces, or JSON lists of words, and
prints a word and its label per line, with a blank line after each text. Long texts are truncated as in training;
truncated words get the most frequent label, and are counted.

A submission contains the files of GLUE's leaderboard, checked and zipped. For each task in the folder of `linformer
finetune` the run with the best dev score predicts; MNLI's run also predicts AX.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import operator
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from ..errors import UserError, join_truncated
from .arguments import FORMATS, Parser, number

if TYPE_CHECKING:
    from ..data.prepare.examples import Example
    from ..data.task_record import Task
    from ..finetune.prediction import Prediction, Predictor


def add_arguments(parser: Parser) -> None:
    parser.usage = "%(prog)s MODEL --input FILE [options]\n       %(prog)s --runs DIR --data DIR --out DIR"
    add = parser.add_argument
    parser.add_shared("model", nargs="?", help="fine-tuned checkpoint, or the folder of its run (its best checkpoint)")
    add("--input", metavar="FILE", help=f"texts: .{', .'.join(FORMATS)}, also .gz or .xz, or - for standard input")
    parser.add_shared("--from", choices=FORMATS, help="format of the input (default: by its name; txt for -)")
    parser.add_shared("--text")
    parser.add_shared("--second")
    top = "print only the N most probable classes with their probabilities"
    add("--top", metavar="N", type=number(int, minimum=1), help=top)
    precision = "auto: bf16 (matrix products in bfloat16) if the processor or GPU has instructions for it"
    add("--precision", choices=("float32", "bf16", "auto"), help=f"default: float32; {precision}")
    add("--to", choices=("tsv", "jsonl"), help="format of the output (default: tsv)")
    data = "prepared task with vocabulary and labels (default: that of the training); with --runs: a folder of tasks"
    parser.add_shared("--data", help=data)
    add("--runs", metavar="DIR", type=Path, help="folder of linformer finetune with GLUE's tasks, for a submission")
    parser.add_shared("--out", required=False, help="folder to make for the submission")


def run(**arguments: Any) -> None:
    """Print predictions, or write a submission."""
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if arguments.keys() == {"runs", "data", "out"}:
        submit(**arguments)
    elif {"model", "input"} <= arguments.keys() and not {"runs", "out"} & arguments.keys():
        predict(**arguments)
    else:
        raise UserError("give either MODEL and --input, or --runs, --data and --out without other options")


def predict(
    model: Path,
    input: str,
    data: Path | None = None,
    format: str | None = None,
    text: str | None = None,
    second: str | None = None,
    top: int | None = None,
    to: str | None = None,
    precision: str = "float32",
) -> None:
    """Print the predictions for the texts of a file."""
    from ..data.prepare.table import ENDINGS, check_filled, no_format, parse_rows, read_rows, suffix_of
    from ..data.prepare.text_files import unpacked
    from ..finetune.prediction import Predictor
    from ..processes import use_idle_cores

    use_idle_cores()
    path = Path(input)
    format = format or ("txt" if input == "-" else ENDINGS.get(suffix_of(path)))
    if format is None:
        raise no_format(path, ENDINGS)
    if format == "txt" and (text or second):
        raise UserError(f"--text and --second name columns or keys, but {input} is read as txt, which has none")
    if input != "-" and not path.exists():
        raise UserError(f"--input {input}: there is no such file")
    with contextlib.nullcontext(sys.stdin.buffer) if input == "-" else unpacked(path) as stream:
        predictor = Predictor(_checkpoint(model), data, bfloat16=_use_bfloat16(precision))
        if second is not None and not predictor.pairs:
            raise UserError(f"--second {second}: {model} predicts single texts")
        label_type = predictor.record.kind
        if top is not None and label_type not in ("single-label", "multi-label"):
            raise UserError(f"--top {top}: {model} predicts {label_type}, without probabilities of classes")
        name = "standard input" if input == "-" else input
        with _seekable(stream) as lines:
            table = {column for row in itertools.islice(parse_rows(lines, format, name), 1) for column in row.columns}
            lines.seek(0)
            prepared = [column if column in table else None for column in (*predictor.record.columns, None, None)]
            text, second = text or prepared[0], second or prepared[1]
            if predictor.pairs and second is None:
                raise UserError(f"{model} predicts pairs: --second names the second text, of a .csv, .tsv or .jsonl")
            columns = (format, name, text or ("0" if format == "conll" else "text"), second)
            check_filled(read_rows(lines, *columns), name, words=label_type == "token-label")
            lines.seek(0)
            _print(predictor, read_rows(lines, *columns), top, to)


def _use_bfloat16(precision: str) -> bool:
    """Return True for bf16, and for auto if there are instructions for bfloat16; print the choice of auto."""
    import torch

    from ..precision import bfloat16_instructions, describe_precision

    if precision != "auto":
        return precision == "bf16"
    on_gpu = torch.cuda.is_available()
    has_instructions = bfloat16_instructions(on_gpu) is not None
    print(describe_precision(has_instructions, on_gpu), file=sys.stderr)
    return has_instructions


def _checkpoint(model: Path) -> Path:
    """Return the checkpoint file of a path; unlike for other verbs, an error does not propose `linformer import`."""
    from ..checkpoint import checkpoint_file

    try:
        file = checkpoint_file(model)
    except UserError as error:
        hint = "predict takes a checkpoint; use this folder with transformers' pipeline"
        raise UserError(f"{model} is a folder of transformers: {hint}") from error
    if not file.is_file() and (runs := sorted(str(path.parent) for path in model.glob(f"*/**/{file.name}"))):
        raise UserError(f"{model} has no checkpoint: name one of its runs, {join_truncated(runs)}")
    return file


@contextlib.contextmanager
def _seekable(stream: BinaryIO) -> Iterator[BinaryIO]:
    """Yield a seekable file: the stream, or a temporary copy of a pipe."""
    if stream.seekable() and stream.tell() == 0:
        yield stream
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        copy.seek(0)
        yield copy


def _print(predictor: Predictor, rows: Iterator[Example], top: int | None, to: str | None) -> None:
    label_type = predictor.record.kind
    if label_type == "token-label":
        return _print_words(predictor, rows, to)
    predictions, record = predictor.texts(rows), predictor.record
    for line in _as_json(predictions, label_type, top) if to == "jsonl" else _as_table(predictions, record, top):
        print(line)
    if predictor.cut:
        print(f"{predictor.cut:,} texts were truncated to {predictor.longest:,} tokens", file=sys.stderr)


def _as_table(predictions: Iterator[Prediction], task: Task, top: int | None) -> Iterator[str]:
    header = {"regression": "score", "multi-label": "labels"}.get(task.kind, "label")
    if top is None:
        yield "\t".join([header, *task.classes])
    else:
        ranks = range(1, min(top, len(task.classes)) + 1)
        yield "\t".join([header, *(f"{column}{rank}" for rank in ranks for column in ("class", "probability"))])
    has_commas = any("," in name for name in task.classes)
    for prediction in predictions:
        label = prediction.label
        if not isinstance(label, str):
            label = json.dumps(label, ensure_ascii=False) if has_commas else ",".join(label)
        cells = [f"{value:.4f}" for value in prediction.probabilities.values()]
        if top is not None:
            classes = most_probable(prediction.probabilities, top).items()
            cells = [cell for name, value in classes for cell in (name, f"{value:.4f}")]
        yield "\t".join([label, *cells])


def _as_json(predictions: Iterator[Prediction], label_type: str, top: int | None) -> Iterator[str]:
    for prediction in predictions:
        if label_type == "regression":
            yield json.dumps({"score": float(cast(str, prediction.label))})
        else:
            label = {"label" if label_type == "single-label" else "labels": prediction.label}
            yield json.dumps({**label, "probabilities": most_probable(prediction.probabilities, top)})


def most_probable(probabilities: dict[str, float], top: int | None) -> dict[str, float]:
    """Return the `top` most probable classes by descending probability; None: all in the order of the task."""
    if top is None:
        return probabilities
    return dict(heapq.nlargest(top, probabilities.items(), key=operator.itemgetter(1)))


def _print_words(predictor: Predictor, rows: Iterator[Example], to: str | None) -> None:
    """Print a word and its label per line and a blank line after each text, or a JSON object per text."""
    from ..data.prepare.examples import WHITESPACE

    split_rows = (replace(row, text=tuple(row.text.split())) if isinstance(row.text, str) else row for row in rows)
    rows_to_print, rows_to_predict = itertools.tee(split_rows)
    total = cut = 0
    for row, prediction in zip(rows_to_print, predictor.texts(rows_to_predict), strict=True):
        total, cut = total + len(row.text), cut + prediction.cut
        if to == "jsonl":
            print(json.dumps({"words": row.text, "labels": prediction.label}))
        else:
            cells = (WHITESPACE.sub(" ", word) for word in row.text)  # JSON words may have tabs and line breaks
            print(*map("\t".join, zip(cells, prediction.label, strict=True)), "", sep="\n")
    if cut:
        print(f"{cut:,} of {total:,} words were truncated, and have the most frequent label", file=sys.stderr)


def submit(runs: Path, data: Path, out: Path) -> None:
    """Write the files of a submission for every task of a folder of runs, and zip them."""
    from ..data.tasks import TASKS
    from ..files import staged_folder
    from ..finetune.prediction import Predictor
    from ..finetune.report import FILES, best_checkpoints, check_test_set, write_submission_file

    checkpoints = best_checkpoints(runs)
    selected: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for name, (task, _) in FILES.items():
        trained = TASKS[task].trained_as or task
        if trained not in checkpoints:
            missing[name] = f"{runs} has no run of {trained}"
        elif not (data / task).is_dir():
            missing[name] = f"there is no {data / task}"
        else:
            check_test_set(data / task, name)  # before hours of prediction
            selected[name] = checkpoints[trained]
    if not selected:
        raise UserError(f"no task of GLUE has both a run in {runs} and its prepared data in {data}")
    with staged_folder(out, "submission.json") as (folder, mark):
        for checkpoint, task in dict.fromkeys((checkpoint, FILES[name][0]) for name, checkpoint in selected.items()):
            Predictor(checkpoint, data / task, "cpu")  # raises errors before hours of prediction
        for name, checkpoint in selected.items():
            task, split = FILES[name]
            predictions, _ = Predictor(checkpoint, data / task).split(split)
            write_submission_file(folder, name, [cast(str, prediction.label) for prediction in predictions])
        with zipfile.ZipFile(folder / "submission.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
            for name in selected:
                zipped.write(folder / name, name)
        json.dump(selected, mark, indent=1, default=str)
    print(f"{out / 'submission.zip'}: {', '.join(selected)}")
    if missing:
        print("The leaderboard accepts complete submissions only. Missing are:")
        print(*(f"{name}: {reason}" for name, reason in missing.items()), sep="\n")
