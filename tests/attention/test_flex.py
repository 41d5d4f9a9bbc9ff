"""FlexAttention equals the layers' own code, which test_contract.py compares with naive references.

On a CPU PyTorch's kernel has no backward pass, and compiles for minutes. It is replaced by a naive kernel, which
computes the same tiles of the mask.
"""

import contextlib
import pickle
from functools import partialmethod
from itertools import cycle

import pytest
import torch
import torch.nn.attention.flex_attention as pytorch

from fairseq_linformer.attention.kernels import flex
from tests.helpers.layers import D, N, build
from tests.helpers.models import small, tokens

ROTARY = {"positions": "rotary", "share": 0.5}
POOLED = {"projection": "mean-pool", "sharing": "key-value"}
WINDOWS = cycle(({"linformer_window": 4}, {"linformer_window": 6, "linformer_block": 2, "linformer_sinks": 2}))
CASES = [
    ("linformer", {"projection": projection, "sharing": "key-value", "adaptive": adaptive, **next(WINDOWS)})
    for adaptives in ((False, True), (True, False))
    for projection, adaptive in zip(("linear", "mean-pool", "split-pool", "conv"), 2 * adaptives, strict=True)
]
CASES += [
    ("linformer", {**POOLED, **options})
    for options in (
        {"linformer_window": 1, "k": 15},  # each projected key is one position
        {"linformer_window": 4, "linformer_block": 3, "linformer_sinks": 3, "k": 15, **ROTARY},
        {"linformer_window": 100, "linformer_sinks": 100},
        {"linformer_window": 4, "linformer_class_token": True, "adaptive": True, "heads": 2},
    )
]
CASES += [
    ("longformer", {"longformer_window": 4, "longformer_global_tokens": 0}),
    ("longformer", {"longformer_window": 2, "longformer_global_tokens": 3, **ROTARY}),
    ("longformer", {"longformer_window": 512}),
]
EACH = pytest.mark.parametrize(("name", "options"), CASES, ids=str)


def naive_kernel(queries, keys, values, block_mask):
    """Apply the mask's function to partial tiles alone; full tiles are visible, all others hidden.

    As in PyTorch, a query without keys gets zeros.
    """

    def positions(numbers, indices):
        tiles = torch.zeros(indices.shape[2:], dtype=torch.bool)
        for row, number in enumerate(numbers[0, 0].tolist()):
            tiles[row, indices[0, 0, row, :number].long()] = True
        tiles = tiles.repeat_interleave(flex.TILE, 0).repeat_interleave(flex.TILE, 1)
        return tiles[: queries.size(2), : keys.size(2)]

    batch, query, key = (torch.arange(size) for size in (len(queries), queries.size(2), keys.size(2)))
    mask = block_mask.mask_mod(batch[:, None, None], None, query[:, None], key)
    mask = mask & positions(block_mask.kv_num_blocks, block_mask.kv_indices)
    if block_mask.full_kv_num_blocks is not None:
        mask = mask | positions(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    mask = mask.expand(len(queries), -1, -1).unsqueeze(1)
    scores = queries @ keys.transpose(2, 3) / queries.size(-1) ** 0.5
    scores, empty = scores.masked_fill(~mask, torch.finfo(scores.dtype).min), ~mask.any(-1)
    return (scores.softmax(-1) @ values).masked_fill(empty.unsqueeze(-1), 0)


@pytest.fixture
def naive(monkeypatch):
    monkeypatch.setattr(flex, "flex_attention", naive_kernel)
    monkeypatch.setattr(flex, "TILE", 4)


def pair(name, device="cpu", dtype=torch.float64, value_residual=False, **options):
    """Return a layer with its own code, and the same one with the kernel."""
    layers = [build(name, **options)[0] for _ in range(2)]
    for layer in layers:
        if value_residual:
            layer.add_value_residual()
        layer.to(device, dtype)
    assert flex.attach(layers[1])
    return layers


def texts(*lengths, d=D, dtype=torch.float64, device="cpu"):
    """Return texts of these lengths, with large numbers under padding, and their mask, None for one text."""
    mask = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), max(lengths), d, dtype=dtype).masked_fill(mask.unsqueeze(-1), 100.0)
    return x.to(device), None if len(lengths) == 1 else mask.to(device)


