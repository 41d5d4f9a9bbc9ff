"""attention/kernels/flex.py gives what the layers' own code gives, which test_contract.py holds to naive
references.

PyTorch's kernel has no backward pass on a CPU, and there a forward one that needs minutes of compilation. So a naive
kernel stands in for it, which believes the tiles of the mask as the real one does.
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
    ("linformer", {**POOLED, **own})
    for own in (
        {"linformer_window": 1, "k": 15},  # rows of one position each
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
SELECTING = [
    {"sharing": "key-value", "linformer_window": 4, "linformer_block": 2, **options}
    for options in (
        {"projection": "split-pool", "linformer_fetch": 3, "adaptive": True, "linformer_sinks": 1, "heads": 2},
        {"projection": "mean-pool", "linformer_fetch": 1, "linformer_class_token": True, "k": 15, "heads": 1, **ROTARY},
    )
]


def naive_kernel(queries, keys, values, block_mask, return_aux=None):
    """Tiles that are listed as seen in part ask the rule, those listed as seen in whole do not, no other is seen.

    A query that sees nothing gets zeros, and a logarithm of minus infinity, as PyTorch's has it.
    """

    def listed(tiles, numbers):
        found = torch.zeros(numbers.shape[2:], dtype=torch.bool)
        for row, count in enumerate(tiles[0, 0].tolist()):
            found[row, numbers[0, 0, row, :count].long()] = True
        positions = found.repeat_interleave(flex.TILE, 0).repeat_interleave(flex.TILE, 1)
        return positions[: queries.size(2), : keys.size(2)]

    batch, query, key = (torch.arange(size) for size in (len(queries), queries.size(2), keys.size(2)))
    rule = block_mask.mask_mod(batch[:, None, None], None, query[:, None], key)
    seen = listed(block_mask.kv_num_blocks, block_mask.kv_indices) & rule
    if block_mask.full_kv_num_blocks is not None:
        seen = seen | listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    scores = queries @ keys.transpose(2, 3) / queries.size(-1) ** 0.5
    seen = seen.expand(len(queries), -1, -1).unsqueeze(1)
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    nothing = ~seen.any(-1)
    heads, logs = (scores.softmax(-1) @ values).masked_fill(nothing.unsqueeze(-1), 0), scores.logsumexp(-1)
    return heads if return_aux is None else (heads, pytorch.AuxOutput(lse=logs.masked_fill(nothing, -torch.inf)))


@pytest.fixture
def naive(monkeypatch):
    monkeypatch.setattr(flex, "flex_attention", naive_kernel)
    monkeypatch.setattr(flex, "TILE", 4)


def pair(name, device="cpu", dtype=torch.float64, value_residual=False, **options):
    """A layer with its own code, and the same one with the kernel."""
    layers = [build(name, **options)[0].to(device, dtype) for _ in range(2)]
    for layer in layers:
        if value_residual:
            layer.add_value_residual()
            layer.to(device, dtype)
    assert flex.attach(layers[1])
    return layers


def texts(*lengths, d=D, dtype=torch.float64, device="cpu"):
    """Texts of these lengths and of the longest, with large numbers under padding, and their mask."""
    longest = max(lengths)
    mask = torch.arange(longest) >= torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), longest, d, dtype=dtype).masked_fill(mask.unsqueeze(-1), 100.0)
    return x.to(device), mask.to(device)


def outcome(layer, x, mask, first_values=None):
    """What leaves a layer at real positions, with the gradients of all that it was computed of."""
    given = [x.detach().requires_grad_()] + ([] if first_values is None else [first_values.detach().requires_grad_()])
    out = layer(given[0], mask, *given[1:])
    assert out.isfinite().all()
    out = out if mask is None else out[~mask]
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
    wanted = [*given, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
    return out, torch.autograd.grad((out * weights).sum(), wanted, allow_unused=True, materialize_grads=True)


@EACH
def test_gives_what_the_layers_own_code_gives(naive, name, options):
    """Forward and backward, at any length, padded or not, whatever masks are known from batches before."""
    residual = CASES.index((name, options)) % 2 == 1
    own, kernel = pair(name, value_residual=residual, **options)
    for lengths in ((13,), (13, 8, 1), (N, 8, 1), (N,), (3, 13), (6, 6), (2, 1), (N, 14)):
        x, mask = texts(*lengths)
        mask = mask if mask.any() else None
        first = torch.randn_like(x) if residual else None
        torch.testing.assert_close(outcome(kernel, x, mask, first), outcome(own, x, mask, first), atol=1e-9, rtol=0)


@pytest.mark.parametrize("options", SELECTING, ids=str)
@pytest.mark.slow
def test_what_is_fetched_is_what_the_layers_own_code_fetches(naive, options):
    """By the kernels of Triton, as its interpreter runs them, which earlier versions do not with today's NumPy."""
    pytest.importorskip("triton", minversion="3.9")
    own, kernel = pair("linformer", dtype=torch.float32, **options)
    for lengths in ((11, 0), (6,)):
        x, mask = texts(*lengths, dtype=torch.float32)
        mask = mask if mask.any() else None
        torch.testing.assert_close(outcome(kernel, x, mask), outcome(own, x, mask), atol=1e-4, rtol=1e-4)


