"""From a checkpoint to another one: options, files, E and F fitted to text, what is refused, and training on."""

import hashlib
import json
import shutil

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_linformer.analysis import read_model
from fairseq_linformer.checkpoint import UNTRAINED, digest_vocabulary
from fairseq_linformer.cli.command import main
from fairseq_linformer.conversion.convert import convert, converted_options, long_options
from fairseq_linformer.data.dictionaries import load_dictionary
from fairseq_linformer.errors import UserError
from tests.helpers import ROOT
from tests.helpers.commands import run
from tests.helpers.exports import HEAD, N, hub_of, rows, write_fine_tuned, write_pretrained
from tests.helpers.models import small
from tests.helpers.processes import no_space

LINFORMER = ["model.attention=linformer", "model.projection=mean-pool"]


@pytest.fixture(scope="module")
def source(vocabulary, tmp_path_factory):
    """A model with full attention."""
    return write_pretrained(tmp_path_factory.mktemp("source") / "run", vocabulary, attention="softmax", local_conv=3)


@pytest.fixture(scope="module")
def of_corpus(corpus, tmp_path_factory):
    """One with the vocabulary of the corpus."""
    return write_pretrained(tmp_path_factory.mktemp("source") / "run", corpus, attention="softmax", local_conv=3)


@torch.no_grad()
def assert_same_logits(checkpoint, other):
    real = rows().ne(1)
    found, expected = (hub_of(path).model(rows())[0][real] for path in (checkpoint, other))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_folder_that_python_loads(source, tmp_path):
    """With a row for every position pooling is full attention; dictionary and subword model lie beside it."""
    convert(source.parent, tmp_path / "out", [*LINFORMER, f"model.projected_length={N}"])
    assert_same_logits(tmp_path / "out" / UNTRAINED, source)
    hub = hub_of(tmp_path / "out" / UNTRAINED)
    assert hub.model.args.attention == "linformer" and hub.task.cfg.data == str(tmp_path / "out")
    assert hub.decode(hub.encode("the old dog")) == "the old dog"


def test_the_same_command_gives_the_same_weights(source, tmp_path):
    weights = []
    for name in ("a", "b"):
        torch.manual_seed(len(weights))
        convert(source, tmp_path / name, ["model.attention=linformer", "model.projected_length=5"])
        weights.append(torch.load(tmp_path / name / UNTRAINED, weights_only=True)["model"])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_fine_tuned_checkpoint_leaves_its_head_behind(vocabulary, tmp_path):
    checkpoint = write_fine_tuned(tmp_path / "tuned", vocabulary, "single-label", options={"attention": "softmax"})
    head = [f"classification_heads.{HEAD}.{name}.{of}" for name in ("dense", "out_proj") for of in ("weight", "bias")]
    assert convert(checkpoint, tmp_path / "first", []).started.left_out == head
    assert json.loads((tmp_path / "first" / "conversion.json").read_text())["left_out"] == head
    convert(tmp_path / "first", tmp_path / "out", [f"model.max_positions={2 * N}"])  # of a folder that it made itself
    assert_same_logits(tmp_path / "out" / UNTRAINED, checkpoint)
    assert hub_of(tmp_path / "out" / UNTRAINED).task.cfg.tokens_per_sample == 2 * N


def test_a_stock_roberta_of_transformers(source, vocabulary, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    from fairseq_linformer.hf.exporting import export

    checkpoint = write_pretrained(tmp_path / "run", vocabulary, attention="softmax")
    export(checkpoint, tmp_path / "stock")
    convert(tmp_path / "stock", tmp_path / "out", [*LINFORMER, f"model.projected_length={N}"])
    assert_same_logits(tmp_path / "out" / UNTRAINED, checkpoint)


def test_another_projection_does_not_take_over_the_matrices(vocabulary, tmp_path):
    """Random ones have the shape of learned ones."""
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, projected_length=5, sharing="layerwise")
    learned = ["encoder.sentence_encoder.layers.0.self_attn.key_projection.weight"]
    random = ["model.projection=random", "model.sharing=layerwise"]
    model, started, *_ = convert(checkpoint, tmp_path / "random", random)
    assert started.new == started.left_out == learned
    model, started, *_ = convert(checkpoint, tmp_path / "window", ["model.linformer_window=4"])
    assert started.new == started.left_out == [] and model.args.sharing == "layerwise"


