"""Perplexity: of masked language models, and of the unigram model that they must beat."""

import math

import numpy as np
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.data import Dictionary, data_utils
from fairseq.models import BaseFairseqModel
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.utils import move_to_cuda

from ..data.frequencies import unigram_perplexity


def masked_lm_perplexity(model: BaseFairseqModel, task: MaskedLMTask, split: str = "valid", rows: int = 8) -> float:
    """exp of the mean loss in nats over the masked tokens of a split, as fairseq's criterion computes it.

    Masks and the order of rows depend on the task's seed only: they are the same for every model.

    Args:
        model: in evaluation mode afterwards.
        task: with the data; the split is loaded here.
        split: of the task's data.
        rows: per batch.

    Raises:
        FileNotFoundError: the task's data has no such split.
    """
    task.load_dataset(split)
    criterion = MaskedLmLoss(MaskedLmConfig(tpu=False), task)
    samples = task.get_batch_iterator(task.dataset(split), max_sentences=rows, epoch=1).next_epoch_itr(shuffle=False)
    loss, count, on_gpu = 0.0, 0, next(model.parameters()).is_cuda
    for sample in samples:
        batch = move_to_cuda(sample) if on_gpu else sample
        batch_loss, sample_size, _ = task.valid_step(batch, model, criterion)
        loss += float(batch_loss)
        count += int(sample_size)
    return math.exp(loss / count)


def perplexity_of_frequencies(task: MaskedLMTask, train: str = "train", valid: str = "valid") -> float:
    """Perplexity on the split `valid` of a model that predicts each token by its frequency in `train`."""
    return unigram_perplexity(_token_counts(task, train), _token_counts(task, valid))


def _token_counts(task: MaskedLMTask, split: str) -> np.ndarray:
    """How often each id of the dictionary occurs in a split, (V,)."""
    ids = token_stream(f"{task.cfg.data}/{split}", task.source_dictionary)
    return np.bincount(ids, minlength=len(task.source_dictionary))


def token_stream(prefix: str, dictionary: Dictionary) -> np.ndarray:
    """The ids of all items of a dataset, one after another, (tokens,), read as they are asked for.

    Args:
        prefix: the dataset's path without .bin.
        dictionary: of the dataset.

    Raises:
        FileNotFoundError: there is no such dataset.
    """
    dataset = data_utils.load_indexed_dataset(prefix, dictionary, dataset_impl="mmap")
    if dataset is None:
        raise FileNotFoundError(f"there is no dataset {prefix}")
    return np.memmap(f"{prefix}.bin", dtype=dataset._index.dtype, mode="r")  # which holds nothing else
