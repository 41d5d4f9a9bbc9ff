"""Perplexities: of masked language models, and of the unigram model that they must leave behind."""

import math

import numpy as np
import torch
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.data import data_utils
from fairseq.models import BaseFairseqModel
from fairseq.tasks.masked_lm import MaskedLMTask


def masked_lm_perplexity(model: BaseFairseqModel, task: MaskedLMTask, split: str = "valid", rows: int = 8) -> float:
    """exp of the mean loss over the masked tokens of a split, `rows` rows at a time, as fairseq's criterion counts it.

    Which tokens are masked depends on the task's seed alone: they are the same for every model.
    """
    task.load_dataset(split)
    criterion = MaskedLmLoss(MaskedLmConfig(tpu=False), task)
    batches = task.get_batch_iterator(task.dataset(split), max_sentences=rows, epoch=1).next_epoch_itr(shuffle=False)
    loss, count = 0.0, 0
    model.eval()
    with torch.no_grad():
        for sample in batches:
            batch_loss, sample_size, _ = criterion(model, sample)
            loss += float(batch_loss)
            count += int(sample_size)
    return math.exp(loss / count)


def unigram_perplexity(task: MaskedLMTask, train: str = "train", valid: str = "valid") -> float:
    """Perplexity on `valid` of a model that knows how often each token stands in `train`, and nothing else."""
    counts, tokens = (_token_counts(task, split) for split in (train, valid))
    log_probabilities = np.log((counts + 1) / (counts + 1).sum())  # plus one: a token may be in valid alone
    return math.exp(-(tokens * log_probabilities).sum() / tokens.sum())


def _token_counts(task: MaskedLMTask, split: str) -> np.ndarray:
    """How often each id of the dictionary stands in a split, (V,)."""
    dataset = data_utils.load_indexed_dataset(f"{task.cfg.data}/{split}", task.source_dictionary)
    counts = np.zeros(len(task.source_dictionary), dtype=np.int64)
    for i in range(len(dataset)):
        np.add.at(counts, dataset[i].numpy(), 1)
    return counts
