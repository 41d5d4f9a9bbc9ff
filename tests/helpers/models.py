"""A small model, and tokens for it."""

from argparse import Namespace

import torch
from fairseq.data import Dictionary

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.attention.linformer import PROJECTIONS
from fairseq_linformer.model.roberta import LinformerRobertaModel

VOCABULARY = 100
SIZES = {"encoder_layers": 2, "encoder_embed_dim": 24, "encoder_ffn_embed_dim": 40, "encoder_attention_heads": 3}
RECOMPUTED = {"checkpoint_activations": True}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # of tests whose outcome depends on it
OFFLOADED = {"checkpoint_activations": True, "offload_activations": True}

# Each kind of model, small: every mechanism, projection and sharing once.
WINDOW = {"linformer_window": 8, "linformer_block": 4, "linformer_sinks": 1}
WITHOUT_BIASES = {"attention_bias": False, "norm_bias": False, "head_bias": False, "gated_ffn": True}
MODERN = {"attention": "alternating", "positions": "rotary", "encoder_normalize_before": True, **WITHOUT_BIASES}
MODERN |= {"first_attention_norm": False, "pooler_norm": True, "alternating_window": 4, "alternating_rotary_base": 5.0}
MODELS = [
    {"attention": "softmax"},
    {"encoder_normalize_before": True, "local_conv": 3},
    {"projected_length": "16..4", "projection": "random"},
    *({"sharing": sharing} for sharing in PROJECTIONS["linear"].SHARINGS),
    *({"projection": name, "adaptive_length": True} for name in PROJECTIONS),
    *(
        {"attention": name, "attention_dropout": 0.0, **kind.Options.TEST_CASES[0]}
        for name, kind in ATTENTIONS.items()
        if name not in ("softmax", "linformer")
    ),
    {"attention": "softmax", "positions": "rotary"},
    {"attention": "long-short", "long_short_window": 4, "positions": "alibi"},
    {"gated_ffn": True},
    MODERN,
    {"value_residual": True, "encoder_normalize_before": True},
    {"linformer_window": 8, "linformer_class_token": True},
    {"projection": "mean-pool", "positions": "alibi", **WINDOW},
    {"projection": "split-pool", "value_residual": True, **WINDOW},
]


class Task:
    """Task with the dictionary and the length that a model reads."""

    def __init__(self, length=64):
        self.source_dictionary = Dictionary()
        for i in range(VOCABULARY - 4):
            self.source_dictionary.add_symbol(f"w{i}")
        self.length = length

    def max_positions(self):
        return self.length


def small(seed=0, **options):
    """A model of two layers of three heads, 64 positions, k = 8, with weights from that seed."""
    torch.manual_seed(seed)
    return LinformerRobertaModel.build_model(Namespace(**{**SIZES, "projected_length": 8, **options}), Task())


def tokens(rows=2, length=64):
    """The same random tokens every time, none of them special: (rows, length)."""
    return torch.randint(4, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def gradients_of(model, loss):
    """The gradient of each parameter that has one."""
    model.zero_grad()
    loss.backward()
    return [value.grad.clone() for value in model.parameters() if value.grad is not None]