def test_heads_of_their_own_start_from_the_matrices_that_were_shared(vocabulary, tmp_path):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, projected_length=5, sharing="layerwise")
    _, started, *_ = convert(checkpoint, tmp_path / "out", ["model.sharing=none", "model.projected_length=5"])
    assert started.new == []
    assert_same_logits(tmp_path / "out" / UNTRAINED, checkpoint)


def test_a_wider_convolution_computes_the_same_and_a_narrower_one_is_its_middle(source, tmp_path):
    state = torch.load(source, weights_only=False)
    for name, tensor in state["model"].items():
        if name.endswith("local_conv.conv.bias"):
            tensor.fill_(0.7)
    torch.save(state, tmp_path / "source.pt")
    _, started, *_ = convert(tmp_path / "source.pt", tmp_path / "wider", ["model.local_conv=7"])
    assert started.new == []
    assert_same_logits(tmp_path / "wider" / UNTRAINED, tmp_path / "source.pt")
    model, started, *_ = convert(tmp_path / "wider" / UNTRAINED, tmp_path / "narrower", ["model.local_conv=1"])
    name = "encoder.sentence_encoder.layers.0.local_conv.conv"
    assert started.new == [] and model.state_dict()[f"{name}.bias"].eq(0.7).all()
    assert torch.equal(model.state_dict()[f"{name}.weight"], state["model"][f"{name}.weight"][..., 1:2])


def test_data_of_another_vocabulary_is_not_given_to_the_new_checkpoint(corpus, tmp_path):
    """It was prepared again in its place, with as many pieces."""
    shutil.copytree(corpus, tmp_path / "data")
    checkpoint = write_pretrained(tmp_path / "run", tmp_path / "data", attention="softmax")
    state = torch.load(checkpoint, weights_only=False)
    vocabulary = digest_vocabulary(load_dictionary(corpus / "dict.txt"), corpus)
    torch.save({**state, "task_state": {"vocabulary": vocabulary}}, checkpoint)
    symbols = (tmp_path / "data/dict.txt").read_text().splitlines()
    (tmp_path / "data/dict.txt").write_text("\n".join(reversed(symbols)) + "\n")
    for call in (
        lambda: convert(checkpoint, tmp_path / "out", LINFORMER),
        lambda: read_model(checkpoint, None),
    ):
        with pytest.raises(UserError, match=r"data has another dictionary than .* was trained with"):
            call()
    assert not (tmp_path / "out").exists()


def test_what_another_attention_has_no_use_for_is_said_to_be_left_out(vocabulary, tmp_path, capsys):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, projected_length=5, sharing="headwise")
    main(["convert", str(checkpoint), "--out", str(tmp_path / "out"), "model.attention=longformer"])
    said = capsys.readouterr().out.splitlines()[:-1]
    assert said == [f"left out: layers.*.self_attn.{name}_projection.weight" for name in ("key", "value")]
    assert len(json.loads((tmp_path / "out" / "conversion.json").read_text())["left_out"]) == 4


def test_the_weights_of_value_residuals_are_taken_over(vocabulary, tmp_path):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, attention="softmax", value_residual=True)
    state = torch.load(checkpoint, weights_only=False)
    name = "encoder.sentence_encoder.layers.1.self_attn.value_mix"
    state["model"][name] = torch.tensor([0.1, 0.9])
    torch.save(state, checkpoint)
    model, started, *_ = convert(checkpoint, tmp_path / "out", LINFORMER)
    assert torch.equal(model.state_dict()[name], state["model"][name]) and started.new == started.left_out == []


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_relative_positions_read_longer_texts_without_new_parameters(vocabulary, tmp_path, positions):
    options = {"attention": "softmax", "positions": positions, "rotary_share": 0.5}
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, **options)
    model, started, *_ = convert(checkpoint, tmp_path / "out", [f"model.max_positions={2 * N}"])
    assert started.new == started.left_out == [] and model.args.positions == positions
    assert_same_logits(tmp_path / "out" / UNTRAINED, checkpoint)
    assert hub_of(tmp_path / "out" / UNTRAINED).model(torch.full((1, 2 * N), 5))[0].isfinite().all()
    with pytest.raises(UserError, match=f"positions={positions} .* must be learned with attention=performer"):
        convert(checkpoint, tmp_path / "other", ["model.attention=performer"])
    with pytest.raises(UserError, match="--positions=interpolate is not allowed: it must be tile, unless"):
        convert(checkpoint, tmp_path / "other", [f"model.max_positions={2 * N}"], positions="interpolate")


