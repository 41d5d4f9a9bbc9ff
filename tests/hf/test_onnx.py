"""Models as ONNX files: any batch and length, every mechanism, and nothing written that is not right."""

import json

import pytest
import torch

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.cli.command import main
from fairseq_linformer.cli.export import load
from fairseq_linformer.errors import UserError
from tests.helpers.exports import write_pretrained

transformers = pytest.importorskip("transformers")
for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)
hf = pytest.importorskip("fairseq_linformer.hf")
onnx = pytest.importorskip("fairseq_linformer.hf.onnx")

N = 16
SIZES = {"encoder_embed_dim": 12, "encoder_ffn_embed_dim": 24, "encoder_attention_heads": 3, "projected_length": 4}
HEADS = {
    hf.LinformerRobertaForMaskedLM: {"encoder_layers": 2, "sharing": "layerwise", "local_conv": 3},
    hf.LinformerRobertaForSequenceClassification: {
        "encoder_layers": 2,  # near_and_far, and how it is fine-tuned
        "projection": "split-pool",
        "sharing": "key-value",
        "linformer_window": 4,
        "linformer_block": 2,
        "linformer_sinks": 1,
        "linformer_fetch": 2,
        "linformer_class_token": True,
        "value_residual": True,
    },
    hf.LinformerRobertaForTokenClassification: {"projection": "max-pool", "adaptive_length": True, "gated_ffn": True},
}
OTHERWISE = {
    "longformer": {"longformer_global_tokens": 3},  # more than the shortest texts have
    "reformer": {"reformer_hashes": 1},  # each takes as long to export as the first
}


def options_of(name):
    mechanism = ATTENTIONS[name]
    own = mechanism.Options.TEST_CASES[0]
    return {"attention": name, "attention_dropout": 0.1 * mechanism.HAS_WEIGHTS, **own, **OTHERWISE.get(name, {})}


MECHANISMS = [options_of(name) for name in ATTENTIONS if name != "linformer"]
MECHANISMS += [
    {**options_of(name), "positions": positions, "rotary_share": 0.5}
    for name, kind in ATTENTIONS.items()
    if kind.RELATIVE_POSITIONS and name != "linformer"
    for positions in ("rotary", "alibi")
]


def small(kind=hf.LinformerRobertaForMaskedLM, **options):
    """A model with weights large enough that attention is far from uniform."""
    torch.manual_seed(0)
    given = {"vocab_size": 40, "max_positions": N, "encoder_layers": 1, "initializer_range": 0.3, **SIZES, **options}
    return kind(hf.LinformerRobertaConfig(**given)).eval()


def roberta(kind="RobertaForMaskedLM"):
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 24}
    config = transformers.RobertaConfig(vocab_size=40, max_position_embeddings=N + 2, initializer_range=0.3, **sizes)
    return getattr(transformers, kind)(config).eval()


def assert_agrees(model, path):
    """At sizes that the export itself does not look at, and with a row of one token."""
    session = onnx.open_session(path)
    for rows, length in ((5, 7), (2, N - 1), (4, 3)):
        ids, mask = onnx.random_batch(model.config, rows, length)
        mask[1, 1:] = 0
        batch = ids.masked_fill(mask == 0, model.config.pad_token_id), mask
        out, expected = onnx.run_session(session, batch), onnx.run_model(model, batch)
        assert out.shape == expected.shape
        real = mask.bool() if out.dim() == 3 else slice(None)
        torch.testing.assert_close(out[real], expected[real], atol=1e-5, rtol=1e-4)


class WrongSession:
    """What gives a model's own results, but for one token of the longest texts."""

    def __init__(self, model, error):
        self.model, self.error = model, error

    def run(self, _, inputs):
        batch = tuple(torch.from_numpy(inputs[name]) for name in onnx.INPUTS)
        out = onnx.run_model(self.model, batch).clone()
        if batch[0].size(1) == N:
            out[-1, 0] += self.error
        return [out.numpy()]


@pytest.mark.parametrize("error", [1e-2, float("nan")])
def test_a_graph_with_other_results_is_refused_and_leaves_the_old_file(tmp_path, monkeypatch, error):
    model, path = small(sharing="headwise"), tmp_path / "model.onnx"
    path.write_text("old")
    monkeypatch.setattr(onnx, "_write", lambda model, path: path.write_text("new"))
    monkeypatch.setattr(onnx, "open_session", lambda path: WrongSession(model, error))
    named = "attention=linformer, projection=linear, sharing=headwise cannot be exported to ONNX"
    with pytest.raises(UserError, match=f"{named}: for 1 x {N} tokens onnxruntime's results differ"):
        onnx.export_onnx(model, path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"model.onnx": "old"}
    monkeypatch.setattr(onnx, "open_session", lambda path: WrongSession(model, 1e-6))
    onnx.export_onnx(model, path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"model.onnx": "new"}


def test_weights_beside_the_file_are_moved_with_it(tmp_path, monkeypatch):
    def write(model, path):
        path.write_text("graph")
        path.with_name(f"{path.name}.data").write_text("weights")

    monkeypatch.setattr(onnx, "_write", write)
    monkeypatch.setattr(onnx, "_compare", lambda model, path: None)
    onnx.export_onnx(small(), tmp_path / "m.onnx")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"m.onnx": "graph", "m.onnx.data": "weights"}


