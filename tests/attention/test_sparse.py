"""What the Sparse Transformer alone promises: its two patterns, and their limits."""

import pytest
import torch

from tests.helpers.layers import D, build
from tests.helpers.models import small, tokens


def seen_by(attention, position, length):
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
    attention = only_head(build("sparse", sparse_stride=5, sparse_expressivity=2, heads=4)[0], head)
    assert seen_by(attention, 7, 14) == sorted([5, 6, 7, 8, 9, *elsewhere])


def test_with_a_checkpoint_of_another_attention_all_heads_see_the_last_sub_block():
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
        ({"sparse_pattern": "strided"}, 512, 23),
        ({"sparse_pattern": "strided"}, 4096, 64),
        ({"sparse_pattern": "strided"}, 1, 1),
        ({"sparse_pattern": "fixed"}, 4096, 64),
        ({"sparse_pattern": "fixed"}, 15, 8),
        ({"sparse_pattern": "fixed", "sparse_expressivity": 2}, 15, 4),
        ({"sparse_stride": 128, "sparse_expressivity": 32}, 12288, 128),
    ],
    ids=str,
)
def test_the_stride_is_near_the_root_of_the_longest_sequence(options, n, stride):
    assert build("sparse", n=n, **options)[0].stride == stride