def test_a_batch_that_might_be_padded_and_is_not(naive):
    """On a GPU nobody looks."""
    own, kernel = pair("linformer", linformer_window=4, **POOLED)
    x, mask = texts(N, N)
    torch.testing.assert_close(kernel(x, mask), own(x, None), atol=1e-9, rtol=0)


def test_tiles_that_nobody_sees_are_left_out_and_whole_ones_need_no_rule():
    """The recipe of base_2048 with near_and_far: two tiles of rows and two of the text, whole but at its ends."""
    n, k, tile = 2048, 256, flex.TILE
    layer = build("linformer", n=n, k=k, linformer_window=128, layers=1, **POOLED)[0]
    assert flex.attach(layer)
    inputs = layer.kernel.inputs(layer, torch.randn(1, n, D), None, None)
    assert inputs.prefix_len == k
    whole = layer.kernel.mask(layer, inputs, None)
    assert whole.full_kv_num_blocks.flatten().tolist() == [3, *[4] * (n // tile - 2), 3]
    assert whole.kv_num_blocks.flatten().tolist() == [1, *[0] * (n // tile - 2), 1]
    padded = layer.kernel.mask(layer, inputs, torch.zeros(1, n, dtype=torch.bool))
    assert padded.full_kv_num_blocks is None
    assert padded.kv_num_blocks.flatten().tolist() == [4] * (n // tile)


@EACH
def test_masks_ask_no_device(monkeypatch, name, options):
    monkeypatch.setattr(flex, "_compiled", lambda: lambda queries, keys, values, block_mask: queries + 0)
    _, kernel = pair(name, "meta", torch.float32, **options)
    for mask in (None, torch.zeros(2, N, dtype=torch.bool, device="meta")):
        assert kernel(torch.randn(2, N, D, device="meta"), mask).shape == (2, N, D)


def test_a_mask_from_inference_serves_a_training(naive):
    """And none stands in the way of saving the layer as it is."""
    _, kernel = pair("linformer", linformer_window=4, **POOLED)
    x, mask = texts(N, 8)
    with torch.inference_mode():
        expected = kernel(x, mask)
        torch.testing.assert_close(pickle.loads(pickle.dumps(kernel))(x, mask), expected)
    masks = kernel.kernel.cached.values()
    assert not any(part.is_inference() for cached in masks for part in (cached.mask.kv_indices, cached.block_starts))


def test_few_masks_are_kept(naive, monkeypatch):
    monkeypatch.setattr(flex, "MAX_CACHED_MASKS", 3)
    _, kernel = pair("longformer", longformer_window=4)
    for length in (5, 6, 7, 8, 5):
        kernel(*texts(length))
    assert len(kernel.kernel.cached) == 3


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 3, -1])
def test_pytorch_takes_the_mask(monkeypatch, at):
    """Its eager form, uncompiled, whose check that it trains on no CPU is passed over."""
    monkeypatch.setattr(pytorch, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(pytorch, "_validate_device", lambda *_: None)
    name, options = CASES[at]
    own, kernel = pair(name, **options)
    for lengths in ((N, N), (N, 8, 1), (7, 2)):
        x, mask = texts(*lengths)
        mask = mask if mask.any() else None
        torch.testing.assert_close(outcome(kernel, x, mask), outcome(own, x, mask), atol=1e-9, rtol=0)


ON_A_GPU = [
    ("linformer", {**POOLED, "linformer_window": 64}),
    ("linformer", {**POOLED, "linformer_window": 64, "heads": 2}),  # d_h = 24 is no power of two
    ("linformer", {"projection": "split-pool", "sharing": "key-value", "adaptive": True, "linformer_window": 128}),
    ("linformer", {"linformer_window": 32, "linformer_block": 16, "linformer_sinks": 3, **ROTARY}),
    ("longformer", {"longformer_window": 64, "longformer_global_tokens": 2, **ROTARY}),
    *(
        ("linformer", {"projection": "split-pool", "sharing": "key-value", "linformer_window": 64, **own})
        for own in (
            {"linformer_block": 32, "linformer_sinks": 1, "linformer_fetch": 4, "adaptive": True},
            {"linformer_block": 16, "linformer_fetch": 2, "k": 32, "heads": 2, **ROTARY},
        )
    ),
]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(("name", "options"), ON_A_GPU, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_it_gives_the_same(name, options, dtype):
    """By the real kernel, in both directions; bfloat16 under autocast."""
    if "linformer_fetch" in options and dtype == torch.bfloat16:
        pytest.skip("rounded scores choose other segments")
    own, kernel = pair(name, "cuda", torch.float32, **{"n": 512, "k": 128, "d": 48, "heads": 3, **options})
    with torch.no_grad():
        for layer in (own, kernel):  # scores of bfloat16 then differ by less
            for parameter in layer.parameters():
                parameter.mul_(0.3)
    cast = torch.autocast("cuda", dtype) if dtype == torch.bfloat16 else contextlib.nullcontext()
    close = {"atol": 2e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.05}
    least = 1e-2 if dtype == torch.float32 else 2**-5
    for lengths in ((512, 512), (512, 300, 1), (301, 301), (301, 7), (100,)):
        x, mask = texts(*lengths, d=48, dtype=torch.float32, device="cuda")
        mask = mask if max(lengths) != min(lengths) else None
        with cast:
            (out, gradients), (expected, others) = (outcome(layer, x, mask) for layer in (kernel, own))
        torch.testing.assert_close(out, expected, **close)
        whole = max(other.abs().max() for other in others)
        for gradient, other in zip(gradients, others, strict=True):
            largest = other.abs().max().clamp(min=least * whole)  # that of the keys' bias is 0 but for rounding
            torch.testing.assert_close(gradient / largest, other / largest, **close)


MODEL = {"encoder_embed_dim": 48, "attention_dropout": 0.0, "dropout": 0.0, "flex_attention": True}


@pytest.mark.parametrize("gpu", [False, True])
def test_a_model_has_the_kernel_where_there_is_a_gpu_and_a_window(naive, monkeypatch, gpu):
    """A checkpoint can be used anywhere; the option is rejected in a training without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    own = {**MODEL, "attention": "alternating", "alternating_window": 8}
    model, expected = small(**own), small(**{**own, "flex_attention": False})
    attentions = [layer.self_attn for layer in model.encoder.sentence_encoder.layers]
    assert [attention.kernel is not None for attention in attentions] == [False, gpu]
    batch = tokens(2, 37)
    batch[1, 20:] = 1
    outs = [each.eval()(batch, features_only=True)[0][batch != 1] for each in (model, expected)]
    torch.testing.assert_close(*outs, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_layers_are_compiled_around_the_kernel(naive, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend="eager"))
    torch._dynamo.reset()
    own = {**MODEL, "attention": "longformer", "longformer_window": 8, "encoder_layers": 1}
    with monkeypatch.context() as with_a_gpu:
        with_a_gpu.setattr(torch.cuda, "is_available", lambda: True)
        compiled = small(**own, compile_layers=True)
    expected = small(**{**own, "flex_attention": False})
    batch = tokens(2, 37)
    batch[1, 20:] = 1
    outs = [model(batch, features_only=True)[0][batch != 1] for model in (compiled, expected)]
    torch.testing.assert_close(*outs, atol=1e-5, rtol=0)
