"""Prediction with a fine-tuned model: labels and probabilities of rows, in batches of similar length."""

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
from ..data.subword_models import load_tokenizer
from ..data.targets import TRUNCATED, UNKNOWN, majority_class, remap
from ..data.task_record import Task, has_pairs
from ..data.truncation import kept_tokens, max_length_and_method
from ..errors import UserError, check
from ..files import write_whole
from ..model.hub import HubInterface
from ..model.roberta import LinformerRobertaModel
from ..precision import with_bfloat16_products
from ..training.text_prediction import TextPredictionTask, read_record
from .criterion import chosen, tags

CHUNK = 4096  # rows that are sorted by length together: little padding, little memory, and early output


def batch_tokens(device: str) -> int:
    """Return the tokens of a batch, with padding, that fill a GPU with a model of base size.

    A CPU gets fewer, for its caches and for less padding: SST-2 takes a third less time than with 8,192, IMDB a sixth.
    """
    return 2048 if torch.device(device).type == "cpu" else 8192


@dataclass(frozen=True)
class Prediction:
    """Prediction for a row: its class or its score as text, several classes, or the class of each word."""

    label: str | tuple[str, ...]
    probabilities: dict[str, float]  # by class; empty for scores and token labels
    cut: int = 0  # number of truncated words, whose class is the most frequent of the training set


class _Row(NamedTuple):
    """Input of the model, (tokens,), and for token labels the positions of the words' first pieces, (words,)."""

    tokens: Tensor
    word_starts: Tensor | None = None


