"""The pseudo-inverse of Nyström attention; test_contract.py and test_peers.py have the rest."""

import torch

from fairseq_linformer.attention.nystrom import pseudo_inverse
from tests.helpers.layers import build


def test_the_iteration_converges_to_the_pseudo_inverse():
    torch.manual_seed(0)
    kernel = (2 * torch.randn(3, 2, 8, 8, dtype=torch.float64)).softmax(-1)
    expected = torch.linalg.pinv(kernel)
    errors = [float((pseudo_inverse(kernel, steps) - expected).norm() / expected.norm()) for steps in (3, 6, 20)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-9


def test_half_precision_inverts_in_single():
    """An iteration in bfloat16 would have an error of over 2 %."""
    attention = build("nystrom", nystrom_landmarks=16, heads=2, d=16)[0]
    inputs = torch.randn(3, 1, 2, 16, 8).bfloat16()
    solved, exact = (attention._solve(*part) for part in (inputs, inputs.double()))
    assert solved.dtype == torch.bfloat16
    assert (solved - exact).norm() < 0.005 * exact.norm()
