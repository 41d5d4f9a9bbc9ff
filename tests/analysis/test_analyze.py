"""The folder that `linformer analyze` writes, from checkpoints of every kind."""

import html
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from fairseq_linformer.analysis.analyze import analyze
from fairseq_linformer.analysis.reading import first_line, predict_line, read_line, read_model
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.errors import UserError
from fairseq_linformer.finetune.prediction import Predictor
from fairseq_linformer.system.digests import digest_file
from tests.helpers.commands import last_line, run
from tests.helpers.exports import N, write_fine_tuned, write_pretrained, write_vocabulary
from tests.helpers.inputs import sentences

EVERY = {"analysis.json", "spectrum.json", "spectrum.png", "spectrum_heat.png", "spectrum_ranks.png"}
EVERY |= {"looks.html", "looks.json", "looks.png"}
LOW_RANK = {"low_rank.json", "low_rank.png"}
USED = {"projections.json", "projections_use.png"}
MATRICES = {"projections.png", "projections_rows.png"}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "text.txt").write_text(sentences(60, seed=5))
    return write_vocabulary(folder)


@pytest.fixture
def text(vocabulary):
    return vocabulary / "text.txt"


def numbers(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, files",
    [
        ({"attention": "softmax"}, LOW_RANK),
        ({"projected_length": "3,5", "sharing": "none", "linformer_window": "0,4"}, LOW_RANK | USED | MATRICES),
        ({"projected_length": 5, "projection": "attention-pool"}, LOW_RANK | USED),
        ({"projected_length": 5, "attention": "revisited-linformer", "sharing": "layerwise"}, USED | MATRICES),
        ({"projected_length": 15, "projection": "mean-pool", "linformer_window": 32}, LOW_RANK | USED),
    ],
)
def test_what_is_written_of_each_mechanism(options, files, vocabulary, text, tmp_path):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, **options)
    names, found = analyze([checkpoint], text, tmp_path / "out", rows=2, tokens=6)
    assert set(names) == EVERY | files == {path.name for path in (tmp_path / "out").iterdir()}
    made_of = numbers(tmp_path / "out", "analysis")
    page = (tmp_path / "out" / "looks.html").read_text(encoding="utf-8")
    assert made_of["found"] == [*found] and all(html.escape(said) in page for said in found)
    assert made_of["checkpoint"]["digest"] == digest_file(checkpoint) and made_of["text"] == digest_file(text)
    assert (made_of["rows"], made_of["n"], made_of["checkpoint"]["updates"]) == (2, 15, 7)
    assert numbers(tmp_path / "out", "spectrum")["made_of"]["checkpoint"] == made_of["checkpoint"]
    for name in names:
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG" if name.endswith(".png") else (b"{", b"<"))


@pytest.mark.slow
def test_several_checkpoints_in_the_order_of_updates(vocabulary, text, tmp_path):
    file = write_pretrained(tmp_path / "run", vocabulary, projected_length=5, projection_multiplier=1.0)
    state = torch.load(file, weights_only=False)
    files = []
    for updates in (30, 10, 20):
        state["optimizer_history"][0]["num_updates"] = updates
        for name in state["model"]:
            if name.endswith("key_projection.weight"):
                state["model"][name] = updates * torch.eye(5, 15)
        files.append(tmp_path / f"checkpoint_1_{updates}.pt")
        torch.save(state, files[-1])
    names, _ = analyze(files, text, tmp_path / "out", data=vocabulary, rows=1, tokens=4)
    assert {"training.json", "training.png"} < set(names)
    training = numbers(tmp_path / "out", "training")
    assert [point["updates"] for point in training["points"]] == [10, 20, 30]
    assert training["made_of"]["checkpoints"] == [digest_file(files[i]) for i in (1, 2, 0)]
    own = numbers(tmp_path / "out", "projections")["matrices"][0]
    assert own["rows"]["norm"] == [30] * 5  # of the last one
    with pytest.raises(UserError, match="two checkpoints have 30 updates: give those of one run, each once"):
        analyze([files[0], files[0]], text, tmp_path / "again", data=vocabulary, rows=1, tokens=4)
    other = write_pretrained(tmp_path / "other", vocabulary, projected_length=4)
    message = r"checkpoint_1_10.pt has projected_length=\[5, 5\], .*other/checkpoint_best.pt has \[4, 4\]: several"
    with pytest.raises(UserError, match=message):
        analyze([other, files[1]], text, tmp_path / "again", data=vocabulary, rows=1, tokens=4)
    assert not (tmp_path / "again").exists()


@pytest.mark.slow
def test_a_fine_tuned_checkpoint_looks_at_the_first_line(vocabulary, text, tmp_path):
    checkpoint = write_fine_tuned(tmp_path / "run", vocabulary, "single-label", options={"projected_length": 5})
    twin = write_fine_tuned(tmp_path / "twin", vocabulary, "single-label", options={"attention": "softmax"})
    names, _ = analyze([checkpoint], text, tmp_path / "out", beside=twin, rows=1, tokens=15)
    assert "looks_first_token.png" in names
    looks = numbers(tmp_path / "out", "looks")
    line = text.read_text().splitlines()[0]
    assert looks["tokens"][0] == "<s>" and looks["tokens"][-1] == "</s>" and looks["length"] == len(looks["tokens"])
    assert line.startswith("".join(looks["tokens"][1:-1]))
    assert [model["attention"] for model in looks["models"]] == ["linformer", "softmax"]
    for own, source in zip(looks["models"], (checkpoint, twin), strict=True):
        (said,) = Predictor(source).texts([Example(line, None)])
        assert own["predicted"] == f"{said.label} ({said.probabilities[said.label]:.0%})"
        assert f"{own['name']} predicts: {own['predicted']}." in (tmp_path / "out" / "looks.html").read_text()
    assert numbers(tmp_path / "out", "analysis")["beside"]["digest"] == digest_file(twin)


@pytest.mark.slow
def test_what_is_predicted_is_of_the_row_that_is_shown(vocabulary, text, tmp_path):
    """Cut as the task cuts it; and of nothing where a block of text is shown. Names may look like formulas."""
    tail = {"truncation": "tail", "truncate_to": 5}
    tuned = write_fine_tuned(tmp_path / "a$b_$c", vocabulary, "single-label", options={"projected_length": 5}, **tail)
    analyze([tuned], text, tmp_path / "out", rows=1, tokens=15)
    looks = numbers(tmp_path / "out", "looks")
    assert looks["length"] == 5 and looks["tokens"][0] == "<s>" and looks["tokens"][-1] == "</s>"
    assert text.read_text().splitlines()[0].endswith("".join(looks["tokens"][1:-1]))
    assert looks["models"][0]["predicted"]
    pretrained = write_pretrained(tmp_path / "run", vocabulary, projected_length=5)
    analyze([pretrained], text, tmp_path / "beside", beside=tuned, rows=1, tokens=15)
    assert [one["predicted"] for one in numbers(tmp_path / "beside", "looks")["models"]] == [None, None]


def test_the_vocabulary_of_a_fine_tuned_checkpoint_may_be_anywhere(vocabulary, text, tmp_path):
    """A prepared task, a run, a folder or a file of sentencepiece. What it predicts is said where labels are."""
    tuned = write_fine_tuned(tmp_path / "run", vocabulary, "single-label", options={"projected_length": 5})
    task, line = tmp_path / "run-data", first_line(text)
    said = predict_line(read_model(tuned), line)
    assert said is not None
    assert [predict_line(read_model(tuned, place), line) for place in (task, tuned.parent)] == [said, said]
    alone = shutil.copy(vocabulary / "sentencepiece.bpe.model", tmp_path / "spm.model")
    for place in (vocabulary, vocabulary / "sentencepiece.bpe.model", Path(alone)):
        model = read_model(tuned, place)
        assert torch.equal(read_line(model, line), read_line(read_model(tuned), line))
        assert predict_line(model, line) is None
    shutil.copytree(vocabulary, tuned.parent, dirs_exist_ok=True)
    assert predict_line(read_model(tuned), line) == said
    task.rename(tmp_path / "moved")
    assert predict_line(read_model(tuned), line) is None


def test_a_task_that_does_not_say_how_long_rows_are_cuts_them_to_what_the_model_reads(vocabulary, text, tmp_path):
    """As ``linformer finetune`` writes it: its configuration takes the model's options from the checkpoint."""
    options = {"projected_length": 5}
    tuned = write_fine_tuned(tmp_path / "run", vocabulary, "single-label", options=options, max_positions=None)
    model, line = read_model(tuned), " ".join(text.read_text().splitlines())
    assert (model.longest, len(read_line(model, line))) == (N, N)
    assert predict_line(model, line) == predict_line(
        read_model(write_fine_tuned(tmp_path / "said", vocabulary, "single-label", options=options)), line
    )


def test_a_text_that_is_no_file_is_refused_before_a_model_is_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        analyze([tmp_path / "none.pt"], tmp_path, tmp_path / "out", rows=1, tokens=4)


@pytest.mark.slow
def test_a_folder_of_transformers(vocabulary, text, tmp_path):
    from fairseq_linformer.hf.exporting import export

    checkpoint = write_pretrained(tmp_path / "run", vocabulary, attention="softmax")
    export(checkpoint, tmp_path / "hf")
    analyze([tmp_path / "hf"], text, tmp_path / "from_hf", rows=1, tokens=4)
    analyze([checkpoint], text, tmp_path / "own", rows=1, tokens=4)
    found = [numbers(tmp_path / name, "spectrum")["cumulative"] for name in ("from_hf", "own")]
    assert found[0] == found[1]


def test_other_mechanisms_are_refused_by_name(vocabulary, text, tmp_path):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, attention="performer", attention_dropout=0.0)
    with pytest.raises(UserError, match="attention=performer is not allowed: it must be one of softmax, linformer"):
        analyze([checkpoint], text, tmp_path / "out", rows=1, tokens=4)
    assert not (tmp_path / "out").exists()


def test_without_matplotlib_the_error_names_the_extra(text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"matplotlib is needed .*pip install 'fairseq-linformer\[analysis\]'"):
        analyze([tmp_path / "no.pt"], text, tmp_path / "out", rows=1, tokens=4)


@pytest.mark.slow
def test_the_command(vocabulary, text, tmp_path):
    write_pretrained(tmp_path / "run", vocabulary, projected_length=5)
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "analysis.json").touch()  # of an interrupted run
    command = ["linformer", "analyze", "run", "--input", text, "--out", "out", "--rows", 1, "--tokens", 5]
    *_, files, rank, loss, looks = run(*command, cwd=tmp_path).splitlines()
    assert files.startswith("out: analysis.json, looks.html, ")
    assert rank.startswith("Rank: ") and loss.startswith("Loss: ") and looks.startswith("Looks: ")
    assert not (tmp_path / "out.partial").exists()
    again = last_line(run(*command, cwd=tmp_path, status=1))
    assert again.startswith("error: ") and again.endswith("nothing was changed; name another, or remove it")
    again = last_line(run(*command[:-3], 0, cwd=tmp_path, status=2))
    assert again.endswith("argument --rows: 0 is not allowed: it must be a whole number at least 1")
