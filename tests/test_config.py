"""Options: what is refused, by name, and how sizes come from the architecture."""

import re
from argparse import Namespace
from dataclasses import asdict, fields

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from write_model_options import options_yaml

import fairseq_linformer.model.roberta  # noqa: F401 (registers the architectures)
from fairseq_linformer.attention import ATTENTIONS, get_attention
from fairseq_linformer.model.architecture import ARCHITECTURES, architecture_defaults
from fairseq_linformer.model.config import OPTIONS
from fairseq_linformer.model.hub import architecture_options
from fairseq_linformer.model.resolve import resolve_config
from tests.helpers import ROOT

SIZES = {
    "projected_length=0": "from 1 to max_positions=512",
    "projected_length=513": "from 1 to max_positions=512",
    "local_conv=4": r"0 \(none\) or an odd width",
    "local_conv=-1": r"0 \(none\) or an odd width",
    "encoder_attention_heads=7": "a divisor of encoder_embed_dim=768",
    "encoder_attention_heads=0": "at least 1",
    "encoder_layers=0": "at least 1",
    "encoder_layers=1000000000000": "at most 1000",
    "encoder_embed_dim=12000000000": "at most 65536",
    "encoder_ffn_embed_dim=1000000000000": "at most 1048576",
    "max_positions=1000000000000": "at most 1048576",
    "local_conv=1000000000001": "at most 10001",
    "attention_dropout=1.0": "at least 0 and below 1",
    "offload_activations=True": "true only together with checkpoint_activations=true",
    "linformer_window=-1": "at least 0",
    "projection_multiplier=0.0": "a number above 0",
    "projection_multiplier=inf": "a number above 0",
    "projected_length=0.5": "a number, one per layer",
    "projected_length=a..b": "a number, one per layer",
    "encoder_layers_to_keep=a": "numbers from 0 to 11",
    "encoder_layers_to_keep=0,50": "numbers from 0 to 11",
    "encoder_layers_to_keep=1,1": "numbers from 0 to 11, each once",
}
POSITIONS = {  # with positions=rotary and attention=softmax, unless the latter is given
    "attention=performer": "positions=rotary .* must be learned with attention=performer; others have altern",
    "attention=nystrom": "others have alternating, bigbird, linformer, long-short, longformer, softmax",
    "rotary_share=0.0": "rotary_share=0.0 .* above 0 and at most 1",
    "rotary_share=1.5": "rotary_share=1.5 .* above 0 and at most 1",
    "rotary_share=0.3": "rotary_share=0.3 .* an even number of d_h=64 dimensions",
    "rotary_share=0.01": "an even number of d_h=64 dimensions",
    "rotary_base=1.0": "rotary_base=1.0 .* a number above 1",
    "rotary_base=nan": "a number above 1",
    "attention=long-short": "rotary_share=1.0 .* below 1",
    "attention=linformer": "positions=rotary .* learned without linformer_window in each layer",
    "attention=linformer linformer_window=8": "rotary_share=1.0 .* below 1",
}
TOGETHER = {
    "projected_length=[96,64]": r"projected_length=\[96, 64\] is not allowed: it must be one number or 12",
    "projected_length=600..100": "projected_length=600 is not allowed: it must be from 1 to max_positions=512",
    "projected_length=128..64 sharing=layerwise": "must be one number with sharing=layerwise",
    "projection=mean-pool projected_length=100": "a divisor of max_positions=512 with projection=mean-pool",
    "projection=mean-pool sharing=headwise": "one of key-value, layerwise with projection=mean-pool",
    "projection=max-pool sharing=none": "one of key-value, layerwise with projection=max-pool",
    "projection=conv sharing=none": "one of headwise, key-value, layerwise with projection=conv",
    "projection=conv projection_init=normal": "projection_init=normal .* left out with projection=conv",
    "projection=random projection_init=segment-mean": "one of johnson-lindenstrauss, normal with",
    "projection=conv projection_multiplier=0.5": "projection_multiplier=0.5 .* left out with projection=conv",
    "projection=max-pool freeze_projection=True": "freeze_projection=True .* false with projection=max-pool",
    "linformer_sinks=1": "linformer_sinks=1 is not allowed: it must be 0 without linformer_window in each layer",
    "linformer_window=8 linformer_fetch=2": "linformer_fetch=2 .* 0 with projection=linear, whose rows stand for no",
    "attention=revisited-linformer linformer_window=8": r"linformer_window=\[8.*\] .* left out with attention=revisit",
    "attention=revisited-linformer projected_length=513": "projected_length=513 .* from 1 to max_positions=512",
    "attention=revisited-linformer projection=conv sharing=none": "sharing=none .* with projection=conv",
    "value_residual=True encoder_layers=1": "^value_residual=True .* must be false with encoder_layers=1",
    "value_residual=True encoder_layers_to_keep=1,2": "^encoder_layers_to_keep=1,2 .* must be a list that has layer 0",
    # fairseq's checkpointing, compiled, would draw other dropout masks the second time: wrong gradients.
    "compile_layers=True checkpoint_activations=True": "must be false together with checkpoint_activations=true",
    "flex_attention=True linformer_window=8": "flex_attention=True .* must be false with attention_dropout=0.1",
    "flex_attention=True attention_dropout=0": "must be false where no layer is longformer's or has a linformer_window",
    "flex_attention=True attention=softmax": "must be false where no layer",
    "flex_attention=True linformer_window=256 linformer_fetch=2 projection=mean-pool attention_dropout=0": (
        "linformer_block=256 .* at most 128 with flex_attention"
    ),
    "flex_attention=True attention=longformer attention_dropout=0 positions=alibi": "false with positions=alibi",
    "flex_attention=True attention=longformer attention_dropout=0 encoder_attention_heads=96": "false with d_h=8",
}
UNKNOWN = {
    "attention=flash": "^attention: .*flash.*linformer",
    "sharing=all": "^sharing: .*all.*layerwise",
    "projection=lstm": "lstm.*mean-pool",
    "projected_length=many": "^projected_length=many",
    "encoder_layers=1.5": "^encoder_layers: .*1.5",
    "dropout=none": "^dropout: .*none",
    "projectedlength=128": "projectedlength",
    "value_residual=layers": "^value_residual: .*layers",
    f"dropout={10**400}": "int too large to convert to float",
}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *((given, f"^{re.escape(given)} is not allowed: it must be {allowed}") for given, allowed in SIZES.items()),
        *((f"attention=softmax positions=rotary {given}", said) for given, said in POSITIONS.items()),
        *TOGETHER.items(),
        *UNKNOWN.items(),
    ],
)
def test_what_cannot_work_or_is_unknown_is_refused_by_name(given, said):
    with pytest.raises(ValueError, match=said):
        resolve_config(OmegaConf.from_dotlist(given.split()), 512)


