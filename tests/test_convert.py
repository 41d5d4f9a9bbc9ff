"""Conversions: equal results, new parameters, fitting, files, and rejected options."""

import json
import shutil

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_linformer.attention.projection import adaptive_pooling
from fairseq_linformer.checkpoint import UNTRAINED, digest_vocabulary
from fairseq_linformer.cli.command import main
from fairseq_linformer.convert import (
    convert,
    converted_options,
    initialize_from,
    interpolate,
    long_options,
    stretch,
    tile,
)
from fairseq_linformer.data.dictionaries import load_dictionary
from fairseq_linformer.digests import digest_file
from fairseq_linformer.errors import UserError
from tests.helpers import ROOT
from tests.helpers.exports import HEAD, N, hub_of, rows, write_fine_tuned, write_pretrained
from tests.helpers.models import small, tokens

SOFTMAX = {"attention": "softmax"}
BIGBIRD = {"attention": "bigbird", "bigbird_block": 4, "bigbird_random_blocks": 2}
REFORMER = {"attention": "reformer", "reformer_chunk_length": 4, "reformer_hashes": 2}
RANDOM_FEATURES = [{"attention": name, "attention_dropout": 0.0} for name in ("performer", "rfa")]
GROWING = {"bigbird": ["random_blocks"], "reformer": ["rotations"]}  # buffers that are larger for longer texts
LINFORMER = ["model.attention=linformer", "model.projection=mean-pool"]


def trained(**options):
    """A model whose parameters are all random, and large enough for sharp attention."""
    model = small(seed=2, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model.eval()


def started(source, extension="tile", **options):
    model = small(**options).eval()
    state = source.state_dict()
    model.upgrade_state_dict(state)
    return model, initialize_from(model, state, extension)


@torch.no_grad()
def assert_same_logits(model, other, ids=None):
    ids = tokens() if ids is None else ids
    real = ids.ne(1)
    torch.testing.assert_close(model(ids)[0][real], other(ids)[0][real], rtol=1e-5, atol=1e-5)


def assert_same_checkpoints(path, other):
    assert_same_logits(hub_of(path).model, hub_of(other).model, rows())


@pytest.mark.parametrize(
    "options",
    [SOFTMAX, {"sharing": "none"}, {"sharing": "layerwise"}, {"local_conv": 3}, BIGBIRD, REFORMER, *RANDOM_FEATURES],
)
def test_same_options_give_a_copy(options):
    source = trained(**options)
    model, (new, left_out) = started(source, **options)
    assert new == left_out == []
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())


def test_full_attention_equals_linformer_with_a_projected_key_for_every_position():
    source = trained(**SOFTMAX)
    model, (new, left_out) = started(source, attention="linformer", projection="mean-pool", projected_length=64)
    assert new == left_out == []
    padded = tokens()
    padded[1, 40:] = 1
    assert_same_logits(model, source, padded)


def test_new_parameters_are_initially_means_of_segments_or_copies():
    model, (new, left_out) = started(trained(**SOFTMAX), attention="linformer", sharing="layerwise")
    assert new == ["encoder.sentence_encoder.layers.0.self_attn.key_projection.weight"] and left_out == []
    projection = model.encoder.sentence_encoder.layers[0].self_attn.key_projection
    matrix = (projection.multiplier * projection.weight).detach()
    torch.testing.assert_close(matrix, adaptive_pooling(torch.tensor(64), 8, 64, matrix.dtype), atol=0.02, rtol=0)
    model, _ = started(trained(**SOFTMAX), attention="longformer", longformer_window=8)
    attention = model.encoder.sentence_encoder.layers[1].self_attn
    assert torch.equal(attention.k_proj_global.weight, attention.k_proj.weight)


def test_convolutions_are_new_wider_narrower_or_left_out():
    source = trained(**SOFTMAX)
    model, (new, _) = started(source, **SOFTMAX, local_conv=5)
    assert len(new) == 4  # weight and bias of two layers, zero
    assert_same_logits(model, source)
    _, (new, left_out) = started(model, **SOFTMAX)
    assert new == [] and [".local_conv." in name for name in left_out] == [True] * 4
    source = trained(**SOFTMAX, local_conv=3)
    wider, _ = started(source, **SOFTMAX, local_conv=7)
    assert_same_logits(wider, source)
    narrower, (new, _) = started(wider, **SOFTMAX, local_conv=1)
    weights = [model.encoder.sentence_encoder.layers[0].local_conv.conv.weight for model in (narrower, source)]
    assert new == [] and torch.equal(weights[0], weights[1][..., 1:2])


