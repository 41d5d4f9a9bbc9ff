"""Task ``dynamic_masked_lm``: fairseq's ``masked_lm`` with new masks in each epoch."""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

import logging
import os
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.criterions import FairseqCriterion, masked_lm
from fairseq.data import FairseqDataset, PrependTokenDataset, TokenBlockDataset, data_utils
from fairseq.data.shorten_dataset import maybe_shorten_dataset
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta import RobertaModel
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from fairseq.utils import split_paths
from omegaconf import DictConfig

from ..checkpoint import checkpoint_file, read_checkpoint
from ..data.batches import DescribedBatches, SharedEpochDataset
from ..data.corpus_rows import SPECIAL_TOKENS, CutLines, MixedTexts, ShuffledBatches
from ..data.dictionaries import DICTIONARY_FILE, corpus_folders
from ..data.length_schedule import Stage, as_text, cut_rows, read_stages, stage_of
from ..data.tokenizer import A_SUBWORD_MODEL, subword_model_options
from ..errors import check
from ..model.roberta import LinformerRobertaModel
from .masked_lm_loss import MaskedLmLoss
from .options import VALIDATED
from .task import TrainingTask, TrainingTaskConfig, check_file, freeze_lm_head, length_of_model, set_options

logger = logging.getLogger(__name__)

ROWS = ("none", "complete", "complete_doc")  # values of sample_break_mode; fairseq's code for "eos" fails with NumPy 2


@dataclass
class DynamicMaskedLMConfig(TrainingTaskConfig, MaskedLMConfig):
    """Options of ``dynamic_masked_lm``: those of ``masked_lm``, lengths of rows, and the interval of saves."""

    tokens_per_sample: Optional[int] = field(  # noqa: UP045
        default=1024, metadata={"help": "tokens of a row at most (null in a configuration: the model's max_positions)"}
    )
    lengths: Any = field(
        default=None,
        metadata={
            "help": "length:share pairs, 512:0.6,2048:0.4: rows are cut to each length for its share of the updates; "
            "each divides the next, the last is tokens_per_sample (default: tokens_per_sample throughout)"
        },
    )
    shortest_text: Optional[int] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "rows are texts with <s> and </s> at their ends alone, of this many tokens to tokens_per_sample; "
            "as many have 8 to 16 tokens as 2,048 to 4,096 (default: rows by sample_break_mode)"
        },
    )
    only_positions_from: Optional[int] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "train only the embeddings of the positions from this one on, counted from 0, so that the outputs "
            "for texts of at most this many tokens do not change; 0: the teacher's max_positions, and shortest_text is "
            "one more unless it is set (default: train all parameters)"
        },
    )