@pytest.mark.parametrize("mechanism", ATTENTIONS.values(), ids=lambda mechanism: mechanism.name)
def test_no_integer_of_a_mechanism_is_without_bound(mechanism):
    """10^12 hashes, and each other number, by name: nothing is built, or drawn, before."""
    for own in fields(mechanism.Options):
        if own.type is int:
            given = OmegaConf.create({"attention": mechanism.name, "attention_dropout": 0.0, own.name: 10**12})
            with pytest.raises(ValueError, match=f"^{own.name}=1000000000000 is not allowed: it must be at most"):
                resolve_config(given, 512)


@pytest.mark.parametrize(
    ("attention", "option", "most"),
    [
        ("bigbird", "bigbird_random_blocks", 1000),
        ("lion", "lion_chunk", 4096),
        ("nystrom", "nystrom_conv_width", 10_001),
        ("long-short", "long_short_rank", 65536),
        ("nystrom", "nystrom_iterations", 12),
        ("performer", "performer_features", 65536),
        ("quasiseparable", "quasiseparable_chunk", 4096),
        ("reformer", "reformer_hashes", 128),
        ("rfa", "rfa_features", 65536),
    ],
)
def test_what_multiplies_the_work_has_a_bound_of_its_own(attention, option, most):
    given = {"attention": attention, "attention_dropout": 0.0}
    assert getattr(resolve_config(OmegaConf.create({**given, option: most}), 512), option) == most
    with pytest.raises(ValueError, match=f"^{option}={most + 1} is not allowed: it must be at most {most}$"):
        resolve_config(OmegaConf.create({**given, option: most + 1}), 512)