@pytest.mark.parametrize("pattern", ["fixed", "strided"])
def test_sparse_attention_made_longer_keeps_the_stride_that_followed_from_the_length(vocabulary, tmp_path, pattern):
    options = {"attention": "sparse", "sparse_pattern": pattern}
    options |= {"sparse_expressivity": 2} if pattern == "fixed" else {}
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, **options)
    convert(checkpoint, tmp_path / "out", [f"model.max_positions={4 * N}"])
    assert_same_logits(tmp_path / "out" / UNTRAINED, checkpoint)


@torch.no_grad()
def test_long_reads_what_the_source_reads_as_it_does(source, tmp_path, capsys):
    """The numbers are those of the preset; short texts are full attention's, beside long ones, too."""
    main(["convert", str(source), "--out", str(tmp_path / "out"), "--long", str(4 * N)])
    said = capsys.readouterr().out
    assert f"attention=linformer, {4 * N} positions" in said
    assert f"texts of at most {N} tokens are read as before" in said
    assert_same_logits(tmp_path / "out" / UNTRAINED, source)
    model, old = (hub_of(path).model for path in (tmp_path / "out" / UNTRAINED, source))
    preset = OmegaConf.load(ROOT / "configs/pretrain/preset/long.yaml").model
    assert long_options(old.args, 2 * N, {}) == {**preset, "projected_length": N, "max_positions": 2 * N}
    assert (model.args.linformer_window, model.args.projected_length) == ([preset.linformer_window] * 2, [N] * 2)
    longer = torch.full((2, 4 * N), 5)
    longer[1, 7:] = 1
    torch.testing.assert_close(model(longer)[0][1, :7], model(longer[1:, :7])[0][0], rtol=1e-5, atol=1e-5)


def test_options_win_over_long_and_its_number_is_checked(source, tmp_path):
    own = ["model.linformer_fetch=0", "model.projected_length=10"]
    args = convert(source, tmp_path / "out", own, long=2 * N).model.args
    assert (args.linformer_fetch, args.projected_length, args.linformer_sinks) == ([0, 0], [10, 10], 1)
    other = convert(source, tmp_path / "other", ["model.attention=longformer"], long=2 * N).model.args
    assert (other.attention, other.max_positions, other.linformer_sinks) == ("longformer", 2 * N, None)
    for length in (N, N + 1, N // 2):
        with pytest.raises(UserError, match=f"--long={length} .* must be a multiple of {N}, .* from {2 * N} on"):
            convert(source, tmp_path / "new", [], long=length)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "own", ["model.projection=linear", "model.adaptive_length=false", "--positions=interpolate", "model.local_conv=1"]
)
def test_long_promises_nothing_of_short_texts_where_rows_positions_or_neighbours_are_other_ones(
    source, tmp_path, capsys, own
):
    main(["convert", str(source), "--out", str(tmp_path / "out"), "--long", str(2 * N), own])
    assert "as before" not in capsys.readouterr().out


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_long_says_that_relative_positions_change_short_texts(vocabulary, tmp_path, capsys, positions):
    """The sink and the rows are scored by content alone."""
    options = {"attention": "softmax", "positions": positions, "rotary_share": 0.5}
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, **options)
    main(["convert", str(checkpoint), "--out", str(tmp_path / "out"), "--long", str(2 * N)])
    assert f"with positions={positions} the first and the means have none: no text is read as before" in (
        capsys.readouterr().out
    )


@torch.no_grad()
def test_long_is_for_full_attention_and_says_what_else_makes_a_model_longer(source, vocabulary, tmp_path):
    learned = write_pretrained(tmp_path / "run", vocabulary, projected_length=5)
    convert(source, tmp_path / "long", [], long=2 * N)
    for of_linformer in (learned, tmp_path / "long" / UNTRAINED):
        said = rf"^--long={4 * N} .* source of attention=linformer.* model\.max_positions={4 * N} makes"
        for own in ([], ["model.attention=linformer"]):
            with pytest.raises(UserError, match=said):
                convert(of_linformer, tmp_path / "out", own, long=4 * N)
    other = convert(learned, tmp_path / "other", ["model.attention=longformer"], long=2 * N).model.args
    assert (other.attention, other.max_positions) == ("longformer", 2 * N)
    model = convert(tmp_path / "long", tmp_path / "longer", [f"model.max_positions={4 * N}"]).model.eval()
    text = torch.randint(4, 90, (1, 2 * N))
    torch.testing.assert_close(model(text)[0], hub_of(tmp_path / "long" / UNTRAINED).model(text)[0])


