"""Preparation of text: against fairseq-preprocess, from every source, and after errors and kills."""

import functools
import gzip
import io
import json
import lzma
import multiprocessing
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from fairseq import options
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from fairseq_cli import preprocess

from fairseq_linformer.cli.command import main
from fairseq_linformer.data.prepare import corpus, text_files
from fairseq_linformer.data.prepare.corpus import prepare_corpus
from fairseq_linformer.data.prepare.text_files import find_files, read_chunks
from fairseq_linformer.data.prepare.vocabulary_training import LineSample
from fairseq_linformer.data.subword_models import load_tokenizer
from fairseq_linformer.errors import UserError
from tests.helpers.inputs import WORDS, train_without_bytes
from tests.helpers.processes import running_in_group, wait_until

DATASET = ("train.bin", "train.idx", "valid.bin", "valid.idx", "dict.txt", "sentencepiece.bpe.model")


@functools.cache
def random_lines(count, seed) -> list[str]:
    """Lines of words; about one in nine is blank."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, size=size)) for size in random.integers(0, 9, size=count)]


# Leading blank lines and runs of them, carriage returns, unknown signs, white space of every kind, no last line feed.
AWKWARD = "\n \n\nbathe lim\r\nis 漢字 et\x85mu \n\n \t\n\u00a0\nmu is\u2028et\n  the  lim\n\n" * 3 + "the end"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "spm.model"
    train_without_bytes(random_lines(2000, seed=3), path, vocab_size=100)
    return path


@pytest.fixture
def texts(tmp_path) -> tuple[Path, Path]:
    """A train and a valid file."""
    train, valid = tmp_path / "train.txt", tmp_path / "valid.txt"
    train.write_text("\n".join(random_lines(3000, seed=1)) + "\n" + AWKWARD, encoding="utf-8")
    valid.write_text("\n".join(random_lines(100, seed=2)), encoding="utf-8")
    return train, valid


def contents(folder) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in DATASET}


def items(prefix) -> list[list[int]]:
    dataset = MMapIndexedDataset(str(prefix))
    return [dataset[row].tolist() for row in range(len(dataset))]


def without_repeated_blanks(text) -> list[str]:
    """The lines that are stored: no blank one at the start or after another."""
    lines = [line.strip() for line in text.removesuffix("\n").split("\n")]
    return [line for before, line in zip(["", *lines[:-1]], lines, strict=True) if line or before]


@pytest.mark.parametrize("workers", [1, 2])
def test_dataset_is_that_of_fairseq_preprocess(tmp_path, texts, model, monkeypatch, workers):
    """Byte for byte, also at the borders of many chunks."""
    monkeypatch.setattr(text_files, "CHUNK_BYTES", 1000)
    prepare_corpus([texts[0]], [texts[1]], tmp_path / "out", tokenizer=model, workers=workers)
    encode = SentencepieceBPE(SentencepieceConfig(sentencepiece_model=str(model))).encode
    for path in texts:
        lines = without_repeated_blanks(path.read_bytes().decode())
        (tmp_path / f"{path.stem}.pieces").write_text("".join(encode(line) + "\n" for line in lines), newline="\n")
    arguments = ["--only-source", "--srcdict", f"{tmp_path}/out/dict.txt", "--destdir", f"{tmp_path}/theirs"]
    arguments += ["--trainpref", f"{tmp_path}/train.pieces", "--validpref", f"{tmp_path}/valid.pieces"]
    preprocess.main(options.get_preprocessing_parser().parse_args(arguments))
    ours, theirs = contents(tmp_path / "out"), tmp_path / "theirs"
    assert {name: ours[name] for name in DATASET[:-1]} == {name: (theirs / name).read_bytes() for name in DATASET[:-1]}


def test_every_source_of_text_gives_the_same(tmp_path, texts, model, monkeypatch):
    """With a byte-order mark, .gz, .xz, a folder, standard input."""
    train, valid = texts
    data = train.read_bytes()
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf" + data)
    (tmp_path / "train.gz").write_bytes(gzip.compress(data))
    (tmp_path / "train.xz").write_bytes(lzma.compress(data))
    (tmp_path / "folder" / "deeper").mkdir(parents=True)
    (tmp_path / "folder" / "deeper" / "a.txt.gz").write_bytes(gzip.compress(data))
    (tmp_path / "folder" / "dict.txt").write_text("the 5\n")
    (tmp_path / "folder" / "notes.md").write_text("no text")
    prepare_corpus([train], [valid], tmp_path / "expected", tokenizer=model, workers=1)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    for name in ("marked.txt", "train.gz", "train.xz", "folder", "-"):
        source = Path("-") if name == "-" else tmp_path / name
        prepare_corpus([source], [valid], tmp_path / f"out of {name}", tokenizer=model, workers=1)
        assert contents(tmp_path / f"out of {name}") == contents(tmp_path / "expected"), name
        assert sorted(os.listdir(tmp_path / f"out of {name}")) == sorted([*DATASET, "corpus.json"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    with pytest.raises(UserError, match=r"^standard input: line 1 "):
        prepare_corpus([train], [Path("-")], tmp_path / "out", tokenizer=model, workers=1)


def test_validation_files_are_left_out_of_a_training_folder(tmp_path, texts, model, capsys):
    """A file that is named for both is trained on, with a warning."""
    (tmp_path / "folder").mkdir()
    for path in texts:
        shutil.copy(path, tmp_path / "folder")
    (tmp_path / "link.txt").symlink_to(tmp_path / "folder" / texts[1].name)
    folder, valid = tmp_path / "folder", tmp_path / "link.txt"
    prepare_corpus([folder], [valid], tmp_path / "out", tokenizer=model, workers=1)
    prepare_corpus([texts[0]], [texts[1]], tmp_path / "expected", tokenizer=model, workers=1)
    assert (tmp_path / "out/train.bin").read_bytes() == (tmp_path / "expected/train.bin").read_bytes()
    assert "warning" not in capsys.readouterr().out
    prepare_corpus([folder, valid], [valid], tmp_path / "both", tokenizer=model, workers=1)
    assert re.search("warning: .*link.txt", capsys.readouterr().out)
    with pytest.raises(FileNotFoundError, match="folder"):
        prepare_corpus([folder], [folder], tmp_path / "none", tokenizer=model, workers=1)


def test_documents(tmp_path, model, capsys):
    """A run of blank lines ends a document, as does the end of a file; a byte-order mark is no text."""
    (tmp_path / "a.txt").write_text("\ufeff\n\nthe\nlim\n\n\n \nis\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("mu\n\n")
    (tmp_path / "c.txt").write_text("et")
    files = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    prepare_corpus(files, files[:1], tmp_path / "out", tokenizer=model, workers=1)
    lines = ["the", "lim", "", "is", "", "mu", "", "et"]
    stored = items(tmp_path / "out" / "train")
    assert stored == [[*ids.tolist(), 2] for ids in load_tokenizer(tmp_path / "out").encode(lines)]
    printed = capsys.readouterr().out
    assert f"train: 4 documents, 5 lines, {sum(map(len, stored))} tokens, 0.000% unknown" in printed
    assert "valid: 2 documents, 3 lines" in printed
    task = MaskedLMTask.setup_task(MaskedLMConfig(data=str(tmp_path / "out")))
    expected = np.bincount(np.concatenate(stored), minlength=len(task.source_dictionary) - 1)
    assert task.source_dictionary.count[4:-1] == expected[4:].tolist()
    assert json.loads((tmp_path / "out" / "corpus.json").read_text())["train"]["documents"] == 4


def test_only_blank_lines_end_documents(tmp_path, model):
    """Lines of zero-width characters are left out; a line that the subword model drops is <unk>."""
    (tmp_path / "a.txt").write_text("\u200b\nthe\n\u200b\nlim\n\ufeff\n\n\u200b\n\nis\n", encoding="utf-8")
    lines = ["the", "lim", "", "is"]
    assert [line for chunk in read_chunks([tmp_path / "a.txt"]) for line in chunk.lines] == lines
    prepare_corpus([tmp_path / "a.txt"], [], tmp_path / "out", tokenizer=model, workers=1)
    assert json.loads((tmp_path / "out" / "corpus.json").read_text())["train"]["documents"] == 2
    (tmp_path / "rules.tsv").write_text("301\t\n")  # accents are left out, as BERT's uncased vocabularies do
    words = {"normalization_rule_tsv": str(tmp_path / "rules.tsv"), "vocab_size": 60, "minloglevel": 2}
    prefix = str(tmp_path / "accents")
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(random_lines(500, 3)), model_prefix=prefix, **words)
    ids, sizes = corpus.encode_items(load_tokenizer(Path(f"{prefix}.model")), ["the\u0301", "\u0301", ""])
    assert ids[-3:].tolist() == [3, 2, 2] and sizes[1:].tolist() == [2, 1]


BAD_TEXTS: dict[str, tuple[bytes, str]] = {
    "empty.txt": (b"", ""),
    "blank.txt": (b"\n \n\t\n", ""),
    "latin.txt": (b"fine\n" * 300 + b"caf\xe9\n", " line 301 "),
    "utf16.txt": ("fine\n".encode("utf-16-le"), " line 1 "),
    "mac.txt": (b"one\rtwo\r\rthree\r", ""),
    "zero.txt": (b"fine\n" * 300 + b"\0\n", " line 301 "),
    "cut.gz": (gzip.compress(os.urandom(9999).hex().encode())[:-3000], ""),
    "plain.gz": (b"no archive", ""),
    "plain.xz": (b"no archive", ""),
    "flipped.gz": (gzip.compress(b"text " * 999, mtime=0)[:20] + b"\0" * 40, ""),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_an_unusable_text_is_named(tmp_path, texts, model, monkeypatch, name):
    monkeypatch.setattr(text_files, "CHUNK_BYTES", 100)
    content, line = BAD_TEXTS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}:{line}"):
        prepare_corpus([texts[1], tmp_path / name], [texts[1]], tmp_path / "out", tokenizer=model, workers=1)
    assert not list(tmp_path.glob("out*"))


def test_names_of_no_text(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")  # the text is read twice, and a pipe would be empty the second time
    for name in ("absent", "folder", "pipe.txt"):
        with pytest.raises(FileNotFoundError, match=name):
            find_files([tmp_path / name])
    for name in ("a.JSONL", "a.txt.zst", "a.tar.gz"):
        (tmp_path / name).touch()
        with pytest.raises(UserError, match=name):
            find_files([tmp_path / name])
    with pytest.raises(UserError, match=r"a\.tar\.gz"):
        find_files([tmp_path])


def test_folders_are_searched_in_capitals_and_through_links(tmp_path):
    """Each folder is searched once, also if links make a circle."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "folder" / "B.TXT").write_text("of B\n")
    (tmp_path / "linked" / "x.GZ").write_bytes(gzip.compress(b"of x\n"))
    (tmp_path / "linked" / "up").symlink_to(tmp_path / "folder")
    (tmp_path / "folder" / "down").symlink_to(tmp_path / "linked")
    files = find_files([tmp_path / "folder"])
    assert files == [tmp_path / "folder" / "B.TXT", tmp_path / "folder" / "down" / "x.GZ"]
    assert [line for chunk in read_chunks(files) for line in chunk.lines] == ["of B", "", "of x"]


