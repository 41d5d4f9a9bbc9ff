"""Task ``text_prediction``: ``sentence_prediction`` for texts of any length.

It adds several classes per row, classes per word, and a choice of the truncation of long texts.
"""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.tasks import register_task
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask
from omegaconf import II, DictConfig

from ..checkpoint import Labels, read_task_state
from ..data.batches import TrainingDataset
from ..data.dictionaries import DICTIONARY_FILE, MASK
from ..data.targets import MultiHotDataset, WordTargetDataset
from ..data.task_record import KINDS, SUMMARY_FILE, Task, check_label, has_pairs, label_names, own_task, read_summary
from ..data.truncation import METHODS, TruncatedDataset, max_length_and_method
from ..errors import UserError, check
from ..files import check_data_path
from ..model.parts import ClassificationHead
from .configuration import length_of_model, set_options, whole_config
from .freezing import freeze_lm_head
from .options import WARM_UP, TrainingTaskConfig, check_data_file, updates_of_epochs
from .task import TrainingTask

logger = logging.getLogger(__name__)

DEFAULT_POSITIONS = 512  # if neither the task nor the model sets a maximum length, as in sentence_prediction

TRUNCATION_CHOICES = ChoiceEnum(list(METHODS))
KIND_CHOICES = ChoiceEnum(list(KINDS))


@dataclass
class TextPredictionConfig(TrainingTaskConfig, SentencePredictionConfig):
    """Options of ``text_prediction``: those of ``sentence_prediction``, and the truncation of long texts.

    The type of label and the number of classes default to those of the data, and are written into checkpoints.
    """

    kind: Optional[KIND_CHOICES] = field(  # type: ignore[valid-type]  # noqa: UP045
        default=None, metadata={"help": "type of label (default: that of the data)"}
    )
    num_classes: int = field(default=-1, metadata={"help": "outputs of the model (default: the data's classes)"})
    regression_target: Optional[bool] = II("criterion.regression_target")  # noqa: UP045
    truncation: TRUNCATION_CHOICES = field(  # type: ignore[valid-type]
        default="head",
        metadata={"help": "tokens to keep of a long text (random-crop: in the training split; elsewhere the head)"},
    )
    truncate_to: Optional[int] = field(  # noqa: UP045
        default=None, metadata={"help": "tokens of a row at most, special ones included (default: max_positions)"}
    )
    max_positions: Optional[int] = field(  # noqa: UP045
        default=None, metadata={"help": "the longest row, in tokens (default: the model's)"}
    )
    freeze_encoder: bool = field(default=False, metadata={"help": "train the classification head alone"})


@register_task("text_prediction", dataclass=TextPredictionConfig)
class TextPredictionTask(TrainingTask, SentencePredictionTask):
    """Classification or regression of texts, pairs or words, with texts truncated to ``truncate_to`` tokens.

    Truncation keeps special tokens, and no row is dropped for its length. Random crops apply to the training split and
    are new in each epoch; other splits keep the head, so that validation is deterministic.
    """

    NEXT = "linformer predict {run} --input TEXTS"
    training_split: str = "train"
    record: Task  # of the data's folder: its type of label, classes and metrics
    trained_labels: Labels | None = None  # of the loaded checkpoint

    @classmethod
    def setup_task(cls, cfg: TextPredictionConfig, **kwargs: Any) -> "TextPredictionTask":
        """Return the task with its dictionaries, after its options are checked against the data."""
        record = read_record(Path(cfg.data), bool(cfg.regression_target))
        _adopt_record(cfg, record)
        task = super().setup_task(cfg, **kwargs)
        task.record = record
        if task.to_train is not None:
            task.training_split = task.to_train.dataset.train_subset
            folder = Path(cfg.data)
            counts = read_summary(folder).splits.get(task.training_split) if (folder / SUMMARY_FILE).is_file() else None
            plan_updates(task.to_train, None if counts is None else counts.examples)
        _check_options(cfg, task.source_dictionary)
        if cfg.max_positions is None:
            cfg.max_positions = length_of_model(cfg) or DEFAULT_POSITIONS
        _check_lengths(cfg, cfg.max_positions)
        return task

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False) -> BaseFairseqModel:
        """Return the model with a head for the type of label, and a frozen LM head."""
        model = super().build_model(cfg, from_checkpoint)
        if self.cfg.freeze_encoder:
            model.encoder.requires_grad_(False)
        freeze_lm_head(model)
        if self.record.kind == "token-label":
            pooling = model.args.classifier_pooling
            check("classifier_pooling", pooling, pooling == "cls", "cls with token labels: each word has its own class")
            heads, name = model.classification_heads, self.cfg.classification_head_name
            parts = (heads[name].dense, heads[name].activation_fn, heads[name].dropout, heads[name].out_proj)
            heads[name] = ClassificationHead(*parts, getattr(heads[name], "norm", None))  # of every token
        return model

    def state_dict(self) -> dict[str, Any]:
        """Return the state with the labels, as the folder may later be prepared again with other classes."""
        labels: Labels = {"classes": list(self.record.classes), "scale": self.record.scale}
        return {**super().state_dict(), "labels": labels}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state. Its labels may differ from the data's, as a training may start from another task."""
        super().load_state_dict(state_dict)
        self.trained_labels = read_task_state(state_dict)["labels"]

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> TrainingDataset:
        """Load a split with truncated rows, and with targets for the type of label."""
        cfg, dictionary = self.cfg, self.source_dictionary
        dataset = super().load_dataset(split, combine, **kwargs)
        if self.record.kind == "multi-label":
            dataset = MultiHotDataset(dataset, cfg.num_classes)
        if self.record.kind == "token-label":
            check_data_file(Path(cfg.data), f"label/{split}.idx")  # it has the beginnings of words
            dataset = WordTargetDataset(dataset, int(cfg.init_token is not None))
        length, method = max_length_and_method(cfg, cfg.max_positions)
        method = str(cfg.truncation) if split == self.training_split else method
        if count := int((dataset.sizes[0] > length).sum()):
            logger.info(
                f"{split}: {count:,} of {len(dataset):,} rows are longer than {length:,} tokens and are cut: {method}"
            )
        special = dictionary.bos(), dictionary.eos()
        truncated = TruncatedDataset(dataset, length, method, *special, seed=cfg.seed, by_length=not cfg.no_shuffle)
        self.datasets[split] = TrainingDataset(truncated, dictionary.pad(), masked=False)
        return self.datasets[split]

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: FairseqCriterion) -> None:
        """Log the metrics, also those of our criterion, whose method of this name is static."""
        super().reduce_metrics(logging_outputs, criterion)
        if hasattr(criterion, "log_metrics"):
            criterion.log_metrics(logging_outputs)


