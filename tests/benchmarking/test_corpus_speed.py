"""The study corpus-speed: both ways get the same text, and datasets that differ are named."""

import pytest
from benchmarking import corpus_speed
from benchmarking.corpus_speed import SPLITS, compare_preparations, cut_text, run

from tests.helpers.benchmarks import options
from tests.helpers.inputs import sentences


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(sentences(1500, seed=1))
    return tmp_path / "text.txt"


def test_a_text_is_cut_to_about_what_is_asked_for(text, tmp_path):
    (tmp_path / "cut").mkdir()
    assert cut_text(text, None, tmp_path / "cut") == sum(
        (tmp_path / "cut" / f"{split}.txt").stat().st_size / 1e6 for split in SPLITS
    )
    assert (tmp_path / "cut" / "train.txt").read_text() == text.read_text()
    assert (tmp_path / "cut" / "valid.txt").read_text().splitlines() == text.read_text().splitlines()[:1000]


def test_datasets_that_differ_are_named(text, monkeypatch, tmp_path):
    def write(name, odd):
        def prepare(folder, workers):
            (folder / name).mkdir()
            for file in ("train.bin", "train.idx", "valid.bin", "valid.idx"):
                (folder / name / file).write_text("odd" if file in odd else "same")

        return prepare

    odd = []
    monkeypatch.setattr(corpus_speed, "prepare", write("ours", odd))
    monkeypatch.setattr(corpus_speed, "fairseq_preprocess", write("theirs", ()))
    asked = options("corpus-speed", "--corpus", text, "--vocab-size", 30, "--workers", 1)
    assert compare_preparations(asked).endswith("datasets: byte for byte the same")
    odd += ["valid.bin", "train.idx"]
    with pytest.raises(
        ValueError, match=r"0\.1 MB of text, 30 pieces, 1 workers; .*the datasets differ in train\.idx, valid\.bin"
    ):
        compare_preparations(asked)


def test_a_program_that_fails_is_named_with_its_status():
    with pytest.raises(ChildProcessError, match=r"python.* -c 'raise SystemExit\(3\)': ended with status 3"):
        run("-c", "raise SystemExit(3)")