REFUSED = {
    "alternating_every=0": "at least 1",
    "alternating_window=3": "even and at least 2",
    "bigbird_block=0": "at least 1",
    "bigbird_random_blocks=-1": "at least 0",
    "linear_feature_map=relu": "one of elu, hedgehog",
    "lion_chunk=0": "at least 1",
    "lion_decay=exponential": "one of none, learned, selective",
    "long_short_conv_width=4": r"0 \(none\) or an odd width",
    "long_short_rank=0": "at least 1",
    "long_short_window=0": "at least 1",
    "longformer_global_tokens=-1": "from 0 to max_positions=15",
    "longformer_global_tokens=16": "from 0 to max_positions=15",
    "longformer_window=0": "even and at least 2",
    "longformer_window=5": "even and at least 2",
    "longformer_window=4..7": "FIRST..LAST where both are multiples of 2",
    "longformer_window=4,6,8": "one number or 12, one per layer",
    "longformer_window=wide": "a number, one per layer .* or FIRST..LAST",
    "nystrom_conv_width=-1": r"0 \(none\) or an odd width",
    "nystrom_conv_width=4": r"0 \(none\) or an odd width",
    "nystrom_iterations=0": "at least 1",
    "nystrom_landmarks=0": "at least 1",
    "performer_features=0": "at least 1",
    "performer_redraw_interval=-1": "at least 0",
    "quasiseparable_chunk=0": "at least 1",
    "reformer_chunk_length=0": "at least 1",
    "reformer_hashes=0": "at least 1",
    "rfa_features=0": "at least 1",
    "rfa_redraw_interval=-1": "at least 0",
    "rfa_temperature=0.0": "above 0, and finite",
    "rfa_temperature=inf": "above 0, and finite",
    "sparse_expressivity=0": "at least 1",
    "sparse_pattern=local": "one of fixed, strided",
    "sparse_stride=-1": "at least 1, or 0 for about the root",
}
REFUSED_IN_PART = {  # where the value that cannot work is one of several, or follows from another
    "alternating_first=3": "alternating_first=3 is not allowed: it must be below alternating_every=3",
    "longformer_window=4..0": "longformer_window=0 is not allowed: it must be even and at least 2",
    "longformer_window=4,7": "longformer_window=7 is not allowed: it must be even and at least 2",
    "sparse_stride=4": "sparse_expressivity=8 is not allowed: it must be from 1 to sparse_stride=4",
    "sparse_pattern=strided sparse_expressivity=4": "sparse_expressivity=4 .* left out with sparse_pattern=strided",
}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *((given, f"{given} is not allowed: it must be {allowed}") for given, allowed in REFUSED.items()),
        *REFUSED_IN_PART.items(),
    ],
)
def test_options_of_mechanisms_that_cannot_work_are_refused(given, said):
    words = dict(word.split("=") for word in given.split())
    owns = {name: {own.name for own in fields(kind.Options)} for name, kind in ATTENTIONS.items()}
    (attention,) = (name for name, own in owns.items() if words.keys() <= own)
    layers = 2 if "4,7" in given else 12
    options = {"attention": attention, "attention_dropout": 0.0, "encoder_layers": layers, **words}
    with pytest.raises(ValueError, match=f"^{said}"):
        resolve_config(OmegaConf.create(options), 15)


def test_a_model_shorter_than_the_samples_is_refused():
    with pytest.raises(ValueError, match="max_positions=256 is below the task's longest sequence, 512"):
        resolve_config(OmegaConf.create({"max_positions": 256}), 512)


def test_a_checkpoint_of_another_version_is_named_as_one():
    with pytest.raises(
        ValueError, match=r"future_option: Key .* not in .*; a checkpoint that has it is of another version"
    ):
        resolve_config(OmegaConf.create({"future_option": False}), 64)


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


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        (None, [128, 128, 128]),
        (96, [96, 96, 96]),
        ([96, 64, 32], [96, 64, 32]),
        ("96,64,32", [96, 64, 32]),
        ("96..32", [96, 64, 32]),
        ("256..255", [256, 256, 255]),
    ],
)
def test_projected_length_by_layer(given, lengths):
    config = resolve_config(OmegaConf.create({"encoder_layers": 3, "projected_length": given}), 512)
    assert config.projected_length == lengths


@pytest.mark.parametrize(("given", "windows"), [(None, [512] * 3), ("32..512", [32, 272, 512]), ("2..8", [2, 4, 8])])
def test_windows_between_the_first_and_the_last_are_even(given, windows):
    words = {"attention": "longformer", "encoder_layers": 3, "longformer_window": given}
    config = resolve_config(OmegaConf.create(words), 512)
    assert [2 * layer.reach for layer in get_attention("longformer").build_layers(config)] == windows


