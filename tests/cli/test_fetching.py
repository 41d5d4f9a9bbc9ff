"""Names on the Hub: fetched without code, once there is nothing of that name here; else one line says what to do."""

import subprocess
import sys
from fnmatch import fnmatch

import pytest

from fairseq_linformer.checkpoints.reading import UNTRAINED, read_checkpoint
from fairseq_linformer.checkpoints.task_state import read_task_state
from fairseq_linformer.cli.fetching import FILES
from linformer_cli.command import main
from tests.helpers import ROOT

pytest.importorskip("transformers", reason="transformers is not installed")

from tests.helpers.stock import write_stock

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """A Hub that has every name; what it was asked for."""
    calls = []

    def fetch(name, **options):
        calls.append((name, options))
        write_stock(tmp_path / "cache")
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.chdir(tmp_path)
    return calls


@pytest.mark.parametrize("name", ["roberta-base", "FacebookAI/roberta-base"])
@pytest.mark.parametrize("verb", ["import", "convert"])
def test_a_name_on_the_hub_is_fetched(asked, tmp_path, verb, name):
    """The pages' own commands said: there is no checkpoint roberta-base."""
    main([verb, name, "--out", "out"])
    assert (tmp_path / "out" / UNTRAINED).is_file()
    assert asked == [(name, {"allow_patterns": list(FILES)})]


def test_the_card_names_the_model_not_the_folder_that_it_was_fetched_to(asked, tmp_path):
    main(["convert", "FacebookAI/roberta-base", "--out", "out"])
    (origin,) = read_task_state(read_checkpoint(tmp_path / "out" / UNTRAINED)["task_state"])["converted_from"]
    assert origin["source"] == "FacebookAI/roberta-base"


def test_only_what_is_no_code_is_fetched():
    for name in (
        "config.json",
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "vocab.json",
        "added_tokens.json",
        "sentencepiece.bpe.model",  # the one vocabulary of older CamemBERTs and XLM-Rs
        "spiece.model",
        "tokenizer.model",
        "0_T/model.safetensors",
    ):
        assert any(fnmatch(name, pattern) for pattern in FILES), name
    for name in ("modeling.py", "pytorch_model.bin", "rust_model.ot", "x/model.safetensors", "onnx/model.onnx"):
        assert not any(fnmatch(name, pattern) for pattern in FILES), name


@pytest.mark.parametrize(
    "name", ["/no/such", "../there", "run/checkpoint_best.pt", "checkpoint.pt", "runs/missing", "a/b/c"]
)
@pytest.mark.parametrize("verb", ["import", "convert"])
def test_a_path_that_is_no_name_is_not_asked_for(asked, tmp_path, verb, name):
    (tmp_path / "runs").mkdir()
    with pytest.raises(SystemExit, match=r"^error: .*(there is no checkpoint|is no folder of a model)"):
        main([verb, name, "--out", "out"])
    assert not asked


def test_a_folder_of_that_name_is_taken(asked, tmp_path):
    write_stock(tmp_path / "roberta-base")
    main(["import", "roberta-base", "--out", "out"])
    assert not asked


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        SystemExit, match=r"^error: there is no file or folder roberta-base, .* pip install huggingface_hub$"
    ):
        main(["convert", "roberta-base", "--out", "out"])


@pytest.mark.slow
def test_without_a_network_one_line_says_how_to_get_it(tmp_path):
    """The real package, and an address at which nothing listens."""
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/clone.py", "convert", "roberta-base", "--out", "out"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()
    assert done.returncode == 1 and len(last) == 1, done.stderr
    assert last[0].startswith("error: there is no file or folder roberta-base, and the model of that name could not")
    assert last[0].endswith("hf download roberta-base --local-dir roberta-base; then name that folder")
