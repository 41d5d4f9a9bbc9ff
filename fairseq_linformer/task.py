"""The registered tasks, which are fairseq's own with little changed, and what is around training (training/run.py).

``dynamic_masked_lm`` is ``masked_lm`` with new masks in each epoch; ``text_prediction`` is ``sentence_prediction`` with
a choice of what is cut of long texts.
"""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask
from fairseq.utils import split_paths

from .data.epochs import SharedEpochDataset
from .data.tasks import SUMMARY_FILE, Task, label_names, own_task, read_summary
from .data.tokenizer import DICTIONARY_FILE
from .data.truncation import METHODS, TruncatedDataset
from .errors import check
from .system.files import check_data_path
from .training.run import TrainingTask, whole_config
from .training.schedule import plan

DEFAULT_POSITIONS = 512  # where neither the task nor the model says how long rows are, as in sentence_prediction

TRUNCATION_CHOICES = ChoiceEnum(list(METHODS))


def _save_interval() -> Any:
    """The option of every task of ours, for its dataclass."""
    text = "save a checkpoint at least every so many minutes; 0: after updates and epochs alone"
    return field(default=15.0, metadata={"help": text})


@dataclass
class DynamicMaskedLMConfig(MaskedLMConfig):
    """Options of ``dynamic_masked_lm``: those of ``masked_lm``, and how often a run is saved."""

    save_interval_minutes: float = _save_interval()


@register_task("dynamic_masked_lm", dataclass=DynamicMaskedLMConfig)
class DynamicMaskedLMTask(TrainingTask, MaskedLMTask):
    """Masked language modelling with new masks in each epoch: RoBERTa's dynamic masking (Liu et al. 2019, section 4.1).

    fairseq's ``masked_lm`` means to do so, but from the second epoch on its worker processes mask as in the first.
    """

    NEXT = "python scripts/prepare_glue.py --source glue.zip --tokenizer {run} --out data-bin/tasks"

    @classmethod
    def setup_task(cls, cfg: DynamicMaskedLMConfig, **kwargs: Any) -> "DynamicMaskedLMTask":
        """The task with its dictionary read; FileNotFoundError where the data's folder or dictionary is not there."""
        _check_file(Path(split_paths(cfg.data)[0]), DICTIONARY_FILE)
        return super().setup_task(cfg, **kwargs)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        super().load_dataset(split, epoch, combine, **kwargs)
        self.datasets[split] = SharedEpochDataset(self.datasets[split])


@dataclass
class TextPredictionConfig(SentencePredictionConfig):
    """Options of ``text_prediction``: those of ``sentence_prediction``, and how long texts are shortened."""

    truncation: TRUNCATION_CHOICES = field(  # type: ignore[valid-type]
        default="head", metadata={"help": "what stays of a long text (random-crop: of train's; the head of others)"}
    )
    truncate_to: Optional[int] = field(  # noqa: UP045
        default=None, metadata={"help": "tokens of a row at most, special ones included (default: max_positions)"}
    )
    max_positions: Optional[int] = field(  # noqa: UP045
        default=None, metadata={"help": "the longest row, in tokens (default: the model's)"}
    )
    save_interval_minutes: float = _save_interval()