@pytest.mark.parametrize("extension", ["tile", "interpolate"])
@pytest.mark.parametrize("options", [SOFTMAX, {"linformer_window": 8}, BIGBIRD, REFORMER])
def test_longer_models(extension, options):
    source = trained(**options)
    model, (new, _) = started(source, extension, **options, max_positions=128)
    assert model(tokens(length=128))[0].isfinite().all()
    growing = GROWING.get(options.get("attention"), [])
    assert [name.rpartition(".")[2] for name in new] == 2 * growing
    if extension == "tile" and (growing or options == SOFTMAX):
        assert_same_logits(model, source)


def test_mean_pooling_of_the_same_segments_and_another_multiplier_change_nothing():
    source = trained(projection="mean-pool")
    assert_same_logits(started(source, projection="mean-pool", max_positions=192, projected_length=24)[0], source)
    source = trained(projection_multiplier=0.5)
    model, (new, _) = started(source, projection_multiplier=0.125)
    assert new == [] and model.encoder.sentence_encoder.layers[0].self_attn.key_projection.multiplier == 0.125
    assert_same_logits(model, source)


def test_extended_positions_and_stretched_matrices():
    positions = torch.tensor([[9.0], [8.0], [0.0], [4.0], [8.0]])  # two rows of no position, then three
    assert tile(positions, 7).flatten().tolist() == [9, 8, 0, 4, 8, 0, 4, 8, 0]
    assert interpolate(positions, 5).flatten().tolist() == [9, 8, 0, 2, 4, 6, 8]
    means = adaptive_pooling(torch.tensor(8), 2, 8, torch.float64).expand(3, 2, 8)
    wider = stretch(means, 32)
    assert wider.shape == (3, 2, 32) and torch.equal(wider[0], stretch(means[0], 32))
    torch.testing.assert_close(wider.sum(-1), means.sum(-1))
    ends = wider[..., [0, 11, 20, 31]]  # between them the first row fades out, the second in
    assert torch.equal(ends[0], torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]) / 16)


@pytest.mark.parametrize(("sharing", "lost"), [("key-value", 2), ("layerwise", 3), ("headwise", 0)])
def test_second_names_of_shared_matrices_are_left_out(sharing, lost):
    source = trained(sharing="headwise")
    for length in (64, 128):  # copied and stretched
        _, (new, left_out) = started(source, sharing=sharing, max_positions=length)
        assert new == [] and [name.endswith("_projection.weight") for name in left_out] == [True] * lost
        assert not any("layers.0.self_attn.key" in name for name in left_out)
    source = trained(sharing="layerwise")
    assert_same_logits(started(source, sharing="none")[0], source)


def test_options_that_stay_and_options_that_are_dropped():
    source = small(attention="softmax", encoder_normalize_before=True, local_conv=3, activation_fn="relu").args
    options = converted_options(source, {"attention": "linformer", "linformer_window": 4})
    assert options["encoder_normalize_before"] and options["local_conv"] == 3 and options["activation_fn"] == "relu"
    assert options["linformer_window"] == 4 and "projected_length" not in options and "dropout" not in options
    source = small(attention="linformer", sharing="none", linformer_window=4, adaptive_length=True).args
    longer = converted_options(source, {"max_positions": 128})
    assert (longer["sharing"], longer["projected_length"], longer["linformer_window"]) == ("none", 8, 4)
    pooled = converted_options(source, {"projection": "split-pool"})
    assert "sharing" not in pooled and "projection_init" not in pooled
    assert (pooled["projected_length"], pooled["linformer_window"], pooled["adaptive_length"]) == (8, 4, True)
    other = converted_options(source, {"attention": "performer"})
    assert "projected_length" not in other and "linformer_window" not in other and other["attention_dropout"] == 0


@pytest.fixture(scope="module")
def source(vocabulary, tmp_path_factory):
    """The checkpoint of a model with full attention."""
    return write_pretrained(tmp_path_factory.mktemp("source") / "run", vocabulary, attention="softmax", local_conv=3)


@pytest.fixture(scope="module")
def learned(vocabulary, tmp_path_factory):
    """The checkpoint of a Linformer with one matrix."""
    options = {"projected_length": 5, "sharing": "layerwise"}
    return write_pretrained(tmp_path_factory.mktemp("learned") / "run", vocabulary, **options)


