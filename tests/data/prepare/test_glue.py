"""Reader of GLUE's official files."""

import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pooch
import pytest

from fairseq_linformer.cli.command import main
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.glue import DOWNLOADS, SOURCES, glue_folder, read_glue
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.errors import UserError
from tests.helpers.checkpoints import write_run
from tests.helpers.inputs import write_official
from tests.helpers.processes import served


def rows_of(source, task) -> dict[str, list[Example]]:
    return {split: list(rows) for split, rows in read_glue(source, task).items()}


@pytest.mark.parametrize("task", SOURCES)
def test_files_of_the_official_shape(tmp_path, task):
    write_official(tmp_path, task)
    splits = rows_of(tmp_path, task)
    assert set(splits) == set(SOURCES[task].files)
    for split, rows in splits.items():
        assert len(rows) == 3
        assert [row.text for row in rows] == [f"{SOURCES[task].texts[0]} {number}" for number in range(3)]
        if len(SOURCES[task].texts) == 2:
            assert rows[2].second == f"{SOURCES[task].texts[1]} 2"
        if split.startswith("test"):
            assert {row.label for row in rows} == {None}
        elif task == "STS-B":
            assert [row.label for row in rows] == ["5.000", "0", "2.5"]
        else:
            assert {row.label for row in rows} == set(TASKS[task].classes)


def test_broken_rows_of_qqp_are_left_out_and_counted(tmp_path, capsys):
    write_official(tmp_path, "QQP")
    with (tmp_path / "QQP" / "train.tsv").open("a", encoding="utf-8") as file:
        file.write("7\ta question that a line feed\ncut in two\t1\n")
    assert len(list(read_glue(tmp_path, "QQP")["train"])) == 3
    assert "QQP/train.tsv: 2 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("task", "old", "new", "line"),
    [
        ("STS-B", "2.5", "5.1", 4),
        ("SST-2", "\t1\n", "\t2\n", 3),
        ("SST-2", "\t1\n", "\n", 3),
        ("SST-2", "sentence\tlabel", "label\tsentence", 1),
    ],
)
def test_a_bad_row_is_named(tmp_path, task, old, new, line):
    write_official(tmp_path, task)
    path = tmp_path / task / "dev.tsv"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=rf"dev\.tsv, line {line}: "):
        rows_of(tmp_path, task)


def archived(source, archive) -> Path:
    return Path(shutil.make_archive(str(archive.with_suffix("")), archive.suffix[1:], source))


@pytest.fixture
def mirror(tmp_path, monkeypatch) -> Iterator[str]:
    """A server with three of the official downloads, their checksums in place of the official ones."""
    for task in ("RTE", "AX", "MRPC"):
        write_official(tmp_path / "made" / task, task)
    folder = tmp_path / "served"
    (folder / "glue/data").mkdir(parents=True)
    (folder / "senteval/senteval_data").mkdir(parents=True)
    archived(tmp_path / "made" / "RTE", folder / "glue/data/RTE.zip")
    shutil.copy(tmp_path / "made/AX/AX/AX.tsv", folder / "glue/data/AX.tsv")
    rows = [f"{number % 2}\t{number}\t{number + 10}\tone {number}\ttwo {number}" for number in range(4)]
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for name in ("train", "test"):
        (folder / f"senteval/senteval_data/msr_paraphrase_{name}.txt").write_text("\n".join([header, *rows]) + "\n")
    (folder / "glue/data/mrpc_dev_ids.tsv").write_text("1\t11\n3\t13\n")
    checksums = {
        task: {name: pooch.file_hash(str(folder / name)) for name in DOWNLOADS[task]} for task in ("RTE", "AX", "MRPC")
    }
    monkeypatch.setattr("fairseq_linformer.data.prepare.glue.DOWNLOADS", checksums)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with served(folder) as address:
        yield address


def test_downloads_from_a_mirror(mirror, tmp_path):
    with glue_folder(mirror, ["RTE", "AX", "MRPC"]) as folder:
        assert rows_of(folder, "RTE") == rows_of(tmp_path / "made" / "RTE", "RTE")
        assert rows_of(folder, "AX") == rows_of(tmp_path / "made" / "AX", "AX")
        mrpc = rows_of(folder, "MRPC")
    assert [row.second for row in mrpc["train"]] == ["two 0", "two 2"]
    assert mrpc["valid"] == [Example("one 1", "1", "two 1"), Example("one 3", "1", "two 3")]
    assert [row.label for row in mrpc["test"]] == [None] * 4
    shutil.rmtree(tmp_path / "served")
    with glue_folder(mirror, ["RTE"]):
        pass  # from the cache


