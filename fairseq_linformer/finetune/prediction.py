"""A fine-tuned model at work: rows in, class probabilities or scores out, in batches of about one length."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import data_utils
from fairseq.models.roberta import RobertaHubInterface
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from torch import Tensor
from tqdm import tqdm

from ..data.prepare.labelled import Example, encode_columns
from ..data.tasks import SUMMARY_FILE, label_names, read_summary
from ..data.tokenizer import load_tokenizer
from ..data.truncation import truncate
from ..errors import UserError
from ..model import LinformerRobertaModel

BATCH_TOKENS = 8192  # of a batch, padding included: enough to fill two cores or a GPU with a model of base size
CHUNK = 4096  # rows that are sorted by length together: little padding, little memory, and output soon


@dataclass(frozen=True)
class Prediction:
    """What a model says of a row: the class and the probability of each class by name, or a score alone."""

    label: str
    probabilities: dict[str, float]


class Predictor:
    """A checkpoint that was fine-tuned with ``text_prediction`` or fairseq's ``sentence_prediction``.

    Args:
        checkpoint: its file.
        data: the prepared folder of a task with the vocabulary and the labels; by default the one that it was
            fine-tuned on.
        device: where it computes; by default the first GPU, or the CPU.

    Attributes:
        labels: the classes by number, none where the model gives scores.
        pairs: whether a row is two texts.
        scale: what the model's scores are multiplied by.

    Raises:
        FileNotFoundError: the checkpoint, or a file of the data's folder, is not there.
        ValueError: the checkpoint cannot be read, was not fine-tuned, or does not fit the data's folder.
    """

    def __init__(self, checkpoint: Path, data: Path | None = None, device: str | None = None) -> None:
        hub = _load(checkpoint, data)
        self.task, cfg = hub.task, hub.task.cfg
        folder = Path(cfg.data)
        self.labels = () if cfg.regression_target else _labels(hub.task)
        if cfg.num_classes != (len(self.labels) or 1):
            known = ", ".join(self.labels) or "a score"
            raise UserError(f"{checkpoint} has {cfg.num_classes} outputs, but the data in {folder} has: {known}")
        self.pairs = (folder / "input1").is_dir()
        self.scale = read_summary(folder).task.scale if (folder / SUMMARY_FILE).is_file() else 1.0
        if getattr(cfg, "truncation", None) == "random-crop":
            cfg.truncation = "head"  # as the task does outside train: no prediction depends on chance
        self._tokenizer = load_tokenizer(folder)
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._model = hub.model.eval().to(self._device)

    def split(self, name: str) -> tuple[list[Prediction], list[str] | None]:
        """The predictions for a split of the data's folder in its order, and the labels, where it has them.

        Raises:
            FileNotFoundError: the folder holds no such split.
        """
        folder = Path(self.task.cfg.data)
        if not (folder / "input0" / f"{name}.idx").is_file():
            raise FileNotFoundError(f"{folder} holds no split {name}: there is no input0/{name}.idx")
        self.task.load_dataset(name)
        dataset = self.task.dataset(name)
        numbers = range(len(dataset))
        rows = (self._shortened(dataset[number]["net_input.src_tokens"]) for number in numbers)
        predictions = list(self._predict(rows, total=len(dataset), desc=f"{folder.name} {name}", disable=None))
        if len(dataset) == 0 or "target" not in dataset[0]:
            return predictions, None
        return predictions, [self._target(float(dataset[number]["target"][0])) for number in numbers]

    def texts(self, examples: Iterable[Example], where: str = "row", before: int = 0) -> Iterator[Prediction]:
        """The predictions for texts, or pairs of texts, in their order; their labels are ignored.

        Raises:
            ValueError: a row is empty, or a pair where the model knows single texts, or the reverse; the message
                starts with `where` and the number of the row, counted from 1 after `before` others.
        """
        # A bar among the predictions that are printed would be no help.
        return self._predict(self._rows(examples, where, before), disable=sys.stdout.isatty() or None)

    def _rows(self, examples: Iterable[Example], where: str, before: int) -> Iterator[Tensor]:
        examples = iter(examples)
        while chunk := list(islice(examples, CHUNK)):
            columns = encode_columns(chunk, self._tokenizer, pairs=self.pairs, where=where, before=before)
            before += len(chunk)
            yield from map(self._row, zip(*columns, strict=True))

    def _row(self, texts: Sequence[np.ndarray]) -> Tensor:
        """<s> A </s>, or <s> A </s> </s> B </s>, as the task makes it from the ids of texts."""
        cfg = self.task.cfg
        ids: list[int] = []
        for start, text in zip((cfg.init_token, cfg.separator_token), texts, strict=False):
            ids += [] if start is None else [start]
            ids += [*text.tolist(), self.task.source_dictionary.eos()]
        return self._shortened(torch.tensor(ids))

    def _shortened(self, row: Tensor) -> Tensor:
        """The row as long as ``text_prediction`` allows; ``sentence_prediction`` has no such options: its head."""
        cfg, dictionary = self.task.cfg, self.task.source_dictionary
        length = getattr(cfg, "truncate_to", None) or cfg.max_positions
        return truncate(row, length, str(getattr(cfg, "truncation", "head")), dictionary.bos(), dictionary.eos())

    def _predict(self, rows: Iterator[Tensor], **bar: Any) -> Iterator[Prediction]:
        with tqdm(unit="row", **bar) as progress:
            while chunk := list(islice(rows, CHUNK)):
                yield from self._named(self._outputs(chunk, progress))

    @torch.inference_mode()
    def _outputs(self, rows: Sequence[Tensor], progress: tqdm) -> Tensor:
        """What the classification head gives for each row of ids, (rows, classes), computed from long to short."""
        outputs = torch.empty(len(rows), self.task.cfg.num_classes)
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
        start = 0
        while start < len(rows):
            batch = order[start : start + max(1, BATCH_TOKENS // len(rows[order[start]]))]
            start += len(batch)
            tokens = data_utils.collate_tokens([rows[row] for row in batch], self.task.source_dictionary.pad())
            head = self.task.cfg.classification_head_name
            outputs[batch] = self._model(tokens.to(self._device), classification_head_name=head)[0].float().cpu()
            progress.update(len(batch))
        return outputs

    def _named(self, outputs: Tensor) -> Iterator[Prediction]:
        if not self.labels:
            for (score,) in outputs.tolist():
                yield Prediction(self._score(score), {})
            return
        for row in outputs.softmax(dim=1).tolist():
            probabilities = dict(zip(self.labels, row, strict=True))
            yield Prediction(max(self.labels, key=probabilities.__getitem__), probabilities)

    def _target(self, number: float) -> str:
        return self.labels[int(number)] if self.labels else self._score(number)

    def _score(self, number: float) -> str:
        return str(np.float32(number * self.scale))  # in no more digits than the model has


def _load(checkpoint: Path, data: Path | None) -> RobertaHubInterface:
    if data is not None and not data.is_dir():
        raise FileNotFoundError(f"there is no folder {data}")
    place = (str(checkpoint.parent), checkpoint.name)
    try:
        hub = LinformerRobertaModel.from_pretrained(*place, None if data is None else str(data))
    except ValueError as error:
        if data is None:
            raise
        raise UserError(f"{checkpoint} with the data in {data}: {error}") from error
    if not isinstance(hub.task, SentencePredictionTask):
        raise UserError(f"{checkpoint} was not fine-tuned: its task is {hub.cfg.task._name}, not text_prediction")
    return hub


def _labels(task: SentencePredictionTask) -> tuple[str, ...]:
    """The classes, without what tasks add to a dictionary, and what fairseq-preprocess fills it up with."""
    names = label_names(task.label_dictionary)
    return tuple(name for name in names if name != "<mask>" and not name.startswith("madeupword"))