def plan_updates(cfg: DictConfig, rows: int | None) -> None:
    """Set the updates and warm-up of a training whose length is given in epochs, in place: schedules need updates.

    Args:
        cfg: fairseq's whole configuration.
        rows: number of rows of the training set; None if unknown.

    Raises:
        UserError: the updates cannot be computed.
    """
    if cfg.optimization.max_update > 0 or "total_num_update" not in cfg.lr_scheduler:
        return
    if cfg.lr_scheduler.total_num_update > 0:  # as in fairseq's recipes for GLUE, which also set max_epoch
        return
    dataset, epochs, frequencies = cfg.dataset, cfg.optimization.max_epoch, cfg.optimization.update_freq
    one_size = dataset.max_tokens is None and dataset.required_batch_size_multiple == 1 and len(set(frequencies)) == 1
    works = rows is not None and dataset.batch_size is not None and epochs > 0 and one_size
    works = works and not cfg.optimization.skip_remainder_batch
    allowed = (
        "above 0 (or lr_scheduler.total_num_update be given): epochs are counted with a prepared task, batch_size, "
        "max_epoch, one update_freq, required_batch_size_multiple=1, and neither max_tokens nor skip_remainder_batch"
    )
    check("optimization.max_update", 0, works, allowed)
    batch_size = dataset.batch_size * cfg.distributed_training.distributed_world_size * frequencies[0]
    updates = updates_of_epochs(epochs, rows or 0, batch_size)
    cfg.optimization.max_update = cfg.lr_scheduler.total_num_update = updates
    cfg.lr_scheduler.warmup_updates = cfg.lr_scheduler.warmup_updates or round(WARM_UP * updates)


def read_record(folder: Path, regression: bool) -> Task:
    """Return the record of a prepared folder; for output of fairseq-preprocess, one with default metrics.

    The latter is a regression if `regression` is True.
    """
    check_data_path(folder)
    check_data_file(folder, f"input0/{DICTIONARY_FILE}")
    task = read_summary(folder).task if (folder / SUMMARY_FILE).is_file() else None
    kind = task.kind if task is not None else "regression" if regression else "single-label"
    classes: tuple[str, ...] = ()
    if kind != "regression":
        check_data_file(folder, f"label/{DICTIONARY_FILE}")
        classes = class_names(Dictionary.load(str(folder / "label" / DICTIONARY_FILE)))
    for name in classes:
        check_label(name, f"{folder / 'label' / DICTIONARY_FILE}: ")
    if task is None:
        return own_task(folder.name, kind, classes)
    if task.classes != classes:
        raise UserError(f"{folder}: {SUMMARY_FILE} has the classes {task.classes}, but label/dict.txt {classes}")
    return task


def class_names(dictionary: Dictionary) -> tuple[str, ...]:
    """Return the classes, without tokens that tasks add to a dictionary, or fairseq-preprocess as padding."""
    names = label_names(dictionary)
    return tuple(name for name in names if name != MASK and not name.startswith("madeupword"))


def _adopt_record(cfg: TextPredictionConfig, record: Task) -> None:
    """Set the options that the data determines, also in the configuration of the run, which checkpoints contain."""
    data_options = {"kind": record.kind, "regression_target": record.kind == "regression"}
    data_options["num_classes"] = len(record.classes) or 1
    for name, value in data_options.items():
        configured = getattr(cfg, name)
        check(name, configured, configured in (None, -1, value), f"{value}: {cfg.data} is {record.kind}")
    set_options(cfg, **data_options)
    run_config = whole_config(cfg)
    if run_config is not None and "regression_target" in (run_config.get("criterion") or ()):
        run_config.criterion.regression_target = data_options["regression_target"]


def _check_options(cfg: TextPredictionConfig, dictionary: Dictionary) -> None:
    allowed = "none: truncation and truncate_to determine how texts are shortened"
    check("shorten_method", cfg.shorten_method, cfg.shorten_method == "none", allowed)
    # Any other token would be treated as text and truncated.
    bos, eos = dictionary.bos(), dictionary.eos()
    check("init_token", cfg.init_token, cfg.init_token in (None, bos), f"{bos}, <s>, or left out")
    check("separator_token", cfg.separator_token, cfg.separator_token in (None, eos), f"{eos}, </s>, or left out")


def _check_lengths(cfg: TextPredictionConfig, longest: int) -> None:
    separators = 1
    if has_pairs(Path(cfg.data)):
        separators = 2 if cfg.separator_token is None else 3
    minimum = (cfg.init_token is not None) + separators + 1  # one token of text and the special ones
    check("max_positions", longest, longest >= minimum, f"at least {minimum}")
    length = cfg.truncate_to or longest
    check("truncate_to", length, minimum <= length <= longest, f"from {minimum} to max_positions={longest}")
