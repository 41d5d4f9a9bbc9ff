"""Export to ONNX: any batch size and length, every mechanism, and rejection of wrong results."""

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
        "encoder_layers": 2,  # as near_and_far
        "projection": "split-pool",
        "sharing": "key-value",
        "linformer_window": 4,
        "linformer_block": 2,
        "linformer_sinks": 1,
        "linformer_class_token": True,
        "value_residual": True,
    },
    hf.LinformerRobertaForTokenClassification: {"projection": "max-pool", "adaptive_length": True, "gated_ffn": True},
}
CHANGES = {
    "longformer": {"longformer_global_tokens": 3},  # more than the shortest texts have
    "reformer": {"reformer_hashes": 1, "reformer_local": True},  # each round takes as long to export as the first
}


def options_of(name):
    mechanism = ATTENTIONS[name]
    options = {**mechanism.Options.TEST_CASES[0], **CHANGES.get(name, {})}
    return {"attention": name, "attention_dropout": 0.1 * mechanism.HAS_WEIGHTS, **options}


MECHANISMS = [options_of(name) for name in ATTENTIONS if name != "linformer"]
RELATIVE = [name for name, kind in ATTENTIONS.items() if kind.RELATIVE_POSITIONS and name != "linformer"]
MECHANISMS += [{**options_of(name), "positions": "rotary", "rotary_share": 0.5} for name in RELATIVE]
MECHANISMS += [{**options_of(name), "positions": "alibi"} for name in RELATIVE]


def small(kind=hf.LinformerRobertaForMaskedLM, **options):
    """Return a model with weights large enough that attention is far from uniform."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "max_positions": N, "encoder_layers": 1, "initializer_range": 0.3, **SIZES}
    return kind(hf.LinformerRobertaConfig(**{**sizes, **options})).eval()


def roberta(kind="RobertaForMaskedLM"):
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 24}
    config = transformers.RobertaConfig(vocab_size=40, max_position_embeddings=N + 2, initializer_range=0.3, **sizes)
    return getattr(transformers, kind)(config).eval()


def assert_agrees(model, path):
    """Compare results at sizes that the export itself does not compare, and for a sequence of one token."""
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
    """Session with the results of PyTorch except for one token of the longest sequences."""

    def __init__(self, model, error):
        self.model, self.error = model, error

    def run(self, _, inputs):
        batch = tuple(torch.from_numpy(inputs[name]) for name in onnx.INPUTS)
        out = onnx.run_model(self.model, batch).clone()
        if batch[0].size(1) == N:
            out[-1, 0] += self.error
        return [out.numpy()]


@pytest.mark.parametrize("error", [1e-2, float("nan")])
def test_a_graph_with_other_results_is_rejected_and_the_old_file_stays(tmp_path, monkeypatch, error):
    model, path = small(sharing="headwise"), tmp_path / "model.onnx"
    path.write_text("old")
    monkeypatch.setattr(onnx, "_write", lambda model, path: path.write_text("new"))
    monkeypatch.setattr(onnx, "open_session", lambda path: WrongSession(model, error))
    with pytest.raises(UserError, match=f"attention=linformer .* for 1 x {N} tokens"):
        onnx.export_onnx(model, path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"model.onnx": "old"}
    monkeypatch.setattr(onnx, "open_session", lambda path: WrongSession(model, 1e-6))
    monkeypatch.setattr(onnx, "_write", lambda model, path: [path.write_text("new"), write_data(path)])
    onnx.export_onnx(model, path)
    files = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert files == {"model.onnx": "new", "model.onnx.data": "weights"}


def write_data(path):
    path.with_name(f"{path.name}.data").write_text("weights")


def test_models_that_cannot_be_exported_are_rejected(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="bfloat16"):
        onnx.export_onnx(small().bfloat16(), tmp_path / "model.onnx")
    with pytest.raises(UserError, match="is a folder"):
        onnx.export_onnx(small(), tmp_path)

    def fail(*_, **__):
        raise RuntimeError("failed in step 3 of 3") from RuntimeError("no such operator\nand much more")

    monkeypatch.setattr(torch.export, "export", fail)
    with pytest.raises(UserError, match=r"attention=reformer .*: no such operator$"):
        onnx.export_onnx(small(**options_of("reformer")), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model_type": "bert", "architectures": ["BertModel"]}, "model_type=bert"),
        ({"model_type": "roberta"}, "architectures=None"),
        ({"model_type": "linformer_roberta", "architectures": ["RobertaModel"]}, "architectures=RobertaModel"),
    ],
)
def test_other_folders_are_rejected(tmp_path, config, name):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=name):
        load(tmp_path)


@pytest.mark.parametrize("model", [small(hf.LinformerRobertaModel), roberta("RobertaForSequenceClassification")])
def test_a_saved_model_is_loaded_in_its_class(tmp_path, model):
    model.bfloat16().save_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert type(loaded) is type(model) and loaded.dtype == torch.float32 and not loaded.training
    batch = onnx.random_batch(model.config, 2, 5)
    torch.testing.assert_close(onnx.run_model(loaded, batch), onnx.run_model(model.float(), batch))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "options"), [*HEADS.items(), *((hf.LinformerRobertaModel, options) for options in MECHANISMS)], ids=str
)
def test_every_head_and_mechanism_exports(tmp_path, kind, options):
    model, path = small(kind, **options), tmp_path / "model.onnx"
    onnx.export_onnx(model, path)
    assert_agrees(model, path)


@pytest.mark.exhaustive
def test_the_command_writes_a_file_with_the_names_of_optimum(tmp_path, vocabulary, capsys):
    """For a folder of transformers, and for a checkpoint."""
    model, path = roberta(), tmp_path / "model.onnx"
    model.save_pretrained(tmp_path / "model")
    main(["export", str(tmp_path / "model"), "--format", "onnx", "--out", str(path)])
    assert f"{path}: 0." in capsys.readouterr().out
    session = onnx.open_session(path)
    axes = ["batch_size", "sequence_length"]
    assert [(tensor.name, tensor.shape) for tensor in session.get_inputs()] == [(name, axes) for name in onnx.INPUTS]
    assert [(tensor.name, tensor.shape) for tensor in session.get_outputs()] == [("logits", [*axes, 40])]
    content = path.read_bytes()
    assert str(tmp_path.parent).encode() not in content and b"site-packages" not in content, "paths of this machine"
    assert_agrees(model, path)
    with pytest.raises(SystemExit, match="--data="):
        main(["export", str(tmp_path / "model"), "--format", "onnx", "--out", str(path), "--data", str(tmp_path)])
    with pytest.raises(Exception, match="out of data bounds"):  # of onnxruntime: the text is too long
        onnx.run_session(session, onnx.random_batch(model.config, 1, N + 1))
    checkpoint = write_pretrained(tmp_path / "run", vocabulary)
    before = set(tmp_path.rglob("*"))
    main(["export", str(checkpoint.parent), "--format", "onnx", "--out", str(path)])
    assert set(tmp_path.rglob("*")) == before
    main(["export", str(checkpoint), "--out", str(tmp_path / "exported")])
    assert_agrees(load(tmp_path / "exported"), path)