def with_gradients(layer, x, mask, first_values=None):
    """Return a layer's output at unmasked positions, and the gradients of its inputs and parameters."""
    inputs = [part.detach().requires_grad_() for part in (x, first_values) if part is not None]
    out = layer(inputs[0], mask, *inputs[1:])
    assert out.isfinite().all()
    out = out if mask is None else out[~mask]
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
    inputs += [parameter for parameter in layer.parameters() if parameter.requires_grad]
    return out, torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True, materialize_grads=True)


def assert_equal(name, lengths, tolerance=1e-9, dtype=torch.float64, **options):
    layer, kernel = pair(name, dtype=dtype, **options)
    for sizes in lengths:
        x, mask = texts(*sizes, dtype=dtype)
        first_values = torch.randn_like(x) if options.get("value_residual") else None
        actual, expected = (with_gradients(each, x, mask, first_values) for each in (kernel, layer))
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@EACH
def test_equals_the_layer(naive, name, options):
    """Forward and backward, with masks cached from earlier batches, and a mask without padding (6, 6)."""
    residual = CASES.index((name, options)) % 2 == 1
    assert_equal(name, ((13, 8, 1), (3, 13), (13,), (6, 6), (2, 1), (N,)), value_residual=residual, **options)


def test_hidden_tiles_are_skipped_and_full_ones_need_no_mask():
    """With the sizes of base_2048 and near_and_far each tile of queries has two of projected and two of local keys."""
    n, k, tile = 2048, 256, flex.TILE
    layer = build("linformer", n=n, k=k, linformer_window=128, layers=1, **POOLED)[0]
    assert flex.attach(layer)
    inputs = layer.kernel.inputs(layer, torch.randn(1, n, D), None, None)
    assert inputs.prefix_len == k
    unpadded = layer.kernel.mask(layer, inputs, None)
    assert unpadded.full_kv_num_blocks.flatten().tolist() == [3, *[4] * (n // tile - 2), 3]
    assert unpadded.kv_num_blocks.flatten().tolist() == [1, *[0] * (n // tile - 2), 1]
    padded = layer.kernel.mask(layer, inputs, torch.zeros(1, n, dtype=torch.bool))
    assert padded.full_kv_num_blocks is None
    assert padded.kv_num_blocks.flatten().tolist() == [4] * (n // tile)


@pytest.mark.parametrize(("name", "options"), CASES[::3], ids=str)
def test_masks_do_not_wait_for_the_device(monkeypatch, name, options):
    monkeypatch.setattr(flex, "_compiled", lambda: lambda queries, keys, values, block_mask: queries + 0)
    _, kernel = pair(name, "meta", torch.float32, **options)
    for mask in (None, torch.zeros(2, N, dtype=torch.bool, device="meta")):
        assert kernel(torch.randn(2, N, D, device="meta"), mask).shape == (2, N, D)


def test_a_mask_cached_in_inference_serves_training_and_a_layer_can_be_pickled(naive):
    _, kernel = pair("linformer", linformer_window=4, **POOLED)
    x, mask = texts(N, 8)
    with torch.inference_mode():
        expected = kernel(x, mask)
        torch.testing.assert_close(pickle.loads(pickle.dumps(kernel))(x, mask), expected)
    masks = kernel.kernel.cached.values()
    assert not any(part.is_inference() for cached in masks for part in (cached.mask.kv_indices, cached.block_starts))


def test_the_cache_is_limited(naive, monkeypatch):
    monkeypatch.setattr(flex, "MAX_CACHED_MASKS", 3)
    _, kernel = pair("longformer", longformer_window=4)
    for length in (5, 6, 7, 8, 5):
        kernel(*texts(length))
    assert len(kernel.kernel.cached) == 3


@pytest.mark.slow
@pytest.mark.parametrize("index", [3, -1])
def test_pytorch_accepts_the_mask(monkeypatch, index):
    """PyTorch's eager kernel, without its check that a CPU does not train."""
    monkeypatch.setattr(pytorch, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(pytorch, "_validate_device", lambda *_: None)
    name, options = CASES[index]
    assert_equal(name, ((N, 8, 1), (7, 2), (N,)), **options)


ON_A_GPU = [
    ("linformer", {**POOLED, "linformer_window": 64}),
    ("linformer", {**POOLED, "linformer_window": 64, "heads": 2}),  # d_h = 24 is no power of two
    ("linformer", {"projection": "split-pool", "sharing": "key-value", "adaptive": True, "linformer_window": 128}),
    ("linformer", {"linformer_window": 32, "linformer_block": 16, "linformer_sinks": 3, **ROTARY}),
    ("longformer", {"longformer_window": 64, "longformer_global_tokens": 2, **ROTARY}),
]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(("name", "options"), ON_A_GPU, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_layer_on_a_gpu(name, options, dtype):
    """PyTorch's kernels, forward and backward; bfloat16 under autocast."""
    layers = pair(name, "cuda", torch.float32, **{"n": 512, "k": 128, "d": 48, "heads": 3, **options})
    with torch.no_grad():
        for parameter in (parameter for layer in layers for parameter in layer.parameters()):
            parameter.mul_(0.3)  # scores of bfloat16 then differ by less
    autocast = torch.autocast("cuda", dtype) if dtype == torch.bfloat16 else contextlib.nullcontext()
    close = {"atol": 2e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.05}
    smallest = 1e-2 if dtype == torch.float32 else 2**-5
    for lengths in ((512, 512), (512, 300, 1), (301, 301), (301, 7), (100,)):
        x, mask = texts(*lengths, d=48, dtype=torch.float32, device="cuda")
        mask = mask if max(lengths) != min(lengths) else None
        with autocast:
            (expected, expected_gradients), (out, gradients) = (with_gradients(layer, x, mask) for layer in layers)
        torch.testing.assert_close(out, expected, **close)
        largest = max(gradient.abs().max() for gradient in expected_gradients)
        for gradient, exact in zip(gradients, expected_gradients, strict=True):
            scale = exact.abs().max().clamp(min=smallest * largest)  # that of the keys' bias is 0 but for rounding
            torch.testing.assert_close(gradient / scale, exact / scale, **close)


MODEL = {"encoder_embed_dim": 48, "attention_dropout": 0.0, "dropout": 0.0, "flex_attention": True}


def assert_equal_models(*models):
    batch = tokens(2, 37)
    batch[1, 20:] = 1
    torch.testing.assert_close(
        *(model(batch, features_only=True)[0][batch != 1] for model in models), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("gpu", [False, True])
def test_layers_with_a_window_have_the_kernel_on_a_gpu(naive, monkeypatch, gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    options = {**MODEL, "attention": "alternating", "alternating_window": 8}
    model, expected = small(**options).eval(), small(**{**options, "flex_attention": False}).eval()
    attentions = [layer.self_attn for layer in model.encoder.sentence_encoder.layers]
    assert [attention.kernel is not None for attention in attentions] == [False, gpu]
    assert_equal_models(model, expected)


@pytest.mark.slow
def test_layers_are_compiled_without_the_kernel(naive, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend="eager"))
    torch._dynamo.reset()
    options = {**MODEL, "attention": "longformer", "longformer_window": 8, "encoder_layers": 1}
    with monkeypatch.context() as with_a_gpu:
        with_a_gpu.setattr(torch.cuda, "is_available", lambda: True)
        compiled = small(**options, compile_layers=True)
    assert_equal_models(compiled, small(**{**options, "flex_attention": False}))
