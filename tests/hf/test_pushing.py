"""linformer export --push: what goes to the Hub, what never does, and what the user is told."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from huggingface_hub import HfApi
from huggingface_hub.errors import HTTPError

from fairseq_linformer.hf import pushing
from linformer_cli.command import main
from tests.helpers import ROOT
from tests.helpers.exports import write_pretrained

FILES = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
FILES |= {"configuration_linformer_roberta.py", "modeling_linformer_roberta.py", "fairseq/dict.txt"}
FILES |= {"fairseq/sentencepiece.bpe.model"}


class Hub:
    """The Hub: what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    def create_repo(self, name, private, exist_ok):
        self.asked.append((name, private, exist_ok))
        return Address(name if "/" in name else f"me/{name}")

    def upload_folder(self, repo_id, folder_path, allow_patterns, commit_message):
        self.asked.append((repo_id, Path(folder_path).name, {*allow_patterns}))


class Address(str):
    repo_id = property(str)


@pytest.fixture(scope="module")
def made(vocabulary, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_pretrained(folder / "run", vocabulary)
    return folder


@pytest.fixture
def hub(monkeypatch, made, tmp_path) -> Hub:
    """In the place of the real one, in a folder of its own where the run is `run`."""
    (tmp_path / "run").symlink_to(made / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_not_a_token")
    hub = Hub()
    monkeypatch.setattr(pushing, "HfApi", lambda: hub)
    return hub


def push(*words) -> None:
    main(["export", "run", "--out", "out", "--push", "me/tiny", *words])


def test_the_whole_export_goes_and_the_command_typed_again_pushes_it_again(hub, capsys):
    push()
    assert hub.asked == [("me/tiny", None, True), ("me/tiny", "out", FILES)]
    assert capsys.readouterr().out.splitlines()[-1] == "pushed: me/tiny"
    with open("out/README.md", "a") as card:
        card.write("What it is good for.\n")  # as one should
    push("--private")
    assert hub.asked[2:] == [("me/tiny", True, True), ("me/tiny", "out", FILES)]
    assert Path("out/README.md").read_text().endswith("good for.\n")


def test_a_dry_run_lists_files_and_asks_nobody(hub, monkeypatch, capsys):
    """Without token and network."""
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(pushing, "get_token", lambda: None)
    monkeypatch.setattr(pushing, "HfApi", None)
    push("--dry-run")
    said, *lines, last = capsys.readouterr().out.splitlines()
    assert said == "out: written; its model card is README.md"
    sizes = {line.split()[-1]: int(line.split()[0].replace(",", "")) for line in lines}
    assert sizes == {name: Path("out", name).stat().st_size for name in FILES}
    assert last.startswith("dry run: these 9 files would go to the Hub's model me/tiny, if it is new as a public one")
    push("--dry-run", "--private")
    assert capsys.readouterr().out.endswith("if it is new as a private repository\n")


@pytest.mark.parametrize("name", ["notes.txt", ".env", "fairseq/more.txt", ".git/config", "checkpoint_best.pt"])
def test_a_file_that_we_did_not_write_is_never_pushed(name, hub):
    main(["export", "run", "--out", "out"])
    Path("out", name).parent.mkdir(exist_ok=True)
    Path("out", name).write_text("secret")
    with pytest.raises(SystemExit, match=rf"^error: out/{name} is not of this export: nothing is pushed"):
        push()
    assert not hub.asked


def test_nor_one_that_has_changed_since_or_is_a_link(hub):
    main(["export", "run", "--out", "out"])
    code = Path("out/modeling_linformer_roberta.py")
    before = code.read_text()
    code.write_text(before + "import os\n")
    with pytest.raises(SystemExit, match=r"^error: out/modeling_linformer_roberta\.py is not what run exports: "):
        push()
    code.write_text(before)
    Path("private.txt").write_text("secret")
    Path("out/README.md").unlink()
    os.symlink("../private.txt", "out/README.md")
    with pytest.raises(SystemExit, match=r"^error: out/README\.md is missing, or a link: nothing is pushed"):
        push()
    assert not hub.asked


@pytest.mark.parametrize("name", ["a/b/c", "a b", "../x", "a--b", "x.git", "-a", "", "https://huggingface.co/a"])
def test_a_name_that_no_repository_has_is_refused_before_the_export(name, hub):
    with pytest.raises(SystemExit, match=r"^error: --push=.* is not allowed: it must be NAME or OWNER/NAME.*[^\n]$"):
        main(["export", "run", "--out", "out", f"--push={name}"])
    assert not Path("out").exists() and not hub.asked


def test_without_a_token_nothing_is_exported(hub, monkeypatch):
    monkeypatch.setattr(pushing, "get_token", lambda: None)
    with pytest.raises(SystemExit, match=r"^error: --push me/tiny: there is no token: hf auth login saves one, or "):
        push()
    assert not Path("out").exists()


def fail(error):
    def raise_it(*words, **options):
        raise error

    return SimpleNamespace(create_repo=raise_it)


@pytest.mark.parametrize(
    "api, said",
    [
        (fail(HTTPError("403 Forbidden\n\nno write access")), "403 Forbidden  no write access"),
        (fail(ConnectionError("offline mode")), "offline mode"),
        (HfApi(endpoint="http://127.0.0.1:9"), ".*refused.*"),  # as where there is no network
    ],
    ids=["refused", "offline", "no connection"],
)
def test_what_the_hub_says_is_one_line_and_the_export_stays(api, said, hub, monkeypatch):
    monkeypatch.setattr(pushing, "HfApi", lambda: api)
    again = "; out is whole, and the same command tries again"
    with pytest.raises(SystemExit, match=rf"^error: --push me/tiny: {said}{again}$"):
        push()
    assert {path.relative_to("out").as_posix() for path in Path("out").rglob("*") if path.is_file()} == FILES


@pytest.mark.parametrize("words", [["--dry-run"], ["--private"]])
def test_options_of_push_alone_are_refused_without_it(words, capsys):
    with pytest.raises(SystemExit):
        main(["export", "run", "--out", "out", *words])
    assert "--private and --dry-run go with --push" in capsys.readouterr().err


@pytest.mark.slow
def test_without_the_package_one_line_says_what_to_install(made):
    program = "import sys; sys.modules['huggingface_hub'] = None\n"
    program += "from linformer_cli.command import main; main()"
    words = [sys.executable, "-c", program, "export", "run", "--out", "out", "--push", "me/tiny"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=made, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'fairseq-linformer[hf]'" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("error: transformers is needed")
