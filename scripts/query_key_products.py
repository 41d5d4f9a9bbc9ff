"""Share of full attention's query-key products that a mechanism computes, from the shapes of its tensors.

A product is the score of a query with a key, a projected key, a landmark or a hashing direction. All scores that a
layer computes on a CPU count, also those that a mask hides. Kernel attention computes no scores; each feature of a
query weighs one sum over all keys, and counts as one product.

Dimensions: n sequence length, b block or chunk, m projected keys, d_h dimensions of a head.
"""

from collections.abc import Callable
from math import ceil
from statistics import mean
from typing import Any

import torch

from fairseq_linformer.attention import get_attention
from fairseq_linformer.attention.linformer import PROJECTIONS
from fairseq_linformer.model.options import ResolvedConfig


def share_of_products(config: ResolvedConfig, length: int) -> float | None:
    """Return the mean share over all layers, for a sequence without padding; None if the mechanism has no formula."""
    if config.attention not in PRODUCTS:
        return None
    options = get_attention(config.attention).Options.read(config)
    layers = range(config.encoder_layers)
    return mean(PRODUCTS[config.attention](config, options, layer, length) / length**2 for layer in layers)


def head_dim(config: ResolvedConfig) -> int:
    """Return d_h, the dimensions of a head."""
    return int(config.encoder_embed_dim // config.encoder_attention_heads)


def padded_length(length: int, size: int) -> int:
    """Return the length rounded up to a multiple of the block size."""
    return ceil(length / size) * size


def local_products(reach: int, global_tokens: int, length: int) -> int:
    """Count the products of a sliding window: each block with itself, both neighbours and the global tokens."""
    block = min(reach, length)
    tokens = min(global_tokens, length)
    return padded_length(length, block) * (tokens + 3 * block) + tokens * length


def linformer(config: ResolvedConfig, options: Any, layer: int, length: int) -> int:
    """Count the products with projected keys, local keys and sink tokens."""
    projected, window = projected_keys(config, layer, length), options.linformer_window[layer]
    class_token = length if options.linformer_class_token else 0
    if not window:
        return length * projected + class_token
    block = min(options.linformer_block or window, length)
    margin = min(max(1, window // 2), length)
    keys = projected + min(options.linformer_sinks, length) + block + 2 * margin
    return padded_length(length, block) * keys + class_token


def projected_keys(config: ResolvedConfig, layer: int, length: int) -> int:
    """Return m, the number of projected keys of a layer."""
    k = config.projected_length[layer]
    if not hasattr(PROJECTIONS[config.projection], "windows"):
        return k
    return min(k, length) if config.adaptive_length else ceil(length / (config.max_positions // k))


def alternating(config: ResolvedConfig, options: Any, layer: int, length: int) -> int:
    if options.kind_of_layer(layer) != "full":
        return local_products(options.alternating_window // 2, 0, length)
    return length**2 if options.alternating_full == "softmax" else linformer(config, options, layer, length)


def bigbird(config: ResolvedConfig, options: Any, layer: int, length: int) -> int:
    """Count five blocks and the random blocks for each block, and all keys for the first and the last block."""
    block = min(options.bigbird_block, length)
    random_blocks = min(options.bigbird_random_blocks, ceil(config.max_positions / options.bigbird_block))
    return padded_length(length, block) * ((random_blocks + 5) * block + 2 * block)


def long_short(config: ResolvedConfig, options: Any, layer: int, length: int) -> int:
    window = min(options.long_short_window, length)
    keys = options.long_short_rank + window + 2 * max(1, window // 2)
    class_token = int(options.long_short_class_token)
    return padded_length(length, window) * (keys + class_token) + class_token * (length + 1)


def sparse(config: ResolvedConfig, options: Any, layer: int, length: int) -> int:
    block = min(options.stride_for(config.max_positions), length)
    blocks = ceil(length / block)
    strided = options.sparse_pattern == "strided"
    keys = 3 * block + blocks if strided else block + blocks * options.sparse_expressivity
    return blocks * block * keys


def reformer(config: ResolvedConfig, options: Any, layer: int, length: int) -> int:
    """Count the keys of three chunks in each round, and the products that select them.

    These are with the hashing directions (hash), the mean keys (segment-means) or all keys (exact). For segment-means a
    kernel is assumed that does not score the keys of other segments; the implementation scores all keys.
    """
    chunk, selection = options.reformer_chunk_length, options.reformer_selection
    if selection == "exact":
        return length**2
    functions = 1 if config.max_positions <= chunk**2 else 2
    buckets = 2 * torch.tensor(config.max_positions) / chunk
    directions = functions * max(1, ceil(float(buckets ** (1 / functions) / 2)))
    selecting = {"hash": options.reformer_hashes * directions, "random": 0, "segment-means": ceil(length / chunk)}
    keys = 3 * chunk * (options.reformer_hashes + options.reformer_local)
    return padded_length(length, chunk) * (keys + selecting[selection])


def nystrom(config: ResolvedConfig, options: Any, layer: int, length: int) -> int:
    landmarks = min(options.nystrom_landmarks, length)
    return 2 * length * landmarks + landmarks**2


def decayed(chunk: int, config: ResolvedConfig, length: int) -> int:
    """Count the products within chunks, and the features of queries that weigh the sums of earlier and later chunks."""
    block = min(chunk, length)
    sums = 2 * head_dim(config) if length > block else 0
    return padded_length(length, block) * (block + sums)


def lion(config: ResolvedConfig, options: Any, layer: int, length: int) -> int:
    return length * head_dim(config) if options.lion_decay == "none" else decayed(options.lion_chunk, config, length)


def linear(config: ResolvedConfig, options: Any, layer: int, length: int) -> int:
    return length * head_dim(config) * (2 if options.linear_feature_map == "hedgehog" else 1)


PRODUCTS: dict[str, Callable[[ResolvedConfig, Any, int, int], int]] = {
    "softmax": lambda config, options, layer, n: n**2,
    "none": lambda config, options, layer, n: 0,
    "linformer": linformer,
    "alternating": alternating,
    "longformer": lambda config, options, layer, n: local_products(
        options.longformer_window[layer] // 2, options.longformer_global_tokens, n
    ),
    "bigbird": bigbird,
    "long-short": long_short,
    "sparse": sparse,
    "reformer": reformer,
    "nystrom": nystrom,
    "lion": lion,
    "quasiseparable": lambda config, options, layer, n: decayed(options.quasiseparable_chunk, config, n),
    "linear": linear,
    "efficient": lambda config, options, layer, n: n * head_dim(config),
    "revisited-linformer": lambda config, options, layer, n: n * head_dim(config),
    "performer": lambda config, options, layer, n: n * options.performer_features,
    "rfa": lambda config, options, layer, n: n * 2 * options.rfa_features,
}
