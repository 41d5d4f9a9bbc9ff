"""The Sparse Transformer's stride and sub-blocks; test_contract.py has the rest."""

import pytest
import torch

from tests.helpers.layers import build
from tests.helpers.models import small, tokens


def test_with_a_checkpoint_of_another_attention_all_heads_have_the_last_sub_block():
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


@pytest.mark.parametrize(
    ("options", "n", "stride"),
    [
        ({"sparse_pattern": "strided"}, 512, 23),
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
