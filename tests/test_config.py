"""Options: values that are rejected by name, and sizes from the architecture."""

from argparse import Namespace
from dataclasses import asdict, fields

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

import fairseq_linformer.model.roberta  # noqa: F401 (registers the architectures)
from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.errors import UserError
from fairseq_linformer.model.architecture import ARCHITECTURES
from fairseq_linformer.model.config import resolve_config
from fairseq_linformer.model.hub import architecture_options

# Rejected values of an option, separated by |, and other options.
REJECTED = [
    "projected_length=0|513|0.5|a..b|many|[96,64]|600..100",
    "projected_length=128..64 sharing=layerwise",
    "projected_length=100 projection=mean-pool",
    "sharing=all",
    "sharing=none|headwise projection=mean-pool",
    "sharing=none projection=conv",
    "projection=lstm",
    "projection_init=normal projection=conv",
    "projection_init=segment-mean projection=random",
    "projection_multiplier=0.0|inf",
    "projection_multiplier=0.5 projection=conv",
    "freeze_projection=True projection=max-pool",
    "local_conv=4|-1",
    "encoder_attention_heads=7|0",
    "encoder_layers=0|1.5",
    "encoder_layers_to_keep=a|0,50|1,1",
    "encoder_layers_to_keep=1,2 value_residual=True",
    "encoder_layers_to_keep=0,3 attention=alternating",  # layer 3, a full one, would be the second
    "value_residual=True encoder_layers=1",
    "dropout=none",
    "attention_dropout=1.0",
    "offload_activations=True",
    "compile_layers=True checkpoint_activations=True",  # it would draw other dropout masks: wrong gradients
    "max_positions=256",  # of a task with 512
    "attention=flash",
    "projectedlength=128",
    "positions=rotary attention=performer",
    "positions=rotary attention=linformer",
    "rotary_base=1.0|nan",
    "rotary_share=0.0|1.5",
    "rotary_share=0.3|0.01 positions=rotary attention=softmax",
    "rotary_share=1.0 positions=rotary attention=long-short",
    "rotary_share=1.0 positions=rotary linformer_window=8",
    "flex_attention=True linformer_window=8",  # with dropout
    "flex_attention=True attention_dropout=0",
    "flex_attention=True attention_dropout=0 attention=softmax",
    "flex_attention=True attention_dropout=0 attention=longformer positions=alibi",
    "flex_attention=True attention_dropout=0 attention=longformer encoder_attention_heads=96",
    "linformer_window=8 attention=revisited-linformer",
    "linformer_sinks=1",
    "linformer_fetch=2|0..8|[0,2]",  # removed
    "alternating_window=3",
    "alternating_rotary_base=1.0|-5",
    "alternating_full=none",
    "linformer_window=8 attention=alternating",
    "first_attention_norm=False",
    "alternating_first=3",
    "linear_feature_map=relu",
    "lion_decay=exponential",
    "long_short_conv_width=4",
    "long_short_window=0",
    "longformer_global_tokens=-1|513",
    "longformer_window=0|5|4..0|4..7|4,6,8|wide",
    "nystrom_conv_width=-1|4",
    "nystrom_iterations=0|13",
    "rfa_temperature=0.0|inf",
    "sparse_expressivity=8 sparse_stride=4",
    "sparse_expressivity=4 sparse_pattern=strided",
    "sparse_pattern=local",
]
OPTIONS_OF_MECHANISMS = [(option, name) for name, kind in ATTENTIONS.items() for option in fields(kind.Options)]
MECHANISM_OF = {option.name: name for option, name in reversed(OPTIONS_OF_MECHANISMS)}  # linformer's are alternating's


def rejected():
    smallest = {option.name: option.metadata["smallest"] for option, _ in OPTIONS_OF_MECHANISMS}
    yield from ([f"{name}={number - 1}"] for name, number in smallest.items() if number is not None)
    for line in REJECTED:
        option, *context = line.split()
        name, _, values = option.partition("=")
        yield from ([f"{name}={value}", *context] for value in values.split("|"))


@pytest.mark.parametrize("options", rejected(), ids=" ".join)
def test_options_that_cannot_work_are_rejected_by_name(options):
    name = options[0].partition("=")[0]
    mechanism = [f"attention={MECHANISM_OF[name]}", "attention_dropout=0"] if name in MECHANISM_OF else []
    with pytest.raises(UserError, match=rf"^{name}\b"):
        resolve_config(OmegaConf.from_dotlist([*mechanism, *options]), 512)


