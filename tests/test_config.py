"""Options: what is refused, by name, and how sizes come from the architecture."""

from argparse import Namespace

import pytest
from omegaconf import OmegaConf

from fairseq_linformer.config import ARCHITECTURES, resolve_config


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("projected_length", 0, "from 1 to max_positions=512"),
        ("projected_length", 513, "from 1 to max_positions=512"),
        ("local_conv", 4, r"0 \(none\) or an odd width"),
        ("local_conv", -1, r"0 \(none\) or an odd width"),
        ("encoder_attention_heads", 7, "a divisor of encoder_embed_dim=768"),
        ("encoder_attention_heads", 0, "at least 1"),
        ("encoder_layers", 0, "at least 1"),
        ("attention_dropout", 1.0, "at least 0 and below 1"),
        ("offload_activations", True, "true only together with checkpoint_activations=true"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(option, value, allowed):
    with pytest.raises(ValueError, match=f"{option}={value} is not allowed: it must be {allowed}"):
        resolve_config(OmegaConf.create({option: value}), 512)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("attention", "flash", "flash.*linformer"),
        ("sharing", "all", "all.*layerwise"),
        ("projected_length", "many", "many"),
        ("projectedlength", 128, "projectedlength"),
    ],
)
def test_unknown_options_and_choices_are_refused_by_name(option, value, said):
    with pytest.raises(ValueError, match=said):
        resolve_config(OmegaConf.create({option: value}), 512)


def test_a_model_shorter_than_the_samples_is_refused():
    with pytest.raises(ValueError, match="max_positions=256 is below the task's longest sequence, 512"):
        resolve_config(OmegaConf.create({"max_positions": 256}), 512)


def test_projected_length_is_linformers_alone():
    """The full-attention twin of a run is one option away, at any length."""
    assert resolve_config(OmegaConf.create({"attention": "softmax"}), 64).attention == "softmax"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_flags_and_hydra_give_one_configuration(architecture):
    options = {"projected_length": 16, "sharing": "none", "encoder_layers": 3}
    from_flags = resolve_config(Namespace(arch=architecture, **options), 512)
    from_hydra = resolve_config(OmegaConf.create({"_name": architecture, **options}), 512)
    assert from_flags == from_hydra
    assert from_hydra.encoder_layers == 3, "a size that is given wins over the architecture's"
    assert from_hydra.encoder_embed_dim == ARCHITECTURES[architecture].get("encoder_embed_dim", 768)


def test_max_positions_default_to_the_tasks_length():
    assert resolve_config(OmegaConf.create({}), 640).max_positions == 640
