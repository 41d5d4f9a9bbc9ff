"""Task ``dynamic_masked_lm``: fairseq's ``masked_lm`` with new masks in each epoch."""

import logging
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from fairseq.criterions import FairseqCriterion, masked_lm
from fairseq.data import FairseqDataset, PrependTokenDataset, TokenBlockDataset, data_utils
from fairseq.data.shorten_dataset import maybe_shorten_dataset
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta import RobertaModel
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.utils import split_paths

from ..data.batches import TrainingDataset
from ..data.corpus_rows import SPECIAL_TOKENS, CutLines, MixedTexts, ShuffledBatches
from ..data.dictionaries import DICTIONARY_FILE
from ..data.length_schedule import Stage, cut_rows, stage_of
from ..data.subword_models import A_SUBWORD_MODEL, corpus_folders, subword_model_options
from ..errors import check
from .freezing import freeze_but_positions, freeze_lm_head
from .masked_lm_loss import MaskedLmLoss
from .masked_lm_options import DynamicMaskedLMConfig, complete_lengths, read_schedules
from .options import VALIDATED, check_data_file
from .task import TrainingTask

logger = logging.getLogger(__name__)


@register_task("dynamic_masked_lm", dataclass=DynamicMaskedLMConfig)
class DynamicMaskedLMTask(TrainingTask, MaskedLMTask):
    """Masked language modelling with new masks in each epoch: RoBERTa's dynamic masking (Liu et al. 2019, section 4.1).

    fairseq's ``masked_lm`` repeats the masks of the first epoch in its worker processes from the second epoch on.

    With ``lengths`` rows are short at first: updates have the same tokens in the same order, cut into shorter rows
    (``data.length_schedule``) that keep their positions; validation has whole rows. On them a learned projection
    trains only its first columns, so pooling is better suited; with ``adaptive_length`` they fill all k projected keys.

    With ``shortest_text`` rows are texts of mixed lengths (``MixedTexts``), the input of sentence encoders.
    A batch has texts of similar length, up to ``dataset.max_tokens`` and ``dataset.batch_size``.

    With ``only_positions_from`` a model with added positions learns longer texts, while all weights that shorter texts
    use are frozen. Shorter texts then train nothing.

    With fairseq's ``skip_masking`` nothing is masked, and the LM head is frozen.
    """

    NEXT = "linformer export {run} --out exported"
    stages: list[Stage] | None = None  # of a training with ``lengths``
    stage: Stage | None = None  # of the last update

    @classmethod
    def setup_task(cls, cfg: DynamicMaskedLMConfig, **kwargs: Any) -> "DynamicMaskedLMTask":
        """Return the task with its dictionary.

        Raises:
            FileNotFoundError: the data folder, or the dictionary in it, does not exist.
            UserError: an option is not allowed.
        """
        cfg.data = os.pathsep.join(map(str, corpus_folders(Path(cfg.data))))
        check_data_file(Path(split_paths(cfg.data)[0]), DICTIONARY_FILE)
        task = super().setup_task(cfg, **kwargs)
        complete_lengths(cfg, task.to_train)
        if task.to_train is not None:
            task.stages = read_schedules(cfg, task.to_train)
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

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split with masks."""
        if self.cfg.mask_whole_words:
            folder = Path(split_paths(self.cfg.data)[0])
            options, allowed = subword_model_options(folder), f"false: {folder} has no {A_SUBWORD_MODEL}"
            check("mask_whole_words", True, bool(options), allowed)
            self.args = Namespace(**options)  # fairseq's masked_lm reads the subword model from here
        super().load_dataset(split, epoch, combine, **kwargs)
        dataset = self.datasets[split] if self.cfg.shortest_text is None else ShuffledBatches(self.datasets[split])
        self.datasets[split] = TrainingDataset(dataset, self.source_dictionary.pad(), masked=True)

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
