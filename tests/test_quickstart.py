"""make quickstart's script, with few updates: from nothing, again, and on the user's own text."""

import math
import os

import nbformat
import pytest
import quickstart
from fairseq.data import data_utils
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from nbclient import NotebookClient

from tests.helpers import ROOT
from tests.helpers.commands import run
from tests.helpers.inputs import sentences

OF_LESS_TEXT = """
from functools import partial
from pathlib import Path
import quickstart

if __name__ == "__main__":
    quickstart.collect_docstrings = partial(quickstart.collect_docstrings, package_bytes=300_000)
    quickstart.VALID_BYTES = 30_000
    quickstart.quickstart([], Path("q"), vocab_size=2000, updates=2, fine_tuning_updates=2, seeds=[1])
"""


@pytest.mark.exhaustive
def test_on_the_documentation_of_this_python(tmp_path):
    """Train on a fifth of it, validate on a tenth: reading all takes longer than the remaining steps."""
    (tmp_path / "less.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT / 'scripts')!r})\n{OF_LESS_TEXT}")
    output = run(tmp_path / "less.py", cwd=tmp_path)
    for label in ("before pretraining", "token frequencies", "after pretraining", "majority class", "TF-IDF + SVM"):
        assert label in output
    assert "pretrained  " in output and "random weights" in output and output.count("  ->  ") == 3
    assert (tmp_path / "q/losses.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_on_own_text(tmp_path):
    (tmp_path / "own.txt").write_text(sentences(3000, seed=3))
    command = ("scripts/quickstart.py", "--corpus", "own.txt", "--vocab-size", 286, "--updates", 2)
    output, again = run(*command, cwd=tmp_path), run(*command, cwd=tmp_path)
    results = [text[text.index("before pretraining") :].split("\ntext, data")[0] for text in (output, again)]
    assert _without_progress(results[0]) == _without_progress(results[1]), "what is done is not done again"
    assert "after pretraining" in output and "majority class" not in output
    assert (tmp_path / "quickstart/losses.png").is_file()


def _without_progress(text):
    return [line for line in text.splitlines() if line.startswith("  ") or "->" in line]


@pytest.mark.exhaustive
def test_the_notebook(tmp_path):
    notebook = nbformat.read(ROOT / "docs/quickstart.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the checkout has none"
    (parameters,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    (tmp_path / "own.txt").write_text(sentences(400, seed=3))
    parameters.source += f"\nCORPUS, OUT = [Path({str(tmp_path)!r}) / 'own.txt'], Path({str(tmp_path)!r}) / 'q'"
    parameters.source += "\nVOCAB_SIZE, UPDATES, FINE_TUNING_UPDATES, SEEDS = 286, 2, 2, [1]"
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": ROOT / "docs"}}).execute()
    *_, filled, features, _ = notebook.cells
    printed = "".join(output.get("text", "") for output in filled.outputs).splitlines()
    assert 0 < len(printed) <= 5, "fairseq leaves out special tokens, which a model of two updates may predict"
    assert all("Return a new" in line for line in printed)
    assert features.outputs[-1].data["text/plain"].startswith("torch.Size([1, ")


def test_unigram_perplexity_is_that_of_smoothed_frequencies(corpus):
    task = MaskedLMTask.setup_task(MaskedLMConfig(data=str(corpus), tokens_per_sample=32))
    train, valid = (
        [token for item in data_utils.load_indexed_dataset(str(corpus / split)) for token in item.tolist()]
        for split in ("train", "valid")
    )
    size = len(task.source_dictionary)
    losses = [-math.log((train.count(token) + 1) / (len(train) + size)) for token in valid]
    assert quickstart.perplexity_of_frequencies(task) == pytest.approx(math.exp(sum(losses) / len(losses)))


def test_own_text_is_known_by_its_content(tmp_path):
    file, text = tmp_path / "own.txt", tmp_path / "q/text"
    file.write_text(sentences(300, seed=3))
    for time in (1e9, 2e9):
        os.utime(file, (time, time))
        quickstart.collect_text([file], text, 30)
    file.write_text(file.read_text().replace("dog", "god"))
    os.utime(file, (2e9, 2e9))
    with pytest.raises(ValueError, match="holds a run on another text"):
        quickstart.collect_text([file], text, 30)