def test_what_stops_the_exporter_names_the_attention(tmp_path, monkeypatch):
    def fail(*_, **__):
        try:
            raise RuntimeError("no such operator\nand much more")
        except RuntimeError as error:
            raise RuntimeError("failed in step 3 of 3") from error

    monkeypatch.setattr(torch.export, "export", fail)
    with pytest.raises(UserError, match=r"attention=reformer, .*hashes=1 cannot .* ONNX: no such operator$"):
        onnx.export_onnx(small(**options_of("reformer")), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_compared_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"model=torch.bfloat16 on cpu .* must be torch.float32 on cpu"):
        onnx.export_onnx(small().bfloat16(), tmp_path / "model.onnx")
    with pytest.raises(UserError, match="is a folder: name a file"):
        onnx.export_onnx(small(), tmp_path)


def test_batches_fit_the_model():
    for model in (small(), roberta()):
        n = onnx.longest_input(model.config)
        assert n == N
        ids, mask = onnx.random_batch(model.config, 3, n - 1, padded=True)
        assert mask.sum(1).tolist() == [8, 15, 15] and ids.eq(1).equal(mask.eq(0)) and int(ids.max()) < 40
        assert onnx.run_model(model, onnx.random_batch(model.config, 1, n)).shape == (1, n, 40)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "bert", "architectures": ["BertModel"]}, "model_type=bert is not .* linformer_roberta, rob"),
        ({"model_type": "roberta"}, "architectures=None is not allowed: it must be one of RobertaModel, RobertaForM"),
        ({"model_type": "linformer_roberta", "architectures": ["RobertaModel"]}, "one of LinformerRobertaModel"),
    ],
)
def test_other_folders_are_refused(tmp_path, config, message):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("model", [small(hf.LinformerRobertaModel), roberta("RobertaForSequenceClassification")])
def test_a_saved_model_is_loaded_as_what_it_is(tmp_path, model):
    model.bfloat16().save_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert type(loaded) is type(model) and loaded.dtype == torch.float32 and not loaded.training
    batch = onnx.random_batch(model.config, 2, 5)
    torch.testing.assert_close(onnx.run_model(loaded, batch), onnx.run_model(model.float(), batch))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "options"), HEADS.items(), ids=str)
def test_every_head_exports(tmp_path, kind, options):
    model, path = small(kind, **options), tmp_path / "model.onnx"
    onnx.export_onnx(model, path)
    assert_agrees(model, path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", MECHANISMS, ids=str)
def test_every_mechanism_exports(tmp_path, options):
    model, path = small(hf.LinformerRobertaModel, **options), tmp_path / "model.onnx"
    onnx.export_onnx(model, path)
    assert_agrees(model, path)


@pytest.mark.exhaustive
def test_the_command_writes_a_file_with_the_names_of_optimum(tmp_path, capsys):
    model, path = roberta(), tmp_path / "model.onnx"
    model.save_pretrained(tmp_path / "model")
    main(["export", str(tmp_path / "model"), "--format", "onnx", "--out", str(path)])
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2].startswith(f"{path}: 0.") and printed[-2].endswith(" MB")
    assert printed[-1].startswith(f"one row of {N} tokens, {torch.get_num_threads()} thread(s), median of 20: onnxrunt")
    session = onnx.open_session(path)
    axes = ["batch_size", "sequence_length"]
    assert [(own.name, own.shape) for own in session.get_inputs()] == [(name, axes) for name in onnx.INPUTS]
    assert [(own.name, own.shape) for own in session.get_outputs()] == [("logits", [*axes, 40])]
    assert str(tmp_path.parent) not in path.read_bytes().decode("latin-1")
    assert b"site-packages" not in path.read_bytes()  # nor anything else of the machine that wrote it
    assert_agrees(model, path)
    with pytest.raises(SystemExit, match=r"--data=.* must be left out with a folder of transformers"):
        main(["export", str(tmp_path / "model"), "--format", "onnx", "--out", str(path), "--data", str(tmp_path)])
    with pytest.raises(Exception, match="out of data bounds"):  # of onnxruntime: texts that are too long
        onnx.run_session(session, onnx.random_batch(model.config, 1, N + 1))


@pytest.mark.exhaustive
def test_the_command_takes_a_checkpoint_as_well(tmp_path, vocabulary):
    """By way of a folder of transformers, of which nothing stays."""
    checkpoint, path = write_pretrained(tmp_path / "run", vocabulary), tmp_path / "model.onnx"
    before = set(tmp_path.rglob("*"))
    for model in (checkpoint, checkpoint.parent):
        main(["export", str(model), "--format", "onnx", "--out", str(path)])
    assert set(tmp_path.rglob("*")) == {*before, path}
    main(["export", str(checkpoint), "--out", str(tmp_path / "exported")])
    assert_agrees(load(tmp_path / "exported"), path)
    with pytest.raises(SystemExit, match=rf"^error: there is no checkpoint {tmp_path}/none"):
        main(["export", str(tmp_path / "none"), "--format", "onnx", "--out", str(path)])