@register_task("text_prediction", dataclass=TextPredictionConfig)
class TextPredictionTask(TrainingTask, SentencePredictionTask):
    """Classification or regression of texts and pairs of any length, shortened to ``truncate_to`` tokens.

    Special tokens stay whatever is cut, and no row is left out for its length. Random crops are of the split ``train``,
    new ones each epoch; every other split takes the head, so that validation does not depend on chance.
    """

    NEXT = "python scripts/predict.py --checkpoint {run} --input TEXTS"
    record: Task

    @classmethod
    def setup_task(cls, cfg: TextPredictionConfig, **kwargs: Any) -> "TextPredictionTask":
        """The task with its dictionaries read.

        Raises:
            FileNotFoundError: the data folder, or a dictionary in it, does not exist.
            ValueError: an option cannot work, with this data.
        """
        summary = read_summary(Path(cfg.data)) if Path(cfg.data, SUMMARY_FILE).is_file() else None
        if summary is not None:
            _adopt_record(cfg, summary.task)
        _check_data(cfg)
        task = super().setup_task(cfg, **kwargs)
        kind, classes = (
            ("regression", ()) if cfg.regression_target else ("single-label", label_names(task.label_dictionary))
        )
        task.record = own_task(Path(cfg.data).name, kind, classes) if summary is None else summary.task
        if task.to_train is not None:
            plan(task.to_train, None if summary is None else summary.splits["train"].examples)
        _check_options(cfg, task.source_dictionary)
        if cfg.max_positions is None:
            whole = whole_config(cfg)
            cfg.max_positions = getattr(whole and whole.model, "max_positions", None) or DEFAULT_POSITIONS
        _check_lengths(cfg, cfg.max_positions)
        return task

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: FairseqCriterion) -> None:
        """As every task; with the metrics that our criterion, whose own method of this name is static, has of us."""
        super().reduce_metrics(logging_outputs, criterion)
        if hasattr(criterion, "log_metrics"):
            criterion.log_metrics(logging_outputs)

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> SharedEpochDataset:
        """Loads a split, its rows truncated as the class says."""
        cfg, dictionary = self.cfg, self.source_dictionary
        method = "head" if cfg.truncation == "random-crop" and split != "train" else str(cfg.truncation)
        truncated = TruncatedDataset(
            super().load_dataset(split, combine, **kwargs),
            cfg.max_positions if cfg.truncate_to is None else cfg.truncate_to,
            method,
            dictionary.bos(),
            dictionary.eos(),
            seed=cfg.seed,
            by_length=not cfg.no_shuffle,
        )
        self.datasets[split] = SharedEpochDataset(truncated)
        return self.datasets[split]


def _check_file(data: Path, name: str) -> None:
    if not data.is_dir():
        raise FileNotFoundError(f"data={data}: there is no such folder")
    if not (data / name).is_file():
        raise FileNotFoundError(f"data={data}: it holds no {name}")


def _adopt_record(cfg: TextPredictionConfig, record: Task) -> None:
    """Gives the task, and the criterion beside it, what the data's record says."""
    if cfg.num_classes == -1:
        cfg.num_classes = len(record.classes) or 1
    cfg.regression_target = record.kind == "regression"
    whole = whole_config(cfg)
    if whole is not None:
        whole.criterion.regression_target = cfg.regression_target


def _check_data(cfg: TextPredictionConfig) -> None:
    folder = Path(cfg.data)
    check_data_path(folder)
    for name in ("input0",) if cfg.regression_target else ("input0", "label"):
        _check_file(folder, f"{name}/{DICTIONARY_FILE}")
    if not cfg.regression_target:
        file = folder / "label" / DICTIONARY_FILE
        classes = _number_of_classes(file)
        check("num_classes", cfg.num_classes, cfg.num_classes == classes, f"{classes}, the classes of {file}")


def _number_of_classes(file: Path) -> int:
    """The lines of a label dictionary, without those that fairseq-preprocess fills up to a multiple of eight with."""
    with file.open(encoding="utf-8") as lines:
        return sum(not line.startswith("madeupword") for line in lines)


def _check_options(cfg: TextPredictionConfig, dictionary: Dictionary) -> None:
    allowed = "none: truncation and truncate_to say how texts are shortened here"
    check("shorten_method", cfg.shorten_method, cfg.shorten_method == "none", allowed)
    check("shorten_data_split_list", cfg.shorten_data_split_list, not cfg.shorten_data_split_list, "left out")
    # Encoder-decoders and data2vec read other inputs than the one that is truncated.
    check("add_prev_output_tokens", cfg.add_prev_output_tokens, not cfg.add_prev_output_tokens, "false")
    check("d2v2_multi", cfg.d2v2_multi, not cfg.d2v2_multi, "false")
    # Any other token would be taken for text, and cut.
    bos, eos = dictionary.bos(), dictionary.eos()
    check("init_token", cfg.init_token, cfg.init_token in (None, bos), f"{bos}, <s>, or left out")
    check("separator_token", cfg.separator_token, cfg.separator_token in (None, eos), f"{eos}, </s>, or left out")


def _check_lengths(cfg: TextPredictionConfig, longest: int) -> None:
    ends = 1
    if Path(cfg.data, "input1").is_dir():
        ends = 2 if cfg.separator_token is None else 3
    least = (cfg.init_token is not None) + ends + 1  # one token of text beside the special ones
    check("max_positions", longest, longest >= least, f"at least {least}")
    if cfg.truncate_to is not None:
        allowed = f"from {least} to max_positions={longest}"
        check("truncate_to", cfg.truncate_to, least <= cfg.truncate_to <= longest, allowed)
