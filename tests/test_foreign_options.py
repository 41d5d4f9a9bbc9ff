"""References in untrusted files, such as ${oc.env:SECRET}, are never resolved."""

import contextlib
import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.checkpoint import read_checkpoint, read_progress
from fairseq_linformer.cli.command import main
from fairseq_linformer.errors import UserError
from tests.helpers.exports import write_pretrained

SECRET = "not-to-be-seen-2f81c"
REFERENCE = "${oc.env:LINFORMER_SECRET}"
REJECTED = r"\$\{.*is not allowed"


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("LINFORMER_SECRET", SECRET)


def attacked(checkpoint: Path, name: str = "model.activation_fn", value=REFERENCE) -> Path:
    """Replace the value of an option in the file of a checkpoint."""
    state = torch.load(checkpoint, weights_only=True)
    *groups, last = name.split(".")
    options = state["cfg"]
    for group in groups:
        options = options[group]
    options[last] = value
    torch.save(state, checkpoint)
    return checkpoint


OPTIONS = {
    "a string option": ("model.activation_fn", REFERENCE),
    "a path": ("task.data", f"/data/{REFERENCE}"),
    "a list": ("optimization.lr", [REFERENCE]),
    "a nested option": ("common.more", {"deep": [{"er": REFERENCE}]}),
    "decoded": ("model.dropout", "${oc.decode:${oc.env:LINFORMER_SECRET}}"),
    "built at run time": ("model.sharing", "${model.mark}{oc.env:LINFORMER_SECRET}"),
    "a namespace": ("model", Namespace(_name="linformer_roberta", activation_fn=REFERENCE)),
}


@pytest.mark.parametrize("name, value", OPTIONS.values(), ids=OPTIONS)
def test_no_reference_in_a_checkpoint_is_resolved(name, value, vocabulary, tmp_path):
    checkpoint = attacked(write_pretrained(tmp_path / "run", vocabulary), name, value)
    state = torch.load(checkpoint, weights_only=True)
    torch.save(state, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    for path in (checkpoint, tmp_path / "old.bin"):
        for read in (read_checkpoint, read_progress, LinformerRobertaModel.load):
            with pytest.raises(UserError, match=REJECTED):
                read(path)


def test_no_reference_in_the_arguments_of_an_earlier_fairseq_is_resolved(vocabulary, tmp_path):
    """fairseq composes a configuration from them, which would resolve references."""
    checkpoint = write_pretrained(tmp_path / "run", vocabulary)
    state = torch.load(checkpoint, weights_only=True)
    arguments = Namespace(arch="roberta_base", task="masked_lm", data=REFERENCE, criterion="masked_lm")
    torch.save({**state, "cfg": None, "args": arguments}, checkpoint)
    with pytest.raises(UserError, match=REJECTED):
        read_checkpoint(checkpoint)


def test_no_reference_in_a_folder_of_transformers_is_resolved(vocabulary, tmp_path, capfd):
    pytest.importorskip("transformers", reason="transformers is not installed")
    main(["export", str(write_pretrained(tmp_path / "run", vocabulary)), "--out", str(tmp_path / "exported")])
    file = tmp_path / "exported" / "config.json"
    content = json.loads(file.read_text())
    for name in ("sharing", "more"):
        file.write_text(json.dumps({**content, name: [REFERENCE]}))
        for verb in ("import", "convert"):
            with pytest.raises(SystemExit, match=REJECTED):
                main([verb, str(tmp_path / "exported"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists() and SECRET not in "".join(capfd.readouterr())


EVIL = "from pathlib import Path\nPath({mark!r}).touch()\nclass {name}: pass\n"


def test_the_code_in_a_folder_of_transformers_is_never_run(tmp_path, monkeypatch):
    """Not even if the user answers yes: transformers asks on standard input."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    from tests.helpers.stock import write_stock

    source, mark = tmp_path / "source", tmp_path / "was-run"
    write_stock(source)
    names = ("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoTokenizer")
    code = "".join(EVIL.format(mark=str(mark), name=f"Evil{name}") for name in names)
    (source / "evil.py").write_text(code)
    mapped = {name: f"evil.Evil{name}" for name in names[:-1]} | {names[-1]: ["evil.EvilAutoTokenizer", None]}
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((source / name).read_text())
        if name == "tokenizer_config.json":
            content["tokenizer_class"] = "Evil"
        (source / name).write_text(json.dumps({**content, "auto_map": mapped}))
    monkeypatch.setattr("builtins.input", lambda *prompt: "y")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    for verb in ("import", "convert"):
        with contextlib.suppress(SystemExit):  # transformers may have a class of that name
            main([verb, str(source), "--out", str(tmp_path / verb)])
        assert not mark.exists()
