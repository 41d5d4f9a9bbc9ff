"""The registered task ``dynamic_masked_lm``: fairseq's ``masked_lm`` with new masks in each epoch."""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq.criterions import FairseqCriterion
from fairseq.data.encoders.utils import get_whole_word_mask
from fairseq.models import BaseFairseqModel
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from fairseq.utils import split_paths
from torch import Tensor

from ..checkpoints.vocabulary import NO_SUBWORD_MODEL, subword_model_options
from ..data.batches import DescribedBatches
from ..data.epochs import SharedEpochDataset
from ..data.masking import share_of_masks, thin_masks
from ..data.shards import data_paths
from ..data.tokenizer import DICTIONARY_FILE
from ..errors import check
from .task import TrainingTask, check_file, length_of_model, save_interval, set_options


@dataclass
class DynamicMaskedLMConfig(MaskedLMConfig):
    """Options of ``dynamic_masked_lm``: those of ``masked_lm``, the share of masks at the end, how often to save."""

    tokens_per_sample: Optional[int] = field(  # noqa: UP045
        default=1024, metadata={"help": "tokens of a row at most (null in a configuration: the model's max_positions)"}
    )
    mask_prob_end: Optional[float] = field(  # noqa: UP045
        default=None,
        metadata={"help": "masked share of the last update and of validation, falling to it (default: mask_prob)"},
    )
    save_interval_minutes: float = save_interval()


@register_task("dynamic_masked_lm", dataclass=DynamicMaskedLMConfig)
class DynamicMaskedLMTask(TrainingTask, MaskedLMTask):
    """Masked language modelling with new masks in each epoch: RoBERTa's dynamic masking (Liu et al. 2019, section 4.1).

    fairseq's ``masked_lm`` means to do so, but from the second epoch on its worker processes mask as in the first.

    With ``mask_prob_end`` the masked share falls linearly over the updates of a run (Ankner et al. 2023, arXiv
    2305.15096). Validation has the last share, so that its losses compare.

    With ``mask_whole_words`` the tokens of a word are masked together, or none of them.

    Attributes:
        word_starts: with ``mask_whole_words``, whether each token of the dictionary begins a word, (V,).
    """

    NEXT = "linformer prepare glue --source glue.zip --tokenizer {run} --out data-bin/tasks"

    @classmethod
    def setup_task(cls, cfg: DynamicMaskedLMConfig, **kwargs: Any) -> "DynamicMaskedLMTask":
        """The task with its dictionary read.

        Raises:
            FileNotFoundError: the data folder, or the dictionary in it, does not exist.
            UserError: an option cannot work, or shards of the data are missing.
        """
        cfg.data = data_paths(cfg.data)
        check_file(Path(split_paths(cfg.data)[0]), DICTIONARY_FILE)
        first, last = cfg.mask_prob, cfg.mask_prob_end
        check("mask_prob_end", last, last is None or 0 < last <= first, f"above 0 and at most mask_prob={first}")
        task = super().setup_task(cfg, **kwargs)
        if cfg.tokens_per_sample is None:
            longest = length_of_model(cfg)
            check("tokens_per_sample", None, longest is not None, "a number where model.max_positions is left out, too")
            set_options(cfg, tokens_per_sample=longest)
        if last is not None and task.to_train is not None:
            updates = task.to_train.optimization.max_update
            allowed = "left out without optimization.max_update, over which the share of masks falls"
            check("mask_prob_end", last, updates > 0, allowed)
        return task

    word_starts: Tensor | None = None

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Loads a split, masked.

        Raises:
            UserError: whole words are to be masked, and no subword model beside the data says where they begin.
        """
        if self.cfg.mask_whole_words and self.word_starts is None:
            self._find_word_starts()
        super().load_dataset(split, epoch, combine, **kwargs)
        described = DescribedBatches(self.datasets[split], self.source_dictionary.pad(), masked=True)
        self.datasets[split] = SharedEpochDataset(described)

    def _find_word_starts(self) -> None:
        folder = Path(split_paths(self.cfg.data)[0])
        options, allowed = subword_model_options(folder), f"false: {folder} holds {NO_SUBWORD_MODEL}"
        check("mask_whole_words", True, bool(options), allowed)
        self.args = Namespace(**options)  # where fairseq's masked_lm looks for it
        self.word_starts = get_whole_word_mask(self.args, self.source_dictionary).bool()

    def before_update(self, sample: dict[str, Any], update_num: int) -> dict[str, Any]:
        """The batch with as many masks as its update has."""
        first, last, cfg = self.cfg.mask_prob, self.cfg.mask_prob_end, self.to_train
        if last is None or cfg is None:
            return sample
        return self._thinned(sample, share_of_masks(first, last, update_num, cfg.optimization.max_update), update_num)

    def valid_step(self, sample: dict[str, Any], model: BaseFairseqModel, criterion: FairseqCriterion) -> Any:
        """One batch of validation, with the masks of the last update; the same ones whenever it is validated."""
        if self.cfg.mask_prob_end is not None:
            sample = self._thinned(sample, self.cfg.mask_prob_end, 0)
        return super().valid_step(sample, model, criterion)

    def _thinned(self, sample: dict[str, Any], share: float, update: int) -> dict[str, Any]:
        """The batch with this share of its positions masked, of which the dataset masked ``mask_prob``."""
        inputs = sample["net_input"]
        kept, seed = share / self.cfg.mask_prob, 1_000_003 * self.cfg.seed + update
        pad = self.source_dictionary.pad()
        if self.word_starts is not None:
            self.word_starts = self.word_starts.to(sample["target"].device)  # once
        masked = inputs["src_tokens"], sample["target"]
        tokens, targets = thin_masks(*masked, sample["id"], kept, seed, pad, self.word_starts)
        others = {name: value for name, value in inputs.items() if name != "masked_positions"}  # they have changed
        return {**sample, "net_input": {**others, "src_tokens": tokens}, "target": targets}
