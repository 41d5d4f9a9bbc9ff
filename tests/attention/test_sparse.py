"""What the Sparse Transformer alone promises: its two patterns, and their limits."""

import pytest
import torch

from fairseq_linformer.attention.sparse import SparseOptions
from tests.helpers.layers import D, N, assert_finite_with_nothing_real_in_reach, build, configured
from tests.helpers.models import small, tokens


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
    softmax.load_state_dict({name: value for name, value in sparse.state_dict().items() if name != "sub_blocks"})
    x = torch.randn(3, length, D, dtype=torch.float64)
    torch.testing.assert_close(sparse.double()(x), softmax.double()(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"pattern": "strided", "stride": 4}, [2, 3, 4, 5, 6, 7, 8, 9, 10, 14]),
        ({"pattern": "fixed", "stride": 4, "expressivity": 1, "heads": 1}, [3, 4, 5, 6, 7, 11]),
        ({"pattern": "fixed", "stride": 5, "expressivity": 2, "heads": 1}, [3, 4, 5, 6, 7, 8, 9, 13, 14]),
        ({"pattern": "fixed", "stride": 4, "expressivity": 1, "heads": 3}, [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 14]),
    ],
    ids=str,
)
def test_what_position_6_of_15_sees(options, seen):
    assert seen_by(build("sparse", **options)[0], 6) == seen


def seen_by(attention, position, length=N):
    x = torch.randn(1, length, D, requires_grad=True)
    attention(x)[0, position].sum().backward()
    return x.grad[0].abs().sum(1).nonzero().flatten().tolist()


def only_head(attention, head):
    """The same attention with the outputs of all other heads at zero."""
    weight = attention.out_proj.weight.detach().clone().unflatten(1, (attention.num_heads, -1))
    others = torch.arange(attention.num_heads) != head
    attention.out_proj.weight = torch.nn.Parameter(weight.masked_fill(others[:, None], 0.0).flatten(1))
    return attention


@pytest.mark.parametrize(
    ("head", "elsewhere"), [(0, [3, 4, 13]), (1, [1, 2, 11, 12]), (2, [3, 4, 13]), (3, [1, 2, 11, 12])]
)
def test_heads_see_distinct_sub_blocks_of_other_blocks(head, elsewhere):
    """Section 4.3: in blocks of 5 there are two sub-blocks of 2, counted from the end, and four heads for them.

    The sequence of 14 cuts the last sub-block. A position's own block is seen by all heads.
    """
    attention = only_head(build("sparse", stride=5, expressivity=2, heads=4)[0], head)
    assert seen_by(attention, 7, length=14) == sorted([5, 6, 7, 8, 9, *elsewhere])


def test_a_checkpoint_without_sub_blocks_gives_what_it_gave():
    """It is of a version in which all heads saw the last sub-block."""
    options = {"attention": "sparse", "sparse_stride": 8, "sparse_expressivity": 2}
    older = small(**options).eval()
    for layer in older.encoder.sentence_encoder.layers:
        layer.self_attn.sub_blocks.zero_()
    state = {name: value for name, value in older.state_dict().items() if not name.endswith("sub_blocks")}
    loaded = small(**options).eval()
    before = loaded(tokens())[0]
    loaded.load_state_dict(state)
    torch.testing.assert_close(loaded(tokens())[0], older(tokens())[0], atol=0, rtol=0)
    assert not torch.allclose(loaded(tokens())[0], before)


def test_a_checkpoint_of_fewer_layers_is_still_told_apart():
    state = small(attention="sparse", encoder_layers=1).state_dict()
    with pytest.raises(ValueError, match="has encoder_layers=1, this model has encoder_layers=2"):
        small(attention="sparse").load_state_dict(state)


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
    config = configured("sparse")
    with pytest.raises(ValueError, match=message):
        SparseOptions(**options).validate(config, "sparse_")
