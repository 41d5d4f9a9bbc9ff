"""What the Sparse Transformer alone promises: its two patterns, and their limits."""

import pytest
import torch

from fairseq_linformer.attention.sparse import SparseOptions
from tests.attention.test_contract import D, N, assert_finite_with_nothing_real_in_reach, build, configured


@pytest.mark.parametrize("length", [1, 4, N])
@pytest.mark.parametrize(
    "options",
    [
        {"pattern": "strided", "stride": N},
        {"pattern": "strided", "stride": 100},
        {"pattern": "strided", "stride": 1},
        {"pattern": "fixed", "stride": N, "expressivity": 1},
        {"pattern": "fixed", "stride": 4, "expressivity": 4},
        {"pattern": "fixed", "stride": 1, "expressivity": 1},
    ],
    ids=str,
)
def test_where_everything_is_seen_it_is_softmax_attention(length, options):
    sparse, softmax = build("sparse", **options)[0], build("softmax")[0]
    softmax.load_state_dict(sparse.state_dict())
    x = torch.randn(3, length, D, dtype=torch.float64)
    torch.testing.assert_close(sparse.double()(x), softmax.double()(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"pattern": "strided", "stride": 4}, [2, 3, 4, 5, 6, 7, 8, 9, 10, 14]),
        ({"pattern": "fixed", "stride": 4, "expressivity": 1}, [3, 4, 5, 6, 7, 11]),
        ({"pattern": "fixed", "stride": 5, "expressivity": 2}, [3, 4, 5, 6, 7, 8, 9, 13, 14]),
    ],
    ids=str,
)
def test_what_position_6_of_15_sees(options, seen):
    attention = build("sparse", **options)[0]
    x = torch.randn(1, N, D, requires_grad=True)
    attention(x)[0, 6].sum().backward()
    assert x.grad[0].abs().sum(1).nonzero().flatten().tolist() == seen


@pytest.mark.parametrize(
    ("options", "n", "stride"),
    [
        ({"pattern": "strided"}, 512, 23),
        ({"pattern": "strided"}, 4096, 64),
        ({"pattern": "strided"}, 1, 1),
        ({"pattern": "fixed"}, 4096, 64),
        ({"pattern": "fixed"}, 15, 8),
        ({"pattern": "fixed", "expressivity": 2}, 15, 4),
        ({"stride": 128, "expressivity": 32}, 12288, 128),
    ],
    ids=str,
)
def test_the_stride_is_near_the_root_of_the_longest_sequence(options, n, stride):
    assert build("sparse", n=n, **options)[0].stride == stride


def test_padding_with_nothing_real_in_reach_is_finite_in_both_directions():
    assert_finite_with_nothing_real_in_reach(build("sparse", pattern="strided", stride=4)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "local"}, "sparse_pattern=local is not allowed: it must be one of fixed, strided"),
        ({"stride": -1}, "sparse_stride=-1 is not allowed: it must be at least 1, or 0 for about the root"),
        ({"stride": 4}, "sparse_expressivity=8 is not allowed: it must be from 1 to sparse_stride=4"),
        ({"expressivity": 0}, "sparse_expressivity=0 is not allowed: it must be at least 1"),
        (
            {"pattern": "strided", "expressivity": 4},
            "sparse_expressivity=4 is not allowed: it must be left out with sparse_pattern=strided",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    config = configured("sparse", 3, "linear", "none", 5, 0.0, 1, False, N, D, None, {})
    with pytest.raises(ValueError, match=message):
        SparseOptions(**options).validate(config, "sparse_")
