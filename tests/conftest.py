"""Fixtures that several test files share."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.helpers.commands import run
from tests.helpers.inputs import sentences, write_sst_2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need the prepared corpus as slow, and sort the files by their number of slow tests.

    The corpus starts a process. A long file that began last would leave the other workers idle.
    """
    for item in items:
        if "corpus" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
    slow = Counter(item.path for item in items if "slow" in item.keywords)
    items.sort(key=lambda item: -slow[item.path])


def pytest_sessionstart() -> None:
    """Let signals reach what the tests start.

    A job in the background ignores Ctrl-C, one of nohup SIGHUP, and so would its children.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real texts that LINFORMER_DATA names (default ../shared/data beside the checkout)."""
    folder = Path(os.environ.get("LINFORMER_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "books" / "valid.txt.xz").is_file():
        pytest.skip(f"no real data: {folder} holds no books/valid.txt.xz (LINFORMER_DATA names another folder)")
    return folder


@pytest.fixture
def figures(monkeypatch) -> list:
    """The figures that are saved, in their order; no file is written."""
    from matplotlib.figure import Figure  # here: most tests draw nothing

    saved: list = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *arguments, **options: saved.append(figure))
    return saved


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A small corpus, prepared by the command that users type."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "train.txt").write_text(sentences(600, seed=1))
    (folder / "valid.txt").write_text(sentences(60, seed=2))
    files = ("--train", "train.txt", "--valid", "valid.txt", "--out", "data", "--vocab-size", 286, "--workers", 1)
    run("linformer", "prepare", "corpus", *files, cwd=folder)
    return folder / "data"


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory) -> Path:
    """A folder of a small subword model and its dictionary, for checkpoints that no training wrote."""
    from tests.helpers.exports import write_vocabulary  # here: most tests need no model

    return write_vocabulary(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="session")
def classification(corpus, tmp_path_factory) -> Path:
    """The SST-2 of ``write_sst_2``, prepared by the command that users type, with the corpus's vocabulary."""
    folder = tmp_path_factory.mktemp("task")
    write_sst_2(folder / "glue")
    words = ("--source", "glue", "--tasks", "SST-2", "--tokenizer", corpus, "--out", "o")
    run("linformer", "prepare", "glue", *words, cwd=folder)
    return folder / "o" / "SST-2"