@pytest.mark.parametrize("architecture", ["linformer_roberta_tiny", "linformer_roberta_large"])
def test_flags_and_hydra_give_one_configuration(architecture):
    options = {"projected_length": 16, "sharing": "none", "encoder_layers": 3}
    from_flags = resolve_config(Namespace(arch=architecture, **options), 512)
    from_hydra = resolve_config(OmegaConf.create({"_name": architecture, **options}), 512)
    assert from_flags == from_hydra
    assert from_hydra.encoder_layers == 3
    assert from_hydra.encoder_embed_dim == ARCHITECTURES[architecture]["encoder_embed_dim"]


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("projected_length", None, [128, 128, 128]),
        ("projected_length", 96, [96, 96, 96]),
        ("projected_length", [96, 64, 32], [96, 64, 32]),
        ("projected_length", "256..255", [256, 256, 255]),
        ("longformer_window", "32..512", [32, 272, 512]),
        ("longformer_window", "2..8", [2, 4, 8]),  # even
    ],
)
def test_values_per_layer(option, value, expected):
    attention = MECHANISM_OF.get(option, "linformer")
    options = {"attention": attention, "encoder_layers": 3, option: value}
    assert getattr(resolve_config(OmegaConf.create(options), 512), option) == expected


@pytest.mark.parametrize(
    ("attention", "words", "read"),
    [
        ("linformer", "--projected-length 96..32", {"projected_length": [96, 64, 32]}),
        ("long-short", "--long-short-class-token", {"long_short_class_token": True}),
    ],
)
def test_options_by_layer_and_of_mechanisms_as_flags(attention, words, read):
    fixed = f"DATA --arch linformer_roberta_tiny --task masked_lm --encoder-layers 3 --attention {attention}"
    args = options.parse_args_and_arch(options.get_training_parser(), f"{fixed} {words}".split())
    config = resolve_config(convert_namespace_to_omegaconf(args).model, 512)
    assert {name: getattr(config, name) for name in read} == read


def test_pruning_keeps_each_layers_length():
    options = {"encoder_layers": 3, "projected_length": "96..32", "encoder_layers_to_keep": "2,0"}
    config = resolve_config(OmegaConf.create(options), 512)
    assert (config.projected_length, config.encoder_layers, config.encoder_layers_to_keep) == ([96, 32], 2, None)


def test_architecture_options_determine_the_model():
    """They are plain values without the options of training; the configuration is, too."""
    options = {"_name": "linformer_roberta_tiny", "attention": "longformer", "longformer_window": "4..8"}
    training = {"dropout": 0.3, "checkpoint_activations": True, "load_checkpoint_heads": True}
    flags = {"compressed": 8, "encoder_layers_to_keep": "0,3"}
    config = resolve_config(OmegaConf.create({**options, **training, **flags}), 512)
    options = architecture_options(config)
    assert (options["longformer_window"], options["projected_length"], options["encoder_layers"]) == ("4,8", 64, 2)
    assert not options.keys() & (training.keys() | flags.keys() | {"_name"})
    assert resolve_config(OmegaConf.create({**options, **training}), 512) == config
    assert {type(value) for value in asdict(config).values()} <= {int, float, bool, str, list, type(None)}


def test_max_positions_default_to_the_tasks_length():
    assert resolve_config(OmegaConf.create({}), 640).max_positions == 640
    with pytest.raises(UserError, match=r"^max_positions"):
        resolve_config(OmegaConf.create({}), None)


@pytest.mark.parametrize("value", [None, 0, "0,0", [0, 0]])
def test_a_removed_option_without_effect_in_a_checkpoint_is_ignored(value):
    options = {"encoder_layers": 2, "linformer_window": 8}
    for cls in (OmegaConf.create, lambda content: Namespace(**content)):
        assert resolve_config(cls({**options, "linformer_fetch": value}), 512) == resolve_config(cls(options), 512)
    with pytest.raises(UserError, match=r"^linformer_fetch=8 "):
        resolve_config(Namespace(**options, linformer_fetch=8), 512)
