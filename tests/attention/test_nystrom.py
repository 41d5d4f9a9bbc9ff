"""What Nyström attention alone promises: where it is exact, how it nears softmax attention, whose code agrees."""

import pytest
import torch

from fairseq_linformer.attention.nystrom import pseudo_inverse
from tests.helpers.layers import D, N, build


@pytest.mark.parametrize("length", [1, 4, 6, 7])
def test_a_row_of_no_more_positions_than_landmarks_has_softmax_attention_beside_a_longer_one(length):
    nystrom = build("nystrom", nystrom_landmarks=7, nystrom_conv_width=0)[0]
    x = torch.randn(2, N, D)
    mask = torch.arange(N) >= torch.tensor([[N], [length]])
    softmax = build("softmax")[0]
    softmax.load_state_dict(nystrom.state_dict())
    expected = softmax(x[1:, :length])[0]
    torch.testing.assert_close(nystrom(x, mask)[1, :length], expected, atol=1e-5, rtol=0)


def test_the_iteration_converges_to_the_pseudo_inverse():
    torch.manual_seed(0)
    kernel = (2 * torch.randn(3, 2, 8, 8, dtype=torch.float64)).softmax(-1)
    expected = torch.linalg.pinv(kernel)
    errors = [float((pseudo_inverse(kernel, steps) - expected).norm() / expected.norm()) for steps in (3, 6, 20)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-9


def test_as_many_steps_as_are_allowed_are_exact_in_float32_where_the_kernel_is_of_nearly_rank_one():
    """As in a new model. Where it has no singular value each step multiplies what rounding left there."""
    torch.manual_seed(0)
    kernel = (0.05 * torch.randn(64, 64, dtype=torch.float64)).softmax(-1)
    for steps, exact in (12, True), (25, False):
        errors = pseudo_inverse(kernel.float(), steps) @ kernel.float() - pseudo_inverse(kernel, steps) @ kernel
        assert (errors.norm() < 0.01) == exact


def test_half_precision_inverts_in_single():
    """An iteration in bfloat16 is off by more than two parts in a hundred here."""
    attention = build("nystrom", nystrom_landmarks=16, heads=2, d=16)[0]
    queries, keys, seen = torch.randn(3, 1, 2, 16, 8).bfloat16()
    solved, exact = (
        attention._solve(queries, keys, seen),
        attention._solve(queries.double(), keys.double(), seen.double()),
    )
    assert solved.dtype == torch.bfloat16
    assert (solved - exact).norm() < 0.005 * exact.norm()
