"""Options of ``dynamic_masked_lm``: completion, and checks before the start."""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq.tasks.masked_lm import MaskedLMConfig
from omegaconf import DictConfig

from ..checkpoint import checkpoint_file, read_checkpoint
from ..data.corpus_rows import SPECIAL_TOKENS
from ..data.length_schedule import Stage, as_text, read_stages
from ..errors import check
from ..model.roberta import LinformerRobertaModel
from .configuration import length_of_model, set_options
from .options import TrainingTaskConfig

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


def complete_lengths(cfg: DynamicMaskedLMConfig, training: DictConfig | None) -> None:
    """Complete and check the options of rows, in place; `training` is the whole configuration of a training.

    Raises:
        UserError: an option is not allowed.
    """
    mode = cfg.sample_break_mode
    check("sample_break_mode", mode, mode in ROWS, f"one of {', '.join(ROWS[:-1])} and {ROWS[-1]}")
    if cfg.tokens_per_sample is None:
        longest = length_of_model(cfg)
        check("tokens_per_sample", None, longest is not None, "a number if model.max_positions is not set either")
        set_options(cfg, tokens_per_sample=longest)
    if training is not None and cfg.only_positions_from == 0:
        teacher = getattr(training.criterion, "teacher", None)
        check("task.only_positions_from", 0, teacher is not None, "left out without criterion.teacher")
        state = read_checkpoint(checkpoint_file(Path(str(teacher))))
        longest = LinformerRobertaModel.resolve(state["cfg"]).max_positions
        set_options(cfg, only_positions_from=longest, shortest_text=cfg.shortest_text or longest + 1)
    shortest, longest = cfg.shortest_text, cfg.tokens_per_sample
    works = shortest is None or longest is None or SPECIAL_TOKENS < shortest <= longest
    check("shortest_text", shortest, works, f"from {SPECIAL_TOKENS + 1} to tokens_per_sample={longest}")
    check("lengths", cfg.lengths, shortest is None or cfg.lengths is None, "left out with shortest_text")
    method = cfg.shorten_method
    check("shorten_method", method, shortest is None or method == "none", "none with shortest_text")
    if training is not None and cfg.only_positions_from is not None:
        decay, allowed = training.optimizer.weight_decay, "0 with task.only_positions_from"
        check("optimizer.weight_decay", decay, decay == 0, allowed)


def read_schedules(cfg: Any, training: DictConfig) -> list[Stage] | None:
    """Check the schedules of a training; return the stages of ``lengths``, which becomes text, or None without it.

    Raises:
        UserError: ``optimization.max_update`` is missing, the stages of ``lengths`` are invalid (``read_stages``), or
            the model is not ``linformer_roberta``: another one would number the positions of each part from 0.
    """
    updates, schedule = training.optimization.max_update, training.lr_scheduler
    if cfg.lengths is not None:
        set_options(cfg, lengths=as_text(cfg.lengths))
    allowed = "left out without optimization.max_update, over which rows become longer"
    check("lengths", cfg.lengths, cfg.lengths is None or updates > 0, allowed)
    total, warm_up = getattr(schedule, "total_num_update", None), getattr(schedule, "warmup_updates", None) or 0
    allowed = "above 0, the updates until the learning rate has fallen: optimization.max_update, if not given"
    check("lr_scheduler.total_num_update", total, total is None or total > 0, allowed)
    if 0 < updates <= warm_up:
        logger.warning(
            f"the run ends within its warm-up, at {updates / warm_up:.0%} of optimization.lr: unless this is a "
            f"trial, lower lr_scheduler.warmup_updates={warm_up} to a tenth of optimization.max_update={updates}"
        )
    if cfg.lengths is None:
        return None
    allowed = "left out with another model than linformer_roberta"
    check("lengths", cfg.lengths, "projected_length" in training.model, allowed)
    return read_stages(cfg.lengths, updates, cfg.tokens_per_sample)
