"""Options from someone else's file: what refers to this machine, ${oc.env:SECRET} say, is never looked up."""

import contextlib
import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.checkpoint import read_checkpoint, read_progress
from fairseq_linformer.checkpoint_files import LAST
from fairseq_linformer.cli.command import main
from fairseq_linformer.errors import UserError
from fairseq_linformer.training.distillation import MaskedLmDistillation, MaskedLmDistillationConfig
from fairseq_linformer.training.options import adopt_model_options
from tests.helpers.exports import write_pretrained

SECRET = "not-to-be-seen-2f81c"
REFERENCE = "${oc.env:LINFORMER_SECRET}"
REFUSED = r"\$\{.*is not allowed"


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("LINFORMER_SECRET", SECRET)


def attacked(checkpoint: Path, name: str = "model.activation_fn", value=REFERENCE) -> Path:
    """The checkpoint with another value of an option in its file."""
    state = torch.load(checkpoint, weights_only=True)
    *groups, last = name.split(".")
    place = state["cfg"]
    for group in groups:
        place = place[group]
    place[last] = value
    torch.save(state, checkpoint)
    return checkpoint


PLACES = {
    "a string option": ("model.activation_fn", REFERENCE),
    "a path": ("task.data", f"/data/{REFERENCE}"),
    "a list": ("optimization.lr", [REFERENCE]),
    "a nested option": ("common.more", {"deep": [{"er": REFERENCE}]}),
    "decoded": ("model.dropout", "${oc.decode:${oc.env:LINFORMER_SECRET}}"),
    "built at run time": ("model.sharing", "${model.mark}{oc.env:LINFORMER_SECRET}"),
    "a namespace": ("model", Namespace(_name="linformer_roberta", activation_fn=REFERENCE)),
}


@pytest.mark.parametrize("name, value", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("form", ["a.bin", "old.pt"])
def test_no_reference_in_a_checkpoint_is_looked_up(name, value, form, vocabulary, tmp_path):
    """Wherever it stands, and whatever the file is called and was written by."""
    checkpoint = attacked(write_pretrained(tmp_path / "run", vocabulary), name, value).rename(tmp_path / form)
    if form == "old.pt":
        state = torch.load(checkpoint, weights_only=True)
        torch.save(state, checkpoint, _use_new_zipfile_serialization=False)
    for read in (read_checkpoint, read_progress):
        with pytest.raises(UserError, match=REFUSED):
            read(checkpoint)


def test_nor_one_in_the_arguments_of_an_earlier_fairseq(vocabulary, tmp_path):
    """fairseq composes a configuration of them, which looks references up."""
    checkpoint = write_pretrained(tmp_path / "run", vocabulary)
    state = torch.load(checkpoint, weights_only=True)
    arguments = Namespace(arch="roberta_base", task="masked_lm", data=REFERENCE, criterion="masked_lm")
    torch.save({**state, "cfg": None, "args": arguments}, checkpoint)
    with pytest.raises(UserError, match=REFUSED):
        read_checkpoint(checkpoint)


def test_no_model_is_loaded_or_taken_as_a_teacher_or_a_start_with_one(vocabulary, tmp_path):
    checkpoint = attacked(write_pretrained(tmp_path / "run", vocabulary))
    with pytest.raises(UserError, match=REFUSED):
        LinformerRobertaModel.from_pretrained(str(checkpoint.parent), checkpoint.name)
    cfg = OmegaConf.create({"model": {"projected_length": None}})
    cfg.checkpoint = {"finetune_from_model": str(checkpoint), "restore_file": LAST, "save_dir": str(tmp_path)}
    with pytest.raises(UserError, match=REFUSED):
        adopt_model_options(cfg)
    criterion = MaskedLmDistillation.__new__(MaskedLmDistillation)
    torch.nn.Module.__init__(criterion)
    criterion.cfg = MaskedLmDistillationConfig(teacher=str(checkpoint))
    with pytest.raises(UserError, match=REFUSED):
        _ = criterion.teacher


@pytest.mark.parametrize("name", ["sharing", "activation_fn", "more"])
def test_a_folder_of_transformers_has_none_either(name, vocabulary, tmp_path, capfd):
    pytest.importorskip("transformers", reason="transformers is not installed")
    main(["export", str(write_pretrained(tmp_path / "run", vocabulary)), "--out", str(tmp_path / "exported")])
    file = tmp_path / "exported" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: [REFERENCE]}))
    for verb in ("import", "convert"):
        with pytest.raises(SystemExit, match=REFUSED):
            main([verb, str(tmp_path / "exported"), "--out", str(tmp_path / "out")])
        assert not (tmp_path / "out").exists()
    assert SECRET not in "".join(capfd.readouterr())


EVIL = "from pathlib import Path\nPath({mark!r}).touch()\nclass {name}: pass\n"


@pytest.mark.parametrize("stock", [False, True], ids=["ours", "stock"])
def test_the_code_in_a_folder_of_transformers_is_never_run(stock, vocabulary, tmp_path, monkeypatch):
    """Not even where someone would answer yes: transformers asks on standard input."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    from tests.helpers.stock import write_stock

    source, mark = tmp_path / "source", tmp_path / "was-run"
    if stock:
        write_stock(source)
    else:
        main(["export", str(write_pretrained(tmp_path / "run", vocabulary)), "--out", str(source)])
        (source / "fairseq").rename(tmp_path / "fairseq")
    names = ("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoTokenizer")
    code = "".join(EVIL.format(mark=str(mark), name=f"Evil{name}") for name in names)
    (source / "evil.py").write_text(code)
    mapped = {name: f"evil.Evil{name}" for name in names[:-1]} | {names[-1]: ["evil.EvilAutoTokenizer", None]}
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((source / name).read_text())
        if name == "tokenizer_config.json":
            content["tokenizer_class"] = "Evil"
        (source / name).write_text(json.dumps({**content, "auto_map": mapped}))
    monkeypatch.setattr("builtins.input", lambda *said: "y")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    for verb in ("import", "convert"):
        with contextlib.suppress(SystemExit):  # with an error, or not: transformers may have a class of that name
            main([verb, str(source), "--out", str(tmp_path / verb)])
        assert not mark.exists()
    if not stock:  # what export wrote still comes back
        (tmp_path / "fairseq").rename(source / "fairseq")
        main(["import", str(source), "--out", str(tmp_path / "back")])
        assert not mark.exists()