@register_task("dynamic_masked_lm", dataclass=DynamicMaskedLMConfig)
class DynamicMaskedLMTask(TrainingTask, MaskedLMTask):
    """Masked language modelling with new masks in each epoch: RoBERTa's dynamic masking (Liu et al. 2019, section 4.1).

    fairseq's ``masked_lm`` repeats the masks of the first epoch in its worker processes from the second epoch on.

    With ``lengths`` rows are short at first: updates have the same tokens in the same order, cut into shorter rows
    (``data.length_schedule``) that keep their positions; validation has whole rows. On them a learned projection
    trains only its first columns, so pooling is better suited; with ``adaptive_length`` they fill all k projected keys.

    With ``mask_whole_words`` all tokens of a word are masked, or none.

    With ``shortest_text`` rows are texts of mixed lengths (``MixedTexts``), the input of sentence encoders.
    A batch has texts of similar length, up to ``dataset.max_tokens`` and ``dataset.batch_size``.

    With ``only_positions_from`` a model with added positions learns longer texts, while all weights that shorter texts
    use are frozen. Shorter texts then train nothing.

    With fairseq's ``skip_masking`` nothing is masked, for a criterion that needs no masks; the LM head is not trained.

    Attributes:
        stages: lengths of rows over the updates of a training with ``lengths``.
        stage: the stage of the last update.
    """

    NEXT = "linformer export {run} --out exported"
    stages: list[Stage] | None = None
    stage: Stage | None = None

    @classmethod
    def setup_task(cls, cfg: DynamicMaskedLMConfig, **kwargs: Any) -> "DynamicMaskedLMTask":
        """Return the task with its dictionary.

        Raises:
            FileNotFoundError: the data folder, or the dictionary in it, does not exist.
            UserError: an option is not allowed.
        """
        cfg.data = os.pathsep.join(map(str, corpus_folders(Path(cfg.data))))
        check_file(Path(split_paths(cfg.data)[0]), DICTIONARY_FILE)
        mode = cfg.sample_break_mode
        check("sample_break_mode", mode, mode in ROWS, f"one of {', '.join(ROWS[:-1])} and {ROWS[-1]}")
        task = super().setup_task(cfg, **kwargs)
        if cfg.tokens_per_sample is None:
            longest = length_of_model(cfg)
            check("tokens_per_sample", None, longest is not None, "a number if model.max_positions is not set either")
            set_options(cfg, tokens_per_sample=longest)
        if task.to_train is not None and cfg.only_positions_from == 0:
            _set_lengths_of_teacher(cfg, getattr(task.to_train.criterion, "teacher", None))
        shortest, longest = cfg.shortest_text, cfg.tokens_per_sample
        works = shortest is None or longest is None or SPECIAL_TOKENS < shortest <= longest
        check("shortest_text", shortest, works, f"from {SPECIAL_TOKENS + 1} to tokens_per_sample={longest}")
        check("lengths", cfg.lengths, shortest is None or cfg.lengths is None, "left out with shortest_text")
        method = cfg.shorten_method
        check("shorten_method", method, shortest is None or method == "none", "none with shortest_text")
        if task.to_train is not None:
            task.read_schedules(task.to_train)
            if cfg.only_positions_from is not None:
                decay, allowed = task.to_train.optimizer.weight_decay, "0 with task.only_positions_from"
                check("optimizer.weight_decay", decay, decay == 0, allowed)
        return task

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False) -> BaseFairseqModel:
        """Return the model, with a frozen LM head in RoBERTa if nothing is masked."""
        model = super().build_model(cfg, from_checkpoint)
        if self.cfg.only_positions_from is not None:
            freeze_but_positions(model, self.cfg.only_positions_from)
        if self.cfg.skip_masking and isinstance(model, RobertaModel):
            freeze_lm_head(model)
        return model

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the mark of a random LM head if this training trains it."""
        state = super().state_dict()
        if not self.cfg.skip_masking and self.cfg.only_positions_from is None:
            state.pop("drawn_lm_head", None)
        return state

    def build_criterion(self, cfg: FairseqDataclass, from_checkpoint: bool = False) -> FairseqCriterion:
        """Return the criterion; for ``masked_lm``, ours, which needs less memory."""
        criterion = super().build_criterion(cfg, from_checkpoint)
        if type(criterion) is not masked_lm.MaskedLmLoss:
            # Other criteria of fairseq count all tokens, of which 15 % are masked, or need other targets.
            fits = self.to_train is None or not type(criterion).__module__.startswith("fairseq.criterions.")
            name = getattr(cfg, "_name", None) or cfg.criterion
            check("criterion", name, fits, f"one of {', '.join(VALIDATED)}, or your own")
            return criterion
        return MaskedLmLoss(masked_lm.MaskedLmConfig(tpu=criterion.tpu), self)

    def read_schedules(self, cfg: DictConfig) -> None:
        """Read and check the schedules of a training from its whole configuration.

        Raises:
            UserError: ``optimization.max_update`` is missing, the stages of ``lengths`` are invalid (``read_stages``),
                or the model is not ``linformer_roberta``: another one would number the positions of each part from 0.
        """
        options, updates = self.cfg, cfg.optimization.max_update
        if options.lengths is not None:
            set_options(options, lengths=as_text(options.lengths))
        allowed = "left out without optimization.max_update, over which rows become longer"
        check("lengths", options.lengths, options.lengths is None or updates > 0, allowed)
        total = getattr(cfg.lr_scheduler, "total_num_update", None)
        allowed = "above 0, the updates until the learning rate has fallen: optimization.max_update, if not given"
        check("lr_scheduler.total_num_update", total, total is None or total > 0, allowed)
        warm_up = getattr(cfg.lr_scheduler, "warmup_updates", None) or 0
        if 0 < updates <= warm_up:
            logger.warning(
                f"the run ends within its warm-up, at {updates / warm_up:.0%} of optimization.lr: unless this is a "
                f"trial, lower lr_scheduler.warmup_updates={warm_up} to a tenth of optimization.max_update={updates}"
            )
        if options.lengths is None:
            return
        allowed = "left out with another model than linformer_roberta"
        check("lengths", options.lengths, "projected_length" in cfg.model, allowed)
        self.stages = read_stages(options.lengths, updates, options.tokens_per_sample)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split with masks."""
        if self.cfg.mask_whole_words:
            folder = Path(split_paths(self.cfg.data)[0])
            options, allowed = subword_model_options(folder), f"false: {folder} has no {A_SUBWORD_MODEL}"
            check("mask_whole_words", True, bool(options), allowed)
            self.args = Namespace(**options)  # fairseq's masked_lm reads the subword model from here
        super().load_dataset(split, epoch, combine, **kwargs)
        dataset = self.datasets[split] if self.cfg.shortest_text is None else ShuffledBatches(self.datasets[split])
        self.datasets[split] = SharedEpochDataset(DescribedBatches(dataset, self.source_dictionary.pad(), masked=True))

    def _load_dataset_split(self, split: str, epoch: int, combine: bool) -> FairseqDataset:
        """Return the rows of a split, with <s>."""
        cfg, dictionary = self.cfg, self.source_dictionary
        if cfg.shortest_text is None and cfg.sample_break_mode == "none":
            return super()._load_dataset_split(split, epoch, combine)
        folders = split_paths(cfg.data)
        prefix = str(Path(folders[(epoch - 1) % len(folders)], split))
        lines = data_utils.load_indexed_dataset(prefix, dictionary, combine=combine)
        if lines is None:
            raise FileNotFoundError(f"there is no dataset {prefix}")
        if cfg.shortest_text is not None:
            lengths = cfg.shortest_text, cfg.tokens_per_sample
            texts = MixedTexts(lines, lines.sizes, *lengths, dictionary.bos(), dictionary.eos(), cfg.seed)
            allowed = f"lower: no document of {prefix} has so many tokens"
            check("shortest_text", cfg.shortest_text, len(texts) > 0, allowed)
            token_share = (texts.sizes - SPECIAL_TOKENS).sum() / (lines.sizes - 1).sum()
            logger.info(f"{split}: {len(texts):,} texts have {token_share:.0%} of the tokens")
            return texts
        shorten = cfg.shorten_data_split_list, cfg.shorten_method, cfg.tokens_per_sample, cfg.seed
        shortened = maybe_shorten_dataset(lines, split, *shorten)
        lines = CutLines(shortened, cfg.tokens_per_sample - 1)  # <s> is one more
        logger.info(f"{split}: lines that are longer than a row are cut at {len(lines) - len(shortened):,} places")
        options = {"pad": dictionary.pad(), "eos": dictionary.eos(), "break_mode": cfg.sample_break_mode}
        rows = TokenBlockDataset(lines, lines.sizes, cfg.tokens_per_sample - 1, **options)
        return PrependTokenDataset(rows, dictionary.bos())

    def before_update(self, sample: dict[str, Any], update_num: int) -> dict[str, Any]:
        """Return the batch, cut into rows of the update's length."""
        if self.stages is None:
            return sample
        length, end = stage = stage_of(self.stages, update_num)
        if self.stage != stage:
            logger.info(f"after update {update_num:,}: rows of {length:,} tokens, up to update {end:,}")
            self.stage = stage
        return cut_rows(sample, length, self.source_dictionary.bos(), self.source_dictionary.pad())


