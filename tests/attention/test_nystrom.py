"""What Nyström attention alone promises: where it is exact, how it nears softmax attention, whose code agrees."""

import pytest
import torch

from fairseq_linformer.attention.nystrom import pseudo_inverse
from tests.helpers.layers import D, N, build


def softmax_twin(nystrom):
    softmax = build("softmax")[0]
    softmax.load_state_dict({name: value for name, value in nystrom.state_dict().items() if "conv" not in name})
    return softmax


@pytest.mark.parametrize(("landmarks", "length"), [(N, N), (64, N), (7, 7), (7, 3)])
def test_a_row_of_no_more_positions_than_landmarks_has_softmax_attention(landmarks, length):
    nystrom = build("nystrom", nystrom_landmarks=landmarks, nystrom_conv_width=0)[0]
    x = torch.randn(2, length, D)
    torch.testing.assert_close(nystrom(x), softmax_twin(nystrom)(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("length", [1, 4, 6, 7])
def test_a_short_row_has_it_beside_a_longer_one_too(length):
    nystrom = build("nystrom", nystrom_landmarks=7, nystrom_conv_width=0)[0]
    x = torch.randn(2, N, D)
    mask = torch.arange(N) >= torch.tensor([[N], [length]])
    expected = softmax_twin(nystrom)(x[1:, :length])[0]
    torch.testing.assert_close(nystrom(x, mask)[1, :length], expected, atol=1e-5, rtol=0)


def test_more_landmarks_come_closer_to_softmax_attention():
    """Of a sequence whose neighbours are alike, which the means of segments represent."""
    torch.manual_seed(0)
    x = 0.3 * torch.randn(4, 60, D).cumsum(1)
    errors = []
    for landmarks in (5, 15, 30, 60):
        nystrom = build("nystrom", n=60, nystrom_landmarks=landmarks, nystrom_iterations=20, nystrom_conv_width=0)[0]
        errors.append(float((nystrom(x) - softmax_twin(nystrom)(x)).detach().norm()))
    assert errors[0] > errors[1] > errors[2] > 100 * errors[3]


def test_the_iteration_converges_to_the_pseudo_inverse():
    torch.manual_seed(0)
    kernel = (2 * torch.randn(3, 2, 8, 8, dtype=torch.float64)).softmax(-1)
    expected = torch.linalg.pinv(kernel)
    errors = [float((pseudo_inverse(kernel, steps) - expected).norm() / expected.norm()) for steps in (3, 6, 20)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-9


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


def test_the_convolution_reaches_half_its_width():
    attention = build("nystrom", nystrom_landmarks=N, nystrom_conv_width=5)[0]
    with torch.no_grad():
        attention.q_proj.weight.zero_()  # without queries attention is a mean, the same for every position
        attention.q_proj.bias.zero_()
    x = torch.randn(1, N, D)
    changed = x.clone()
    changed[0, 7] += 1
    difference = attention(changed) - attention(x)
    beyond = difference[0, 0]
    alike = [bool(torch.allclose(difference[0, position], beyond, atol=1e-5)) for position in range(N)]
    assert alike == [abs(position - 7) > 2 for position in range(N)]


def test_agrees_with_transformers():
    """Weights copied. Its first step uses the norms of each matrix ("exact"); by default those of the whole batch."""
    pytest.importorskip("transformers")
    from transformers import NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    sizes = {"hidden_size": D, "num_attention_heads": 3, "num_landmarks": 5, "segment_means_seq_len": 60}
    peer = NystromformerSelfAttention(NystromformerConfig(**sizes, conv_kernel_size=9)).eval()
    peer.init_option = "exact"
    ours = build("nystrom", n=60, nystrom_landmarks=5, nystrom_conv_width=9)[0].eval()
    with torch.no_grad():
        ours.out_proj.weight.copy_(torch.eye(D))
        ours.out_proj.bias.zero_()
    for theirs, linear in ((peer.query, ours.q_proj), (peer.key, ours.k_proj), (peer.value, ours.v_proj)):
        theirs.load_state_dict(linear.state_dict())
    peer.conv.load_state_dict(ours.conv.state_dict())
    x = torch.randn(2, 60, D)
    torch.testing.assert_close(ours(x), peer(x)[0], atol=1e-4, rtol=1e-4)
