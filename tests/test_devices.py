"""No step reads values from a device, so that the host does not wait for a GPU between the first layer and the loss.

PyTorch's meta device has no values: reading one raises an error. On a GPU, PyTorch raises an error if the host waits.
"""

import contextlib

import pytest
import torch

from tests.helpers.models import MODELS, RECOMPUTED, WINDOW, small, tokens

VARIANTS = [*MODELS, RECOMPUTED, {**WINDOW, "projection": "mean-pool", "positions": "rotary", "rotary_share": 0.5}]
VARIANTS += [
    {"attention": "bigbird", "positions": "alibi"},
    {"attention": "alternating", "positions": "alibi"},
    {"attention": "longformer", "positions": "rotary"},
    {"attention": "long-short", "positions": "rotary", "rotary_share": 0.5},
    {**RECOMPUTED, "value_residual": True},
    {"encoder_layerdrop": 0.5},
    {"attention": "softmax", "attention_dropout": 0.1},
]

FLEX = [
    {**options, "flex_attention": True, "encoder_embed_dim": 48}
    for options in (
        {"linformer_window": 8, "linformer_sinks": 1, "projection": "split-pool", "adaptive_length": True},
        {"attention": "longformer", "longformer_window": 4},
    )
]


@pytest.fixture
def on_meta(monkeypatch):
    """A model with dropout on the meta device, and a batch of rows there."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **options: contextlib.nullcontext())  # unknown to this device

    def build(rows=2, length=64, **options):
        model = small(**{"dropout": 0.1, "attention_dropout": 0.0, **options}).to("meta")
        return model, tokens(rows, length).to("meta")

    return build


BATCHES = ((64, False), (37, True))  # length, padded


def take_steps(model, batch, padded):
    """Run steps of pretraining, fine-tuning and inference."""
    masked = torch.zeros_like(batch, dtype=torch.bool)
    positions = torch.zeros(9, dtype=torch.int64, device=batch.device)
    info = {"masked_tokens": masked, "masked_positions": positions, "padded": padded}
    model.train()(batch, masked_targets=positions, **info)[0].backward()
    with torch.no_grad():
        assert model(batch, **info)[0].shape[0] == 9
        assert model(batch, features_only=True, classification_head_name="head", padded=padded)[0].shape == (2, 3)
        assert model.eval()(batch, features_only=True)[0].shape == (*batch.shape, model.args.encoder_embed_dim)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_no_step_reads_values(on_meta, options):
    length, padded = BATCHES[VARIANTS.index(options) % 4 > 0]  # every fourth one unpadded
    model, batch = on_meta(length=length, encoder_layers=2 if "value_residual" in options else 1, **options)
    model.register_classification_head("head", num_classes=3)
    take_steps(model.to("meta"), batch, padded)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("options", [*VARIANTS, *FLEX], ids=str)
def test_no_step_waits_for_a_gpu(options):
    """After a first step, in which kernels are selected."""
    model = small(**{"dropout": 0.1, "attention_dropout": 0.0, **options})
    model.register_classification_head("head", num_classes=3)
    for length, padded in BATCHES:
        batch = tokens(2, length).cuda()
        for mode in ("default", "error"):
            torch.cuda.set_sync_debug_mode(mode)
            try:
                take_steps(model.cuda(), batch, padded)
            finally:
                torch.cuda.set_sync_debug_mode("default")
