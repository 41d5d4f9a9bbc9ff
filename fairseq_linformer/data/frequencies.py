"""The model that every other must beat: it predicts each token by how often it occurs."""

import math

import numpy as np


def unigram_perplexity(train: np.ndarray, valid: np.ndarray) -> float:
    """Perplexity on tokens that occur `valid` times, (V,), by their counts in train, (V,), plus one.

    Plus one, because a token may occur in valid only.
    """
    log_probabilities = np.log((train + 1) / (train + 1).sum())
    return math.exp(-(valid * log_probabilities).sum() / valid.sum())