def test_files(source, tmp_path):
    """The folder has a checkpoint, the same in every process, its vocabulary and a record of the conversion."""
    lengths = ["model.attention=linformer", "model.projected_length=[5,3]", "model.local_conv=0"]
    weights = []
    for name in ("a", "b"):
        torch.manual_seed(len(weights))
        convert(source.parent, tmp_path / name, lengths)
        weights.append(torch.load(tmp_path / name / UNTRAINED, weights_only=True)["model"])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    record = json.loads((tmp_path / "a" / "conversion.json").read_text())
    assert (record["source"], record["digest"]) == (str(source.parent), digest_file(source))
    assert record["changes"] == {"attention": "linformer", "projected_length": [5, 3], "local_conv": 0}
    assert (record["positions"], record["fit_on"], record["errors"]) == ("tile", None, None)
    assert len(record["starts_anew"]) == len(record["left_out"]) == 4  # E and F, and the convolution, of two layers
    hub = hub_of(tmp_path / "a" / UNTRAINED)
    assert hub.model.args.projected_length == [5, 3] and hub.decode(hub.encode("the old dog")) == "the old dog"


def test_the_head_of_a_fine_tuned_checkpoint_is_left_out(vocabulary, tmp_path):
    checkpoint = write_fine_tuned(tmp_path / "tuned", vocabulary, "single-label", options=SOFTMAX)
    head = [f"classification_heads.{HEAD}.{name}.{of}" for name in ("dense", "out_proj") for of in ("weight", "bias")]
    assert convert(checkpoint, tmp_path / "first", []).started.left_out == head
    convert(tmp_path / "first", tmp_path / "out", [f"model.max_positions={2 * N}"])  # the folder of a conversion
    assert_same_checkpoints(tmp_path / "out" / UNTRAINED, checkpoint)
    assert hub_of(tmp_path / "out" / UNTRAINED).task.cfg.tokens_per_sample == 2 * N


def test_matrices_of_another_projection_or_attention_are_not_copied(learned, tmp_path, capsys):
    """Random matrices have the shape of learned ones."""
    matrix = ["encoder.sentence_encoder.layers.0.self_attn.key_projection.weight"]
    started = convert(learned, tmp_path / "random", ["model.projection=random", "model.sharing=layerwise"]).started
    assert started.new == started.left_out == matrix
    result = convert(learned, tmp_path / "window", ["model.linformer_window=4"])
    assert result.started == ([], []) and result.model.args.sharing == "layerwise"
    main(["convert", str(learned), "--out", str(tmp_path / "out"), "model.attention=longformer"])
    assert "layers.*.self_attn.key_projection.weight" in capsys.readouterr().out


def test_data_of_another_vocabulary_is_rejected(vocabulary, tmp_path):
    """The folder of the data was prepared again, with as many pieces."""
    data = shutil.copytree(vocabulary, tmp_path / "data")
    checkpoint = write_pretrained(tmp_path / "run", data, attention="softmax")
    state = torch.load(checkpoint, weights_only=False)
    digests = digest_vocabulary(load_dictionary(data / "dict.txt"), data)
    torch.save({**state, "task_state": {"vocabulary": digests}}, checkpoint)
    symbols = (data / "dict.txt").read_text().splitlines()
    (data / "dict.txt").write_text("\n".join(reversed(symbols)) + "\n")
    with pytest.raises(UserError, match="dictionary"):
        convert(checkpoint, tmp_path / "out", LINFORMER)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "softmax", "positions": "rotary", "rotary_share": 0.5, "value_residual": True},
        {"attention": "sparse", "sparse_pattern": "fixed", "sparse_expressivity": 2},  # the stride depends on n
    ],
)
def test_longer_models_without_new_parameters(vocabulary, tmp_path, options, capsys):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, **options)
    result = convert(checkpoint, tmp_path / "out", [f"model.max_positions={4 * N}"])
    assert result.started.left_out == []
    assert_same_checkpoints(tmp_path / "out" / UNTRAINED, checkpoint)
    if "positions" in options:
        assert result.started.new == []
        with pytest.raises(UserError, match="--positions=interpolate"):
            convert(checkpoint, tmp_path / "other", [f"model.max_positions={2 * N}"], positions="interpolate")
        main(["convert", str(checkpoint), "--out", str(tmp_path / "long"), "--long", str(2 * N)])
        assert "texts of at most" not in capsys.readouterr().out  # sink and projected keys have no positions