def test_options_that_say_what_weights_mean_stay():
    source = small(attention="softmax", encoder_normalize_before=True, local_conv=3, activation_fn="relu").args
    options = converted_options(source, {"attention": "linformer", "linformer_window": 4})
    assert options["encoder_normalize_before"] and options["local_conv"] == 3 and options["activation_fn"] == "relu"
    assert options["linformer_window"] == 4 and "projected_length" not in options and "dropout" not in options


def test_the_options_of_the_attention_go_with_it():
    source = small(attention="linformer", sharing="none", linformer_window=4, adaptive_length=True).args
    longer = converted_options(source, {"max_positions": 128})
    assert (longer["sharing"], longer["projected_length"], longer["linformer_window"]) == ("none", 8, 4)
    pooled = converted_options(source, {"projection": "split-pool"})
    assert "sharing" not in pooled and "projection_init" not in pooled
    assert (pooled["projected_length"], pooled["linformer_window"], pooled["adaptive_length"]) == (8, 4, True)
    other = converted_options(source, {"attention": "performer"})
    assert "projected_length" not in other and "linformer_window" not in other and other["attention_dropout"] == 0


@pytest.mark.parametrize(
    ("overrides", "fitted_alone"),
    [
        (["model.attention=linformer", "model.projected_length=4"], "_projection.weight"),
        (["model.attention=linear", "model.linear_feature_map=hedgehog"], ".feature_map.weight"),
    ],
)
def test_fitting_brings_every_layer_nearer_and_changes_e_and_f_alone(
    of_corpus, corpus, tmp_path, overrides, fitted_alone
):
    """Or Hedgehog's feature map."""
    plain = convert(of_corpus, tmp_path / "plain", overrides)
    fitted = convert(of_corpus, tmp_path / "fitted", overrides, fit_on=corpus)
    assert plain.errors is None and fitted.errors is not None
    record = json.loads((tmp_path / "fitted" / "conversion.json").read_text())
    assert record["errors"] == {"before": fitted.errors.before, "after": fitted.errors.after}
    assert all(after < 0.9 * before for before, after in zip(*fitted.errors, strict=True))
    before, after = (
        torch.load(tmp_path / name / UNTRAINED, weights_only=True)["model"] for name in ("plain", "fitted")
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith(fitted_alone)} != set()