def test_hidden_and_repeated_files(tmp_path):
    """Copies of Jupyter and attributes of macOS are hidden; a hidden folder that is named is read.

    A file that is named twice, by a link or by its folder, is an error; of links in a folder one is followed.
    """
    for name in ("b.txt", "._a.txt", ".ipynb_checkpoints/a.txt", "__MACOSX/b.txt", ".texts/c.txt", "folder/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("the lim\n")
    file, folder, link = tmp_path / "folder" / "a.txt", tmp_path / "folder", tmp_path / "link.txt"
    assert find_files([tmp_path]) == [tmp_path / "b.txt", file]
    assert find_files([tmp_path / ".texts"]) == [tmp_path / ".texts" / "c.txt"]
    link.symlink_to(file)
    for names, named in (([file, file], file), ([file, folder], file), ([link, file], link)):
        with pytest.raises(UserError, match=f": {named}$"):
            find_files([tmp_path / "b.txt", *names])
    assert find_files([tmp_path]) == [tmp_path / "b.txt", link]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokenizer": Path("a"), "vocab_size": 9}, "--vocab-size"),
        ({"sample_characters": 100}, "--sample-characters"),
        ({"train": [Path("unread")], "vocab_size": 0}, "--vocab-size"),
        ({"train": [Path("-")], "valid": [Path("-")]}, "--train, --valid"),
    ],
)
def test_options_that_cannot_work(tmp_path, texts, arguments, message):
    with pytest.raises(UserError, match=message):
        prepare_corpus(**{"train": [texts[0]], "valid": [texts[1]], "out": tmp_path / "out", **arguments})
    assert not list(tmp_path.glob("out*"))


@pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="the patch reaches only forked workers")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_worker_is_an_error(tmp_path, texts, model, monkeypatch, number):
    """The exception that the main process's handler of SIGTERM raises does not become the error of a chunk."""
    monkeypatch.setattr(corpus, "encode_items", lambda tokenizer, lines: os.kill(os.getpid(), number))
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    try:
        with pytest.raises(ChildProcessError, match="2 worker"):
            prepare_corpus([texts[0]], [texts[1]], tmp_path / "out", tokenizer=model, workers=2)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert not list(tmp_path.glob("out*"))


def _run_in_group(words: list[str]) -> None:
    os.setsid()
    main(words)


@pytest.mark.skipif(sys.platform != "linux", reason="the run is a forked process")
def test_a_killed_run_leaves_no_folder_and_can_be_repeated(tmp_path, model):
    """It leaves no processes either, and a second run at the same time is an error."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(random_lines(3000, seed=1) * 40))
    words = ["prepare", "corpus", "--train", str(text), "--valid", str(text)]
    words += ["--tokenizer", str(model), "--out", str(tmp_path / "out"), "--workers", "2"]
    data = tmp_path / "out.partial" / "train.bin"
    process = multiprocessing.get_context("fork").Process(target=_run_in_group, args=(words,))
    process.start()
    wait_until(lambda: data.exists() and data.stat().st_size > 0)
    with pytest.raises(UserError, match=r"out\.partial"):
        prepare_corpus([text], [text], tmp_path / "out", tokenizer=model, workers=1)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    wait_until(lambda: not running_in_group(process.pid))
    assert not (tmp_path / "out").exists() and data.exists()
    (tmp_path / "out.partial" / "test.bin").touch()  # files of the killed run are not in the new folder
    (tmp_path / "out.partial" / "stale").mkdir()
    text.write_text("the lim\n")
    main(words)
    assert sorted(os.listdir(tmp_path / "out")) == sorted([*DATASET, "corpus.json"])
    assert not (tmp_path / "out.partial").exists()
    with pytest.raises(SystemExit, match=f"^error: {tmp_path / 'out'} exists"):
        main(words)


def test_a_sample_is_bounded_even_and_repeatable():
    """With lines of 10 and 5000 characters it has the pieces with the smallest random keys, for any batch size."""
    lines = [f"{number:05d}" + ("short" if number % 2 else "long-" * 999) for number in range(2000)]
    pieces = [piece for line in lines for piece in (line[:2000], line[2000:4000], line[4000:]) if piece]
    shuffled = np.argsort(np.random.default_rng(1).random(len(pieces)))
    fitting = np.cumsum([len(pieces[index]) for index in shuffled]) <= 200_000
    expected = [pieces[index] for index in sorted(shuffled[fitting])]
    for step in (7, 2000):
        sample = LineSample(200_000, seed=1)
        for start in range(0, len(lines), step):
            sample.add(lines[start : start + step])
        assert sample.lines() == expected


def test_a_warning_names_the_split_with_unknown_pieces(tmp_path, model, capsys):
    (tmp_path / "few.txt").write_text("the lim\n" * 1000 + "漢\n")
    (tmp_path / "many.txt").write_text("the lim 漢\nthe lim 字\n" * 10)
    words = ["--train", tmp_path / "few.txt", "--valid", tmp_path / "many.txt", "--workers", 1]
    main(["prepare", "corpus", *map(str, words), "--tokenizer", str(model), "--out", str(tmp_path / "out")])
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert "valid" in warning and "train" not in warning