def _set_lengths_of_teacher(cfg: DynamicMaskedLMConfig, teacher: str | None) -> None:
    check("task.only_positions_from", 0, teacher is not None, "left out without criterion.teacher")
    state = read_checkpoint(checkpoint_file(Path(str(teacher))))
    longest = LinformerRobertaModel.resolve(state["cfg"]).max_positions
    set_options(cfg, only_positions_from=longest, shortest_text=cfg.shortest_text or longest + 1)


def freeze_but_positions(model: BaseFairseqModel, first: int) -> None:
    """Freeze all parameters except the embeddings of positions from `first` on, counted from 0.

    The table of positions is one parameter: the gradients of its other rows become 0. Weight decay must be 0, too.

    Raises:
        UserError: the model has no such learned positions.
    """
    encoder = getattr(getattr(model, "encoder", None), "sentence_encoder", None)
    table: Any = getattr(encoder, "embed_positions", None)
    count = 0 if table is None else len(table.weight) - (table.padding_idx + 1)
    allowed = f"above 0 and below the model's {count} learned positions"
    check("task.only_positions_from", first, 0 < first < count, allowed)
    start = table.padding_idx + 1 + first
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is table.weight)
    table.weight.register_hook(lambda gradient: torch.cat([torch.zeros_like(gradient[:start]), gradient[start:]]))