def test_tasks_that_the_source_lacks_are_listed_and_the_others_prepared(tmp_path, vocabulary, capsys):
    source, out = tmp_path / "glue", tmp_path / "out"
    for task in ("SST-2", "RTE"):
        write_official(source, task)
    (source / "RTE" / "dev.tsv").unlink()
    words = ["--source", str(source), "--tokenizer", str(write_run(tmp_path / "run", vocabulary)), "--out", str(out)]
    main(["prepare", "glue", *words])
    printed = capsys.readouterr().out
    assert f"  {source}/RTE lacks dev.tsv\n" in printed and f"  {source} holds no folder CoLA\n" in printed
    assert printed.index("holds no folder CoLA") < printed.index("SST-2\n"), "the list comes before any work"
    assert [folder.name for folder in out.iterdir()] == ["SST-2"] and printed.endswith("--tasks SST-2\n")
    write_official(source, "WNLI")
    main(["prepare", "glue", *words])
    printed = capsys.readouterr().out
    assert f"SST-2: already prepared in {out}/SST-2\n" in printed and printed.endswith("--tasks SST-2 WNLI\n")
    with pytest.raises(SystemExit, match=r"QQP.*RTE"):
        main(["prepare", "glue", *words[:-1], str(tmp_path / "asked"), "--tasks", "sst2", "qqp", "rte"])
    assert not (tmp_path / "asked").exists()
    with pytest.raises(SystemExit, match=r"^error: task 'sst'"):
        main(["prepare", "glue", *words, "--tasks", "cola", "sst"])


def test_a_task_of_another_subword_model_does_not_count_as_prepared(tmp_path, vocabulary):
    """Also if the pieces have the same names: a dictionary of WordPieces holds numbers alone."""
    write_official(tmp_path / "glue", "SST-2")
    words = ["--source", str(tmp_path / "glue"), "--out", str(tmp_path / "out"), "--tokenizer"]
    main(["prepare", "glue", *words, str(vocabulary)])
    shutil.copytree(vocabulary, tmp_path / "other")
    with (tmp_path / "other/sentencepiece.bpe.model").open("ab") as model:
        model.write(b"\xfa\x3f\x00")  # an unknown field: another file that reads alike
    main(["prepare", "glue", *words, str(vocabulary)])
    with pytest.raises(SystemExit, match=r"^error: .*out/SST-2"):
        main(["prepare", "glue", *words, str(tmp_path / "other")])


@pytest.mark.parametrize("content", ["sentence\tlabel\n \t1\n", None])
def test_errors_of_an_archive_name_it_and_the_member(tmp_path, vocabulary, content):
    """They do not name the temporary folder, which is removed."""
    write_official(tmp_path / "glue", "SST-2")
    train = tmp_path / "glue/SST-2/train.tsv"
    train.unlink() if content is None else train.write_text(content)
    archive = archived(tmp_path / "glue", tmp_path / "all.zip")
    words = ["--source", str(archive), "--tokenizer", str(vocabulary), "--out", str(tmp_path / "out"), "--tasks"]
    for task, named in (("SST-2", ": SST-2.*train.tsv"), ("CoLA", ".*CoLA")):
        with pytest.raises(SystemExit, match=f"^error: {archive}{named}"):
            main(["prepare", "glue", *words, task])


def test_an_archive_of_a_folder_of_tasks(tmp_path):
    """The folder is below another one, and of members that would be written outside only the last two names count."""
    write_official(tmp_path / "made" / "data", "RTE")
    with zipfile.ZipFile(archived(tmp_path / "made", tmp_path / "all.zip"), "a") as zipped:
        zipped.writestr("../../x/RTE/other.tsv", "x")
        zipped.writestr("RTE", "x")
    with glue_folder(str(tmp_path / "all.zip"), ["RTE"]) as folder:
        assert rows_of(folder, "RTE") == rows_of(tmp_path / "made", "RTE")
        assert sorted(path.name for path in folder.rglob("*.*")) == ["dev.tsv", "test.tsv", "train.tsv"]


@pytest.mark.real_data
def test_the_official_files(real_data):
    for task in ("CoLA", "MRPC", "RTE", "STS-B", "SST-2"):
        splits = rows_of(real_data / "glue", task)
        for split, rows in splits.items():
            lacking = 1 if (task, split) == ("MRPC", "train") else 0  # this copy of the file
            assert len(rows) == SOURCES[task].files[split].rows - lacking, (task, split)
    assert Counter(row.label for row in splits["valid"]) == {"1": 444, "0": 428}
    assert splits["valid"][0] == Example("it 's a charming and often affecting journey . ", "1")
    assert {row.label for row in splits["test"]} == {None}
