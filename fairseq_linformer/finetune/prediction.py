"""A fine-tuned model at work: rows in, labels and probabilities out, in batches of about one length."""

import csv
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import data_utils
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from torch import Tensor
from tqdm import tqdm

from ..data.prepare.examples import Example, encode_columns, encode_words
from ..data.targets import CUT, UNKNOWN, moved, usual_class
from ..data.task_record import Task, has_pairs
from ..data.tokenizer import load_tokenizer
from ..data.truncation import kept_tokens, limits
from ..errors import UserError, check, join_truncated
from ..model.hub import HubInterface
from ..model.roberta import LinformerRobertaModel
from ..system.files import write_whole
from ..training.text_prediction import TextPredictionTask, read_record
from .criterion import chosen, tags

CHUNK = 4096  # rows that are sorted by length together: little padding, little memory, and output soon


def batch_tokens(device: str) -> int:
    """Tokens of a batch, padding included: enough to fill a GPU with a model of base size.

    On a CPU fewer, for its caches and for less padding: than with 8,192, SST-2 takes a third less time, its padding
    falling from 13 to 4 %, and IMDB a sixth.
    """
    return 2048 if torch.device(device).type == "cpu" else 8192


@dataclass(frozen=True)
class Prediction:
    """What a model says of a row.

    Attributes:
        label: the class, or the score as text; of a multi-label task the classes, which may be none; for token labels
            the class of each word.
        probabilities: of each class by name; empty for scores and token labels.
        cut: words that truncation has cut, so that their class is the most frequent of the training set.
    """

    label: str | tuple[str, ...]
    probabilities: dict[str, float]
    cut: int = 0


class _Row(NamedTuple):
    """What the model reads, (tokens,), and for token labels where words begin in it, (words,)."""

    tokens: Tensor
    places: Tensor | None = None


