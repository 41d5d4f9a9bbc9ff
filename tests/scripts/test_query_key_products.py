"""Formulas for query-key products against the products that a layer computes."""

from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from query_key_products import PRODUCTS, share_of_products
from torch.overrides import TorchFunctionMode

from fairseq_linformer.attention import ATTENTIONS, get_attention
from fairseq_linformer.model.config import resolve_config

HEADS, HEAD_DIM = 2, 13  # a number that no other dimension below has
LENGTHS = (7, 61, 99)

OPTIONS = {
    "softmax": [{}],
    "none": [{}],
    "linformer": [
        {"projected_length": 9},
        {"projected_length": 9, "projection": "mean-pool"},
        {"projected_length": 9, "projection": "mean-pool", "linformer_window": 5, "linformer_sinks": 3},
        {"projected_length": 9, "projection": "split-pool", "linformer_window": 1},
        {
            "projected_length": 33,
            "projection": "split-pool",
            "linformer_window": 6,
            "linformer_block": 4,
            "linformer_sinks": 1,
            "adaptive_length": True,
        },
        {"projected_length": 9, "projection": "mean-pool", "linformer_class_token": True},
    ],
    "alternating": [
        {"alternating_window": 6, "alternating_every": 2},
        {
            **{"alternating_window": 6, "alternating_every": 2, "alternating_full": "linformer"},
            **{"projected_length": 9, "projection": "mean-pool", "linformer_window": 4},
        },
    ],
    "longformer": [{"longformer_window": "4,10"}, {"longformer_window": 6, "longformer_global_tokens": 3}],
    "bigbird": [{"bigbird_block": 5, "bigbird_random_blocks": 2}],
    "long-short": [
        {"long_short_window": 5, "long_short_rank": 3},
        {"long_short_window": 6, "long_short_rank": 3, "long_short_class_token": True},
    ],
    "sparse": [
        {"sparse_stride": 11, "sparse_expressivity": 3},
        {"sparse_stride": 11, "sparse_pattern": "strided"},
    ],
    "reformer": [
        {"reformer_chunk_length": 6, "reformer_hashes": 2},
        {"reformer_chunk_length": 17, "reformer_hashes": 3},
        {"reformer_chunk_length": 6, "reformer_hashes": 1, "reformer_local": True},
        {"reformer_chunk_length": 6, "reformer_selection": "random"},
    ],
    "nystrom": [{"nystrom_landmarks": 10}],
    "lion": [{"lion_chunk": 6}, {"lion_chunk": 6, "lion_decay": "learned"}, {"lion_decay": "none"}],
    "quasiseparable": [{"quasiseparable_chunk": 6}],
    "linear": [{}, {"linear_feature_map": "hedgehog"}],
    "efficient": [{}],
    "revisited-linformer": [{"projected_length": 9}],
    "performer": [{"performer_features": 18}],
    "rfa": [{"rfa_features": 18}],
}
# The number of features of a query in kernel attention.
FEATURES = {"lion": 2 * HEAD_DIM, "quasiseparable": 2 * HEAD_DIM, "linear": HEAD_DIM, "efficient": HEAD_DIM}
FEATURES |= {"revisited-linformer": HEAD_DIM, "performer": 18, "rfa": 2 * 18}


class ProductCounter(TorchFunctionMode):
    """Counts products of queries with keys, and with sums over keys, by the shapes of matrix products.

    Products of vectors of d_h numbers are scores; a product with sums has one number per feature on its left side.
    """

    def __init__(self, length, features):
        super().__init__()
        self.length, self.features, self.scores, self.sums = length, features, 0, 0

    def __torch_function__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        name = getattr(function, "__name__", "")
        if function is F.scaled_dot_product_attention:
            queries, keys = arguments[:2]
            self.scores += queries[..., 0].numel() * keys.size(-2)
        elif name == "einsum" and arguments[0].endswith("s"):
            self.scores += result.numel()
        elif name in ("matmul", "__matmul__"):
            self.count(*arguments, result)
        return result

    def count(self, left, right, result):
        inner, columns = left.size(-1), right.size(-1)
        from_class_token = inner == HEADS * HEAD_DIM and columns == self.length
        if from_class_token or (inner == HEAD_DIM and columns not in (1, HEAD_DIM, HEADS * HEAD_DIM)):
            self.scores += result.numel()
        if inner == self.features and columns in (HEAD_DIM, HEAD_DIM + 1):
            self.sums += left.numel()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name, variants in OPTIONS.items() for options in variants], ids=str
)
def test_formulas_count_what_a_layer_computes(name, options, length):
    sizes = {"arch": "x", "encoder_layers": 2, "encoder_embed_dim": HEADS * HEAD_DIM, "encoder_attention_heads": HEADS}
    sizes |= {"encoder_ffn_embed_dim": 8, "attention_dropout": 0.0, "dropout": 0.0}
    config = resolve_config(Namespace(**sizes, attention=name, **options), max(LENGTHS))
    torch.manual_seed(0)
    hedgehog, plain = options.get("linear_feature_map"), options.get("lion_decay") == "none"
    counter = ProductCounter(length, 2 * HEAD_DIM if hedgehog else HEAD_DIM if plain else FEATURES.get(name))
    with torch.no_grad():
        for layer in get_attention(name).build_layers(config):
            with counter:
                layer.eval()(torch.randn(1, length, HEADS * HEAD_DIM))
    random_directions = name in ("performer", "rfa")
    counted = counter.sums + (0 if random_directions else counter.scores)
    assert share_of_products(config, length) * 2 * HEADS * length**2 == pytest.approx(counted)


def test_every_mechanism_has_a_formula():
    assert PRODUCTS.keys() == OPTIONS.keys() == ATTENTIONS.keys()