def test_matrices_that_are_not_to_be_trained_can_be_fitted(of_corpus, corpus, tmp_path):
    overrides = ["model.attention=linformer", "model.projected_length=4", "model.freeze_projection=true"]
    errors = convert(of_corpus, tmp_path / "out", [*overrides, f"model.max_positions={2 * N}"], fit_on=corpus).errors
    assert sum(errors.after) < sum(errors.before)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.attention=full"], "attention=full is not known; choose from alternating, bigbird"),
        (["model.encoder_layers=3"], "only these may be other than in the source: attention, projection"),
        (["model.positions=rotary"], "only these may be other than in the source"),
        (["model.dropout=0.5"], "only these may be other than in the source"),
        (["model.windows=3"], "model.windows=3: there is no such option of the model"),
        (["attention=linformer"], "attention=linformer: give options of the model, model.NAME=VALUE"),
        (["linformer"], "linformer: give options of the model, model.NAME=VALUE"),
        (["model.attention="], "give a value"),
        (["model.max_positions=14"], "max_positions=14 is not allowed: it must be a whole number from 15 on"),
        (["model.max_positions=long"], "max_positions=long is not allowed"),
        (["model.attention=linformer", "model.projected_length=16"], "projected_length=16 is not allowed"),
        (["model.projection=mean-pool", "model.attention=linformer", "model.projected_length=4"], "a divisor of"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(source, tmp_path, overrides, said):
    with pytest.raises(UserError, match=said):
        convert(source, tmp_path / "out", overrides)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_leaves_nothing(vocabulary, tmp_path):
    """torch makes a RuntimeError of it. The weights are the largest file here."""
    source = write_pretrained(tmp_path / "run", vocabulary, attention="softmax", encoder_ffn_embed_dim=4000)
    with no_space(300_000), pytest.raises(OSError, match=rf"File too large: '{tmp_path}/out.partial/{UNTRAINED}'$"):
        convert(source, tmp_path / "out", [])
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


def test_a_record_of_what_made_it(source, tmp_path):
    lengths = ["model.attention=linformer", "model.projected_length=[5,3]", "model.local_conv=0"]
    convert(source.parent, tmp_path / "out", lengths)
    record = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert record["source"] == str(source.parent)
    assert record["digest"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert record["changes"] == {"attention": "linformer", "projected_length": [5, 3], "local_conv": 0}
    assert (record["positions"], record["fit_on"], record["errors"]) == ("tile", None, None)
    assert len(record["starts_anew"]) == len(record["left_out"]) == 4  # E and F, and the convolution, of two layers
    assert hub_of(tmp_path / "out" / UNTRAINED).model.args.projected_length == [5, 3]


def test_a_corpus_that_does_not_fit_is_refused(of_corpus, corpus, tmp_path):
    random = ["model.attention=linformer", "model.projected_length=5", "model.projection=random"]
    for kind, nothing in (
        ("projection=mean-pool", [*LINFORMER, "model.projected_length=5"]),
        ("projection=random", random),
        ("attention=linear", ["model.attention=linear"]),
    ):
        with pytest.raises(UserError, match=f"left out with {kind}, which has no E and F and no learned feature map"):
            convert(of_corpus, tmp_path / "out", nothing, fit_on=corpus)
    linear = ["model.attention=linformer", "model.projected_length=5"]
    with pytest.raises(FileNotFoundError, match=r"is no prepared corpus: it holds no dict\.txt"):
        convert(of_corpus, tmp_path / "out", linear, fit_on=tmp_path)
    with pytest.raises(UserError, match="rows of 900 tokens are too few to fit on: 201 are needed"):
        convert(of_corpus, tmp_path / "out", [*linear, "model.max_positions=900"], fit_on=corpus)
    other = tmp_path / "other"
    shutil.copytree(corpus, other)
    (other / "dict.txt").write_text("newpiece 1\n" + (other / "dict.txt").read_text())
    with pytest.raises(UserError, match="has another dictionary than the source was trained with"):
        convert(of_corpus, tmp_path / "out", linear, fit_on=other)
    assert not (tmp_path / "out").exists()


def test_what_the_command_says(of_corpus, corpus, tmp_path, capsys):
    out = tmp_path / "out"
    words = [str(of_corpus), "--out", str(out), "--fit-on", str(corpus)]
    main(["convert", *words, "model.attention=linformer", "model.local_conv=0"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "error of each layer's attention, before and after fitting:" and len(printed) == 8
    assert "starts anew: layers.*.self_attn.key_projection.weight" in printed
    assert "left out: layers.*.local_conv.conv.bias" in printed
    assert printed[-1] == f"{out / UNTRAINED}: written: attention=linformer, 15 positions"
    with pytest.raises(SystemExit, match=r"^error: .* exists and is not an empty folder"):
        main(["convert", str(of_corpus), "--out", str(out)])
    with pytest.raises(SystemExit, match=r"^error: there is no checkpoint .*none\.pt$"):
        main(["convert", str(tmp_path / "none.pt"), "--out", str(tmp_path / "new")])


@pytest.mark.slow
def test_a_converted_model_trains_on_beside_its_teacher(of_corpus, corpus, tmp_path):
    """The commands of docs/conversion.md: for longer rows, whose teacher is one for longer rows, too."""
    longer, convert_it = f"model.max_positions={2 * N}", ("linformer", "convert", of_corpus)
    run(*convert_it, "--out", "teacher", longer, cwd=tmp_path)
    run(*convert_it, "--out", "student", *LINFORMER, longer, "model.projected_length=5", cwd=tmp_path)
    words = ["fairseq-hydra-train", "--config-dir", ROOT / "configs/pretrain", "--config-name", "continue"]
    words += [f"task.data={corpus}", "checkpoint.finetune_from_model=student/checkpoint.pt", "dataset.num_workers=0"]
    words += ["common.cpu=true", "optimization.max_update=4", "lr_scheduler.warmup_updates=1", "optimization.lr=[0.01]"]
    words += ["recipe=tiny", "criterion=masked_lm_distillation", "common.log_interval=1"]
    printed = run(*words, "criterion.teacher=teacher/checkpoint.pt", "checkpoint.save_dir=on", cwd=tmp_path)
    assert "layer_error=" in printed and "divergence=" in printed and "complete: 4 updates" in printed
    trained = torch.load(tmp_path / "on/checkpoint_last.pt", weights_only=True)
    model, task = trained["cfg"]["model"], trained["cfg"]["task"]
    assert task["tokens_per_sample"] == model["max_positions"] == 2 * N
    assert (model["projection"], model["local_conv"]) == ("mean-pool", 3)