@pytest.mark.parametrize(
    ("attention", "words", "read"),
    [
        ("linformer", "--projected-length 96..32", {"projected_length": [96, 64, 32]}),
        ("linformer", "--projected-length 96,64,32", {"projected_length": [96, 64, 32]}),
        ("longformer", "--longformer-window 32..128", {"longformer_window": [32, 80, 128]}),
        ("long-short", "--long-short-class-token --long-short-conv-width 9", {"long_short_conv_width": 9}),
        ("long-short", "--long-short-class-token", {"long_short_class_token": True}),
    ],
)
def test_options_by_layer_and_of_mechanisms_as_flags(attention, words, read):
    fixed = f"DATA --arch linformer_roberta_tiny --task masked_lm --encoder-layers 3 --attention {attention}"
    args = options.parse_args_and_arch(options.get_training_parser(), f"{fixed} {words}".split())
    config = resolve_config(convert_namespace_to_omegaconf(args).model, 512)
    assert {name: getattr(config, name) for name in read} == read


def test_pruning_keeps_each_layers_length():
    """And is done: what is built from the complete configuration is not pruned again."""
    options = {"encoder_layers": 3, "projected_length": "96..32", "encoder_layers_to_keep": "2,0"}
    config = resolve_config(OmegaConf.create(options), 512)
    assert (config.projected_length, config.encoder_layers, config.encoder_layers_to_keep) == ([96, 32], 2, None)


@pytest.mark.parametrize(("kept", "refused"), [("0,2,4", None), ("0,3", "layer 3, full, would be layer 1, windowed")])
def test_pruning_keeps_each_layers_kind(kept, refused):
    options = {"encoder_layers": 5, "attention": "alternating", "encoder_layers_to_keep": kept}
    if refused is None:
        assert resolve_config(OmegaConf.create(options), 512).encoder_layers == 3
        return
    with pytest.raises(ValueError, match=f"^encoder_layers_to_keep={kept} is not allowed: .*attention=.*: {refused}$"):
        resolve_config(OmegaConf.create(options), 512)


def test_the_model_is_built_again_from_its_options_alone():
    """All that is not the recipe's, as plain values, pruned and spread over the layers."""
    given = {"_name": "linformer_roberta_tiny", "attention": "longformer", "longformer_window": "4..8", "compressed": 8}
    recipe = {"dropout": 0.3, "checkpoint_activations": True, "load_checkpoint_heads": True}
    config = resolve_config(OmegaConf.create({**given, **recipe, "encoder_layers_to_keep": "0,3"}), 512)
    options = architecture_options(config)
    assert (options["longformer_window"], options["projected_length"], options["encoder_layers"]) == ("4,8", 64, 2)
    assert not options.keys() & (recipe.keys() | {"_name", "compressed", "encoder_layers_to_keep"})
    assert resolve_config(OmegaConf.create({**options, **recipe}), 512) == config


def test_the_values_of_a_complete_configuration_are_plain():
    """No enumerations, no nodes of OmegaConf: it is compared, printed and written as JSON."""
    config = asdict(resolve_config(OmegaConf.create({"projected_length": [64, 32], "encoder_layers": 2}), 512))
    assert {type(value) for value in config.values()} <= {int, float, bool, str, list, type(None)}


def test_an_architecture_is_asked_for_its_sizes_and_changes_none():
    sizes = architecture_defaults("linformer_roberta_tiny")
    sizes["encoder_layers"] = 99
    assert architecture_defaults("linformer_roberta_tiny")["encoder_layers"] == 4
    assert architecture_defaults("linformer_roberta") == architecture_defaults("linformer_roberta_base")


def test_the_file_of_options_is_as_its_script_writes_it():
    """Hydra can override on the command line what a YAML names: an option missing there needs an odd plus sign."""
    written = (ROOT / "configs" / "model" / "options.yaml").read_text()
    assert written == options_yaml(), "run python scripts/write_model_options.py"
    assert OmegaConf.create(written).keys() == {"_name", *OPTIONS}


def test_a_missing_length_is_named():
    with pytest.raises(ValueError, match="max_positions is missing"):
        resolve_config(OmegaConf.create({}), None)


def test_max_positions_default_to_the_tasks_length():
    assert resolve_config(OmegaConf.create({}), 640).max_positions == 640