class Predictor:
    """Fine-tuned checkpoint of ``text_prediction`` or fairseq's ``sentence_prediction``.

    Args:
        model: its file, or the result of ``from_pretrained``.
        data: the prepared folder of a task, by default the one that it was fine-tuned on.
        device: by default the first GPU, or the CPU.
        bfloat16: True to compute matrix products in bfloat16.
    """

    def __init__(
        self,
        model: Path | HubInterface,
        data: Path | None = None,
        device: str | None = None,
        bfloat16: bool = False,
    ) -> None:
        hub = LinformerRobertaModel.load(model, data) if isinstance(model, Path) else model
        checkpoint = model if isinstance(model, Path) else Path(hub.cfg.checkpoint.save_dir)
        if not isinstance(hub.task, SentencePredictionTask):
            raise UserError(
                f"{checkpoint} was trained on the task {hub.cfg.task._name}: predictions need text_prediction; an "
                "imported classifier predicts in transformers"
            )
        self.task, cfg = hub.task, hub.task.cfg
        folder = Path(cfg.data)
        self.record = record_of(hub.task, checkpoint)
        self.labels = self.record.classes  # by number; none for scores
        self.pairs = has_pairs(folder)  # True if a row is two texts
        if getattr(cfg, "truncation", None) == "random-crop":
            cfg.truncation = "head"  # as in the task outside train: no prediction is random
        self.longest = max_length_and_method(cfg, cfg.max_positions)[0]  # maximum tokens of a row
        self.cut = 0  # number of longer rows, so far
        self._tokenizer = load_tokenizer(folder)
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._model = hub.model.eval().to(self._device)
        if bfloat16:
            self._model = with_bfloat16_products(self._model, self._device)

    def split(self, name: str) -> tuple[list[Prediction], list[str] | list[tuple[str, ...]] | None]:
        """Return the predictions for a split of the data's folder in its order, and its labels if it has them."""
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
                yield self._truncate(_Row(item["net_input.src_tokens"], item.get("word_starts")))

        predictions = list(self._predict(rows(), total=len(dataset), desc=f"{folder.name} {name}", disable=None))
        has_labels = bool(targets) and targets[0] is not None
        if not has_labels or (self.record.kind == "token-label" and any(UNKNOWN in target for target in targets)):
            return predictions, None
        return predictions, [self._target(target) for target in targets]

    def texts(self, examples: Iterable[Example]) -> Iterator[Prediction]:
        """Yield the predictions for texts, pairs of texts or rows of words; their labels are ignored."""
        # A progress bar would disturb printed predictions.
        return self._predict(self._encode(examples), disable=sys.stdout.isatty() or None)

    def _encode(self, examples: Iterable[Example]) -> Iterator[_Row]:
        examples, offset = iter(examples), 0
        while chunk := list(itertools.islice(examples, CHUNK)):
            word_starts: Iterable[Tensor | None]
            if self.record.kind == "token-label":
                columns, sizes = encode_words(chunk, self._tokenizer, prefix="row", offset=offset)
                first = int(self.task.cfg.init_token is not None)
                word_starts = (torch.from_numpy(np.cumsum(words) - words + first) for words in sizes)
            else:
                columns = encode_columns(chunk, self._tokenizer, pairs=self.pairs, prefix="row", offset=offset)
                word_starts = itertools.repeat(None, len(chunk))
            offset += len(chunk)
            for texts, starts in zip(zip(*columns, strict=True), word_starts, strict=True):
                yield self._truncate(_Row(self._tokens(texts), starts))

    def _tokens(self, texts: Sequence[np.ndarray]) -> Tensor:
        """Return <s> A </s>, or <s> A </s> </s> B </s>, from the token ids of texts."""
        cfg = self.task.cfg
        ids: list[int] = []
        for start, text in zip((cfg.init_token, cfg.separator_token), texts, strict=False):
            ids += [] if start is None else [start]
            ids += [*text.tolist(), self.task.source_dictionary.eos()]
        return torch.tensor(ids)

    def _truncate(self, row: _Row) -> _Row:
        """Truncate a row as ``text_prediction`` does; ``sentence_prediction`` has no options for it: keep the head."""
        dictionary, cfg = self.task.source_dictionary, self.task.cfg
        length, method = max_length_and_method(cfg, cfg.max_positions)
        keep_mask = kept_tokens(row.tokens, length, method, dictionary.bos(), dictionary.eos())
        self.cut += len(row.tokens) > self.longest
        return _Row(row.tokens[keep_mask], None if row.word_starts is None else remap(row.word_starts, keep_mask))

    def _predict(self, rows: Iterator[_Row], **bar: Any) -> Iterator[Prediction]:
        label = self._label_words if self.record.kind == "token-label" else self._label_rows
        with tqdm(unit="row", **bar) as progress:
            while chunk := list(itertools.islice(rows, CHUNK)):
                yield from label(self._compute(chunk, progress))

    @torch.inference_mode()
    def _compute(self, rows: Sequence[_Row], progress: tqdm) -> list[Tensor]:
        """Return the logits of each row, (classes,); for token labels each word's class, or TRUNCATED, (words,)."""
        outputs = [torch.empty(0)] * len(rows)
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row].tokens))  # memory runs out at once, if at all
        head, pad = self.task.cfg.classification_head_name, self.task.source_dictionary.pad()
        max_tokens, start = batch_tokens(self._device), 0
        while start < len(rows):
            batch = order[start : start + max(1, max_tokens // len(rows[order[start]].tokens))]
            start += len(batch)
            tokens = data_utils.collate_tokens([rows[row].tokens for row in batch], pad)
            logits = self._model(tokens.to(self._device), classification_head_name=head)[0].float().cpu()
            for row, row_logits in zip(batch, logits, strict=True):
                starts = rows[row].word_starts
                outputs[row] = row_logits if starts is None else tags(row_logits, starts, TRUNCATED)
            progress.update(len(batch))
        return outputs

    def _label_rows(self, outputs: Sequence[Tensor]) -> Iterator[Prediction]:
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

    def _label_words(self, outputs: Sequence[Tensor]) -> Iterator[Prediction]:
        names = dict(enumerate(self.labels))
        names[TRUNCATED] = names[majority_class(self.task.label_dictionary, len(names))]
        for numbers in outputs:
            yield Prediction(tuple(names[number] for number in numbers.tolist()), {}, int((numbers == TRUNCATED).sum()))

    def _target(self, target: Iterable[float]) -> Any:
        """Return the label of a row in the form of ``Prediction.label``."""
        label = self.record.label([float(number) for number in target])
        return self._score(label) if self.record.kind == "regression" else label

    def _score(self, number: float) -> str:
        return str(np.float32(number * self.record.scale))  # in no more digits than the model has


def classify(hub: HubInterface, rows: Sequence[str | Sequence[str]]) -> list[Prediction]:
    """Return the label and the probabilities of each row, as ``linformer predict`` prints them.

    Args:
        hub: a fine-tuned model, in evaluation mode from then on.
        rows: texts; for pairs two texts each; for token labels texts or lists of words.
    """
    check("rows", rows, not isinstance(rows, str), "a list of texts")  # otherwise each letter would be a text
    predictor = Predictor(hub, device=str(hub.device))
    if predictor.record.kind == "token-label":
        words = (row.split() if isinstance(row, str) else row for row in rows)
        return list(predictor.texts(Example(tuple(row), None) for row in words))
    pairs = ((row, None) if isinstance(row, str) else row for row in rows)
    return list(predictor.texts(Example(text, None, second) for text, second in pairs))


HubInterface.classify = classify  # model/hub.py cannot import higher layers


def record_of(task: SentencePredictionTask, checkpoint: Path) -> Task:
    """Return the record of the data that a checkpoint's task was set up with; outputs and labels must be the same."""
    cfg = task.cfg
    if isinstance(task, TextPredictionTask):
        for name, trained in (task.trained_labels or {}).items():
            current = getattr(task.record, name)
            if trained != (list(current) if name == "classes" else current):
                raise UserError(f"{checkpoint} was trained on {name}={trained}, the data in {cfg.data} has {current}")
        return task.record
    record = read_record(Path(cfg.data), cfg.regression_target)
    trained = ("regression" if cfg.regression_target else "single-label", cfg.num_classes)
    if trained != (record.kind, len(record.classes) or 1):
        names = ", ".join(record.classes) or "a score"
        raise UserError(f"{checkpoint} is {trained[0]} with {trained[1]} outputs, {cfg.data} {record.kind} of {names}")
    return record


def write_predictions(predictor: Predictor, split: str, file: Path) -> None:
    """Write a line per row of a split: its label, the prediction, and the probability of each class.

    Several classes, and the tags of words, are JSON lists; words have no probabilities.
    """
    predictions, targets = predictor.split(split)
    table = io.StringIO()
    writer = csv.writer(table, delimiter="\t", lineterminator="\n")
    writer.writerow(["label", "prediction", *(predictions[0].probabilities if predictions else ())])
    for prediction, target in zip(predictions, targets or (), strict=True):
        labels = (target, prediction.label)
        cells = (label if isinstance(label, str) else json.dumps(label, ensure_ascii=False) for label in labels)
        writer.writerow([*cells, *prediction.probabilities.values()])
    write_whole(file, table.getvalue())


def read_predictions(task: Task, file: Path) -> tuple[list, list]:
    """Return the labels and the predictions of a file, in the form of ``metrics.score``."""
    csv.field_size_limit(sys.maxsize)  # the tags of a long row are one cell
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t"))[1:]
    parse: dict[str, Callable[[str], Any]] = {"single-label": str, "regression": float}
    parse_cell = parse.get(task.kind, lambda cell: tuple(json.loads(cell)))
    # By position: a class, whose probabilities follow, may be called "label" or "prediction".
    return [parse_cell(row[0]) for row in rows], [parse_cell(row[1]) for row in rows]