class Predictor:
    """A checkpoint that was fine-tuned with ``text_prediction`` or fairseq's ``sentence_prediction``.

    Args:
        model: its file, or what ``from_pretrained`` makes of it.
        data: the prepared folder of a task with the vocabulary and the labels; by default the one that it was
            fine-tuned on.
        device: where it computes; by default the first GPU, or the CPU.

    Attributes:
        record: of the data's folder: the kind of label, the classes, what scores are multiplied by.
        labels: the classes by number, none where the model gives scores.
        pairs: whether a row is two texts.
        longest: tokens of a row that it reads.
        cut: rows that were longer, so far.

    Raises:
        FileNotFoundError: the checkpoint, or a file of the data's folder, is not there.
        UserError: the checkpoint cannot be read, was not fine-tuned, or does not fit the data's folder.
    """

    def __init__(self, model: Path | HubInterface, data: Path | None = None, device: str | None = None) -> None:
        hub = LinformerRobertaModel.load(model, data) if isinstance(model, Path) else model
        checkpoint = model if isinstance(model, Path) else Path(hub.cfg.checkpoint.save_dir)
        if not isinstance(hub.task, SentencePredictionTask):
            raise UserError(
                f"{checkpoint} was not fine-tuned here: its task is {hub.cfg.task._name}, not text_prediction; an "
                "imported classifier predicts in transformers"
            )
        self.task, cfg = hub.task, hub.task.cfg
        folder = Path(cfg.data)
        self.record = record_of(hub.task, checkpoint)
        self.labels = self.record.classes
        self.pairs = has_pairs(folder)
        if getattr(cfg, "truncation", None) == "random-crop":
            cfg.truncation = "head"  # as the task does outside train: no prediction depends on chance
        self.longest, self.cut = limits(cfg, cfg.max_positions)[0], 0
        self._tokenizer = load_tokenizer(folder)
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._model = hub.model.eval().to(self._device)

    def split(self, name: str) -> tuple[list[Prediction], list[str] | list[tuple[str, ...]] | None]:
        """The predictions for a split of the data's folder in its order, and the labels, where it has them.

        Raises:
            FileNotFoundError: the folder holds no such split.
        """
        folder = Path(self.task.cfg.data)
        if not (folder / "input0" / f"{name}.idx").is_file():
            raise FileNotFoundError(f"{folder} holds no split {name}: there is no input0/{name}.idx")
        self.task.load_dataset(name)
        dataset = self.task.dataset(name)
        targets = list[Any]()

        def rows() -> Iterator[_Row]:
            for number in range(len(dataset)):
                item = dataset[number]
                targets.append(item.get("target"))
                yield self._shortened(_Row(item["net_input.src_tokens"], item.get("places")))

        predictions = list(self._predict(rows(), total=len(dataset), desc=f"{folder.name} {name}", disable=None))
        if not targets or targets[0] is None:
            return predictions, None
        if self.record.kind == "token-label" and any(bool((target == UNKNOWN).any()) for target in targets):
            return predictions, None
        return predictions, [self._target(target) for target in targets]

    def texts(self, examples: Iterable[Example]) -> Iterator[Prediction]:
        """The predictions for texts, pairs of texts or rows of words, in their order; their labels are ignored.

        Raises:
            UserError: a row is empty, or not such as the model knows; the message starts with its `where`, or number.
        """
        # A bar among the predictions that are printed would be no help.
        return self._predict(self._rows(examples), disable=sys.stdout.isatty() or None)

    def _rows(self, examples: Iterable[Example]) -> Iterator[_Row]:
        examples, before = iter(examples), 0
        while chunk := list(itertools.islice(examples, CHUNK)):
            places: Iterable[Tensor | None]
            if self.record.kind == "token-label":
                columns, sizes = encode_words(chunk, self._tokenizer, where="row", before=before)
                starts = int(self.task.cfg.init_token is not None)
                places = (torch.from_numpy(np.cumsum(words) - words + starts) for words in sizes)
            else:
                columns = encode_columns(chunk, self._tokenizer, pairs=self.pairs, where="row", before=before)
                places = itertools.repeat(None, len(chunk))
            before += len(chunk)
            for texts, of_row in zip(zip(*columns, strict=True), places, strict=True):
                yield self._shortened(_Row(self._tokens(texts), of_row))

    def _tokens(self, texts: Sequence[np.ndarray]) -> Tensor:
        """<s> A </s>, or <s> A </s> </s> B </s>, as the task makes it from the ids of texts."""
        cfg = self.task.cfg
        ids: list[int] = []
        for start, text in zip((cfg.init_token, cfg.separator_token), texts, strict=False):
            ids += [] if start is None else [start]
            ids += [*text.tolist(), self.task.source_dictionary.eos()]
        return torch.tensor(ids)

    def _shortened(self, row: _Row) -> _Row:
        """The row as long as ``text_prediction`` allows; ``sentence_prediction`` has no such options: its head."""
        dictionary, cfg = self.task.source_dictionary, self.task.cfg
        kept = kept_tokens(row.tokens, *limits(cfg, cfg.max_positions), dictionary.bos(), dictionary.eos())
        self.cut += len(row.tokens) > self.longest
        return _Row(row.tokens[kept], None if row.places is None else moved(row.places, kept))

    def _predict(self, rows: Iterator[_Row], **bar: Any) -> Iterator[Prediction]:
        with tqdm(unit="row", **bar) as progress:
            while chunk := list(itertools.islice(rows, CHUNK)):
                name = self._tagged if self.record.kind == "token-label" else self._named
                yield from name(self._outputs(chunk, progress))

    @torch.inference_mode()
    def _outputs(self, rows: Sequence[_Row], progress: tqdm) -> list[Tensor]:
        """What the model gives for each row, computed from long to short.

        That is what the classification head does, (classes,); for token labels each word's class, CUT where it was cut,
        (words,).
        """
        outputs = [torch.empty(0)] * len(rows)
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row].tokens))
        head, pad = self.task.cfg.classification_head_name, self.task.source_dictionary.pad()
        most, start = batch_tokens(self._device), 0
        while start < len(rows):
            batch = order[start : start + max(1, most // len(rows[order[start]].tokens))]
            start += len(batch)
            tokens = data_utils.collate_tokens([rows[row].tokens for row in batch], pad)
            logits = self._model(tokens.to(self._device), classification_head_name=head)[0].float().cpu()
            for row, of_row in zip(batch, logits, strict=True):
                places = rows[row].places
                outputs[row] = of_row if places is None else tags(of_row, places, CUT)
            progress.update(len(batch))
        return outputs

    def _named(self, outputs: Sequence[Tensor]) -> Iterator[Prediction]:
        logits = torch.stack(list(outputs))
        if self.record.kind == "regression":
            for (score,) in logits.tolist():
                yield Prediction(self._score(score), {})
        elif self.record.kind == "multi-label":
            for row, marks in zip(logits.sigmoid().tolist(), chosen(logits).tolist(), strict=True):
                yield Prediction(self.record.label(marks), dict(zip(self.labels, row, strict=True)))
        else:
            for row in logits.softmax(dim=1).tolist():
                probabilities = dict(zip(self.labels, row, strict=True))
                yield Prediction(max(self.labels, key=probabilities.__getitem__), probabilities)

    def _tagged(self, outputs: Sequence[Tensor]) -> Iterator[Prediction]:
        names = dict(enumerate(self.labels))
        names[CUT] = names[usual_class(self.task.label_dictionary, len(names))]
        for numbers in outputs:
            yield Prediction(tuple(names[number] for number in numbers.tolist()), {}, int((numbers == CUT).sum()))

    def _target(self, target: Iterable[float]) -> Any:
        """The label of a row in the form of a prediction's."""
        label = self.record.label([float(number) for number in target])
        return self._score(label) if self.record.kind == "regression" else label

    def _score(self, number: float) -> str:
        return str(np.float32(number * self.record.scale))  # in no more digits than the model has


def classify(hub: HubInterface, rows: Sequence[str | Sequence[str]]) -> list[Prediction]:
    """Return the label and the probabilities of each row, as ``linformer predict`` prints them.

    Args:
        hub: a fine-tuned model, in evaluation mode from then on.
        rows: texts; for pairs two texts each; for token labels texts or lists of words.

    Raises:
        UserError: the model was not fine-tuned, or a row is not such as it reads.
    """
    check("rows", rows, not isinstance(rows, str), "a list of texts")  # else each letter would be a text
    predictor = Predictor(hub, device=str(hub.device))
    if predictor.record.kind == "token-label":
        words = (row.split() if isinstance(row, str) else row for row in rows)
        return list(predictor.texts(Example(tuple(row), None) for row in words))
    pairs = ((row, None) if isinstance(row, str) else row for row in rows)
    return list(predictor.texts(Example(text, None, second) for text, second in pairs))


HubInterface.classify = classify  # model/hub.py cannot import what is above it


def record_of(task: SentencePredictionTask, checkpoint: Path) -> Task:
    """The record of the data that a checkpoint's task was set up with.

    Raises:
        UserError: the checkpoint has another number of outputs, or its own labels, where it says them, are others.
    """
    if isinstance(task, TextPredictionTask):
        _check_labels(task, checkpoint)
        return task.record
    cfg = task.cfg
    record = read_record(Path(cfg.data), cfg.regression_target)
    if record.kind != ("regression" if cfg.regression_target else "single-label"):
        raise UserError(f"{checkpoint} is of fairseq's sentence_prediction, but {cfg.data} is {record.kind}")
    if cfg.num_classes != (len(record.classes) or 1):
        known = ", ".join(record.classes) or "a score"
        raise UserError(f"{checkpoint} has {cfg.num_classes} outputs, but the data in {cfg.data} has: {known}")
    return record


def _check_labels(task: TextPredictionTask, checkpoint: Path) -> None:
    own, data = task.trained_labels, task.cfg.data
    if own is None:
        return
    both = itertools.zip_longest(own["classes"], task.record.classes, fillvalue="none")
    if others := [pair for pair in both if pair[0] != pair[1]]:
        trained, found = map(join_truncated, zip(*others, strict=True))
        raise UserError(f"{checkpoint} was trained on the classes {trained}, where the data in {data} has {found}")
    if own["scale"] != task.record.scale:
        scales = f"scores divided by {own['scale']}, but those in {data} are divided by {task.record.scale}"
        raise UserError(f"{checkpoint} was trained on {scales}")


def write_predictions(predictor: Predictor, split: str, file: Path) -> None:
    """Write a line per row of a split: its label, the prediction, and the probability of each class.

    Several classes, and the tags of words, are JSON lists; words have no probabilities.
    """
    predictions, targets = predictor.split(split)
    table = io.StringIO()
    writer = csv.writer(table, delimiter="\t", lineterminator="\n")
    writer.writerow(["label", "prediction", *(predictions[0].probabilities if predictions else ())])
    for prediction, target in zip(predictions, targets or (), strict=True):
        labels = (
            label if isinstance(label, str) else json.dumps(label, ensure_ascii=False)
            for label in (target, prediction.label)
        )
        writer.writerow([*labels, *prediction.probabilities.values()])
    write_whole(file, table.getvalue())


def read_predictions(task: Task, file: Path) -> tuple[list, list]:
    """Return the labels and the predictions of a file, as ``metrics.score`` takes them."""
    csv.field_size_limit(sys.maxsize)  # the tags of a long row are one cell
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t"))[1:]
    parse: dict[str, Callable[[str], Any]] = {"single-label": str, "regression": float}
    parse_cell = parse.get(task.kind, lambda cell: tuple(json.loads(cell)))
    # By position: a class, whose probabilities follow, may be called "label" or "prediction".
    return [parse_cell(row[0]) for row in rows], [parse_cell(row[1]) for row in rows]