@torch.no_grad()
def test_long_computes_short_texts_as_before(source, tmp_path, capsys):
    main(["convert", str(source), "--out", str(tmp_path / "out"), "--long", str(4 * N)])
    assert "texts of at most" in capsys.readouterr().out
    assert_same_checkpoints(tmp_path / "out" / UNTRAINED, source)
    model, old = (hub_of(path).model for path in (tmp_path / "out" / UNTRAINED, source))
    preset = OmegaConf.load(ROOT / "configs/pretrain/preset/long.yaml").model
    assert long_options(old.args, 2 * N, {}) == {**preset, "projected_length": N, "max_positions": 2 * N}
    longer = torch.full((2, 4 * N), 5)
    longer[1, 7:] = 1
    torch.testing.assert_close(model(longer)[0][1, :7], model(longer[1:, :7])[0][0], rtol=1e-5, atol=1e-5)
    main(["convert", str(source), "--out", str(tmp_path / "linear"), "--long", str(2 * N), "model.projection=linear"])
    assert "texts of at most" not in capsys.readouterr().out


def test_options_have_priority_over_long_and_its_number_is_checked(source, learned, tmp_path):
    changes = ["model.linformer_window=64", "model.projected_length=10"]
    args = convert(source, tmp_path / "out", changes, long=2 * N).model.args
    assert (args.linformer_window, args.projected_length, args.linformer_sinks) == ([64, 64], [10, 10], 1)
    other = convert(learned, tmp_path / "other", ["model.attention=longformer"], long=2 * N).model.args
    assert (other.attention, other.max_positions, other.linformer_sinks) == ("longformer", 2 * N, None)
    for start, length in ((source, N), (source, N + 1), (source, N // 2), (learned, 2 * N)):
        with pytest.raises(UserError, match=f"--long={length} "):
            convert(start, tmp_path / "new", [], long=length)
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def corpus_source(corpus, tmp_path_factory):
    """The checkpoint of a model with full attention and the vocabulary of the corpus."""
    return write_pretrained(tmp_path_factory.mktemp("source") / "run", corpus, attention="softmax", local_conv=3)


@pytest.mark.parametrize(
    ("overrides", "fitted_parameters"),
    [
        ("model.attention=linformer model.projected_length=4 model.freeze_projection=true", "_projection.weight"),
        ("model.attention=linear model.linear_feature_map=hedgehog", ".feature_map.weight"),
    ],
)
def test_fitting_reduces_errors(corpus_source, corpus, tmp_path, overrides, fitted_parameters, monkeypatch):
    monkeypatch.setattr("fairseq_linformer.convert.UPDATES", 20)
    fitted = convert(corpus_source, tmp_path / "fitted", overrides.split(), fit_on=corpus)
    assert all(after < before for before, after in zip(*fitted.errors, strict=True))
    convert(corpus_source, tmp_path / "plain", overrides.split())
    files = (tmp_path / name / UNTRAINED for name in ("plain", "fitted"))
    before, after = (torch.load(file, weights_only=True)["model"] for file in files)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith(fitted_parameters)} != set()


def test_corpora_that_do_not_fit_are_rejected(corpus_source, corpus, tmp_path):
    linear = ["model.attention=linformer", "model.projected_length=5"]
    other = shutil.copytree(corpus, tmp_path / "other")
    (other / "dict.txt").write_text("newpiece 1\n" + (other / "dict.txt").read_text())
    for overrides, folder, name in (
        ([*linear, "model.projection=random"], corpus, "--fit-on"),
        (["model.attention=linear"], corpus, "--fit-on"),
        ([*linear, "model.max_positions=900"], corpus, "900 tokens"),
        (linear, other, "dictionary"),
    ):
        with pytest.raises(UserError, match=name):
            convert(corpus_source, tmp_path / "out", overrides, fit_on=folder)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "override",
    ["model.attention=full", "model.encoder_layers=3", "linformer", "model.attention=", "model.max_positions=14"],
)
def test_invalid_overrides_are_rejected_before_anything_is_written(source, tmp_path, override):
    with pytest.raises(UserError, match=override.removeprefix("model.")):
        convert(source, tmp_path / "out", [override])
    assert list(tmp_path.iterdir()) == []
