"""The models that the benchmark compares: they read the same batches, and have the width and depth asked for."""

import math
from dataclasses import replace

import pytest
import torch
from benchmarking.baselines import MODELS
from benchmarking.measuring import Case
from torch import nn

from tests.helpers.benchmarks import SIZES

BLOCKS = {"hf-modernbert": {(72, 24), (24, 24), (24, 36)}}  # queries, keys and values in one; gated 1.5 d
SQUARES = {"hf-modernbert": 2}


@pytest.mark.parametrize("name", ["linformer", "softmax", *list(MODELS)[-3:]])
def test_every_model_learns_from_and_encodes_the_same_batch(name):
    pytest.importorskip("transformers" if name.startswith("hf") else "torch")
    model = Case(name, SIZES, "forward + backward", 2).build()
    batch = model.draw(SIZES, 2)
    model.module.eval()
    assert model.features(*batch).shape == (2, 64, 24)
    model.module.train()
    loss = model.loss(*batch)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(50), rel=0.5)
    weights = [
        part.weight for part in model.module.modules() if isinstance(part, nn.Linear) and part.weight.grad is not None
    ]
    blocks = {tuple(weight.shape) for weight in weights}
    assert blocks >= BLOCKS.get(name, {(24, 24), (96, 24), (24, 96)}), "d x d, and a feed-forward network of 4 d"
    squares = sum(weight.shape == (24, 24) for weight in weights)
    assert squares == SQUARES.get(name, 5), "queries, keys, values, output, and the LM head's"


def test_the_examples_layer_and_ours_compute_the_same():
    """So that the suite compares like with like: their parameters in our layer give their output."""
    cases = (Case(model, SIZES, "inference", 1, layer_alone=True) for model in ("linformer", "fairseq-example"))
    ours, theirs = (case.build() for case in cases)
    names = {name.replace("compress_k", "key_projection"): value for name, value in theirs.module.named_parameters()}
    ours.module.load_state_dict({**names, "key_projection.multiplier": torch.tensor(1.0)}, strict=False)
    assert set(names) >= {name for name, _ in ours.module.named_parameters()}
    for layer in (ours, theirs):
        layer.module.eval()
    outs = [layer.features(*layer.draw(SIZES, 2)) for layer in (ours, theirs)]
    torch.testing.assert_close(outs[0], outs[1].transpose(0, 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "masked"), [("linformer", True), ("softmax", True), ("softmax-flash", False)])
def test_off_the_cpu_models_run_with_the_mask_that_users_models_have(name, masked):
    """In training they know that nothing is padded; in inference they do not, but for those named by a kernel.

    (The device meta stands for a GPU.)
    """
    model = replace(MODELS[name](SIZES), kernel=None)  # device meta has none
    masks = []
    attention = model.module.to("meta").encoder.sentence_encoder.layers[0].self_attn
    attention.register_forward_pre_hook(lambda _, arguments: masks.append(arguments[1]))
    batch = [tensor.to("meta") for tensor in model.draw(SIZES, 2)]
    model.features(*batch)
    model.loss(*batch)
    assert [mask is not None for mask in masks] == [masked, False]
