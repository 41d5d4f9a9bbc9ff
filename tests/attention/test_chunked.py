"""Attention in chunks against the naive product under the same dropout masks, and its precision."""

import pytest
import torch
from torch.autograd import grad

from fairseq_linformer.attention import chunked
from fairseq_linformer.attention.chunked import attend_in_chunks
from fairseq_linformer.attention.positions import HIDDEN
from tests.helpers.layers import build

P = 0.3
KEPT = 1 - round(P * 2**16) / 2**16


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch):
    monkeypatch.setattr(chunked, "WEIGHTS", 16 * 2 * 3 * 5)
    monkeypatch.setattr(chunked, "MIN_QUERIES", 16)


@pytest.mark.parametrize("queries", [1, 16, 35])
@pytest.mark.parametrize("attn_mask", [None, (2, 1, 1, 5), (2, 1, -1, 5), (1, 3, -1, 5)], ids=str)
@pytest.mark.parametrize("of_numbers", [False, True])
def test_attention_equals_the_naive_product_under_the_same_mask(queries, attn_mask, of_numbers):
    """Forward and gradients, so that both passes have the same mask and scale."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 5, dtype=torch.float64, requires_grad=True) for n in (queries, 5, 5))
    if attn_mask is not None:
        attn_mask = torch.rand([queries if size == -1 else size for size in attn_mask])
        attn_mask = attn_mask.double().log() if of_numbers else attn_mask < 0.6
        attn_mask[..., 0] = True
    torch.manual_seed(1)
    identity = torch.eye(5, dtype=torch.float64).expand(2, 3, 5, 5)
    dropped = attend_in_chunks(q, k, identity, attn_mask, P)  # the weights
    scores = q @ k.transpose(2, 3) / 5**0.5
    if attn_mask is not None:
        scores = scores + attn_mask if of_numbers else scores.masked_fill(~attn_mask, -torch.inf)
    naive = scores.softmax(-1) * (dropped != 0) / KEPT @ v
    torch.manual_seed(1)
    out = attend_in_chunks(q, k, v, attn_mask, P)
    torch.testing.assert_close(out, naive, atol=1e-12, rtol=0)
    towards = torch.randn(out.shape, dtype=torch.float64)
    gradients = (grad(y, (q, k, v), towards) for y in (out, naive))
    torch.testing.assert_close(*gradients, atol=1e-11, rtol=0)


@pytest.mark.parametrize("p", [0.0, P])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_bias_hides_keys_as_a_boolean_mask_does(p, dtype):
    """In ``Attention.attend`` with and without dropout. The result of a query without keys is finite."""
    attention, results = build("softmax", dropout=p)[0], []
    boolean = torch.tensor([[True, False, True], [False, False, True], [False] * 3])
    queries = torch.randn(2, 3, 3, 4, dtype=dtype, requires_grad=True)
    for mask in (boolean, torch.zeros(3, 3).masked_fill(~boolean, HIDDEN)):
        torch.manual_seed(1)
        results.append(attention.attend(queries, queries, queries, mask))
        assert results[-1].isfinite().all() and grad(results[-1].sum(), queries)[0].isfinite().all()
    torch.testing.assert_close(results[0][:, :, :2], results[1][:, :, :2])


def with_gradients(*inputs, p=P, autocast=False, autocast_backward=False):
    """Return the result and the gradients of q, k and v; the last input is the gradient of the result."""
    *leaves, towards = inputs
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    torch.manual_seed(1)
    with torch.autocast("cpu", enabled=autocast):
        out = attend_in_chunks(*leaves, None, p)
    with torch.autocast("cpu", enabled=autocast_backward):
        return out.detach(), *grad(out, leaves, towards.to(out.dtype))


@pytest.mark.parametrize("p", [0.0, P])
@pytest.mark.parametrize(
    ("dtype", "instructions", "bound"),
    [
        (torch.bfloat16, "AVX512_BF16", 0.016),
        (torch.bfloat16, None, 5e-3),
        (torch.float16, None, 6e-4),
    ],
    ids=str,
)
def test_half_precision_is_near_float64(dtype, instructions, bound, p, monkeypatch):
    """Relative errors of the result and the gradients of q, k and v, with scores of standard deviation 5.

    In bfloat16 without instructions, with scores, weights and sums in float32, they are 0.17, 0.38, 0.36 and 0.17 %, of
    which 0.17 % is what rounding the results costs. With products in bfloat16 they are 0.9, 1.4, 1.4 and 0.9 %, though
    all keys have a large common part, which centring removes.
    """
    monkeypatch.setattr(chunked, "bfloat16_instructions", lambda on_gpu: instructions)
    torch.manual_seed(0)
    q, k, v, towards = (torch.randn(2, 4, length, 64) for length in (256, 128, 128, 256))
    k = k + 3 * torch.randn(64) if instructions else k
    inputs = [tensor.to(dtype) for tensor in (5 * q, k, v, towards)]
    exact = with_gradients(*(x.double() for x in inputs), p=p)
    for half, reference in zip(with_gradients(*inputs, p=p), exact, strict=True):
        assert half.dtype == dtype
        assert (half.double() - reference).norm() < bound * reference.norm()


@pytest.mark.parametrize("autocast_backward", [False, True])
def test_autocast_where_keys_and_values_are_float32_and_queries_are_not(autocast_backward, monkeypatch):
    """Projections that add their bias last return float32. A gradient has the precision of its input."""
    monkeypatch.setattr(chunked, "bfloat16_instructions", lambda on_gpu: None)
    torch.manual_seed(0)
    q, k, v, towards = (torch.randn(2, 3, length, 16) for length in (40, 5, 5, 40))
    inputs = (q.bfloat16(), k, v, towards.bfloat16())
    results = with_gradients(*inputs, autocast=True, autocast_backward=autocast_backward)
    assert [result.dtype for result in results] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    for result, exact in zip(results, with_gradients(*(x.double() for x in inputs)), strict=True):
        assert (result.double() - exact).norm() < 3e-3 * exact.norm()
