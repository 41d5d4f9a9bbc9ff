"""The global projections of Longformer; test_contract.py and test_peers.py have the rest."""

import pytest
import torch
from omegaconf import OmegaConf

from tests.helpers.layers import build, new
from tests.helpers.models import small, tokens


def test_without_global_tokens_there_are_no_global_projections():
    without = build("longformer", longformer_global_tokens=0)[0]
    assert not [name for name, _ in without.named_parameters() if "global" in name], "parameters without a gradient"


def assert_global_projections_are_the_local_ones(attention):
    for name in "kvq":
        for kind in ("weight", "bias"):
            copy, original = (attention.get_parameter(f"{name}_proj{end}.{kind}") for end in ("_global", ""))
            assert torch.equal(copy, original) and copy.data_ptr() != original.data_ptr()


def test_global_projections_start_as_copies_of_the_local_ones():
    """Alone and in a model, whose linear maps RoBERTa draws again after it has built them."""
    assert_global_projections_are_the_local_ones(new("longformer", longformer_window=4))
    for layer in small(attention="longformer").encoder.sentence_encoder.layers:
        assert_global_projections_are_the_local_ones(layer.self_attn)


@pytest.mark.parametrize("of", [{"attention": "softmax"}, {"attention": "longformer", "longformer_global_tokens": 0}])
def test_local_projections_of_a_checkpoint_become_the_global_ones(of):
    """RoBERTa's checkpoints have no global projections. With a window over all it is softmax attention at first."""
    source = small(**of)
    model = small(attention="longformer", longformer_window=128, longformer_global_tokens=2)
    model.load_state_dict(source.state_dict())
    for layer in model.encoder.sentence_encoder.layers:
        assert_global_projections_are_the_local_ones(layer.self_attn)
    torch.testing.assert_close(model.eval()(tokens())[0], source.eval()(tokens())[0], atol=1e-5, rtol=0)


def test_projections_of_pruned_layers_become_global_ones():
    source = small(attention="softmax", encoder_layers=4)
    cfg = OmegaConf.create({"_name": "linformer_roberta", "encoder_layers_to_keep": "1,3"})
    model = small(attention="longformer", encoder_layers=4, encoder_layers_to_keep="1,3")
    model.load_state_dict(source.state_dict(), model_cfg=cfg)
    for kept, layer in zip((1, 3), model.encoder.sentence_encoder.layers, strict=True):
        assert_global_projections_are_the_local_ones(layer.self_attn)
        original = source.encoder.sentence_encoder.layers[kept].self_attn.q_proj
        assert torch.equal(layer.self_attn.q_proj_global.weight, original.weight)


def test_global_projections_of_a_checkpoint_are_loaded():
    source, model = small(attention="longformer"), small(attention="longformer")
    for parameter in source.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    state = source.state_dict()
    model.load_state_dict(state)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    del state["encoder.sentence_encoder.layers.0.self_attn.k_proj_global.weight"]
    with pytest.raises(ValueError, match="k_proj_global"):  # damaged, as others are present
        model.load_state_dict(state)
