"""Reader of the IMDB reviews, from a folder, an archive that may be damaged, or a download."""

import contextlib
import io
import random
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pooch
import pytest

from fairseq_linformer.cli.command import main
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.imdb import ARCHIVE, imdb_folder, read_imdb
from fairseq_linformer.errors import UserError
from tests.helpers.checkpoints import write_run
from tests.helpers.processes import served

REVIEWS = {
    "aclImdb/test/pos/0_10.txt": b"caf\xc3\xa9, t\r\nwo lines",
    "aclImdb/train/pos/2_9.txt": b"Great.<br /><br />Really, a <br />b.",
    "aclImdb/train/neg/10_1.txt": b"late in the archive's order",
    "aclImdb/train/neg/0_3.txt": b"poor",
    "aclImdb/test/neg/1_2.txt": b"weak",
}
OTHERS = {
    "aclImdb/README": b"about",
    "aclImdb/train/unsup/0_0.txt": b"unlabelled",
    "aclImdb/train/urls_pos.txt": b"http",
    "aclImdb/train/pos/._2_9.txt": b"what a Mac leaves",
}
EXPECTED = {
    "train": [
        Example("poor", "negative"),
        Example("late in the archive's order", "negative"),
        Example("Great. Really, a b.", "positive"),
    ],
    "valid": [Example("weak", "negative"), Example("café, t\r\nwo lines", "positive")],
}
MODES = ["w:gz", "w:xz", "w:bz2", "w", "zip"]


def read(source) -> dict[str, list[Example]]:
    with imdb_folder(str(source)) as folder:
        return {split: list(rows) for split, rows in read_imdb(folder).items()}


def make_folder(path, files) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def make(path, files, mode="w:gz", links=()) -> Path:
    """An archive of the files, in their order, after links."""
    if mode == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, mode) as archive:
        for name, target in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("mode", MODES)
def test_archives_in_any_order_and_compression(tmp_path, mode):
    archive = make(tmp_path / "download", {**REVIEWS, **OTHERS}, mode)
    assert read(archive) == EXPECTED
    with imdb_folder(str(archive)) as folder:
        unpacked = {str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir()}
    assert unpacked == set(REVIEWS) and not folder.exists()
    make_folder(tmp_path, {**REVIEWS, **OTHERS})
    assert read(tmp_path) == EXPECTED == read(tmp_path / "aclImdb")


@pytest.mark.parametrize("prefix", ["./aclImdb/", "./", ""])
def test_members_may_be_named_from_the_folder_or_the_current_one(tmp_path, prefix):
    renamed = {name.replace("aclImdb/", prefix): data for name, data in REVIEWS.items()}
    assert read(make(tmp_path / "a", renamed, "w")) == EXPECTED


@pytest.mark.parametrize("mode", ["w", "zip"])
def test_nothing_is_written_outside_the_folder(tmp_path, mode):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    names = ("../aclImdb/train/pos/5_9.txt", "/aclImdb/train/pos/5_9.txt", "aclImdb/train/../../pos/5_9.txt")
    links = [("aclImdb/train/pos/20_9.txt", str(secret))]
    assert read(make(tmp_path / "a", {**REVIEWS, **dict.fromkeys(names, b"x")}, mode, links)) == EXPECTED
    assert not list(tmp_path.rglob("5_9.txt"))


def test_errors_name_the_source_or_its_member(tmp_path):
    with pytest.raises(UserError, match=r"a: aclImdb/test/pos/3_8\.txt"):
        read(make(tmp_path / "a", {**REVIEWS, "aclImdb/test/pos/3_8.txt": b"\xff"}))
    kept = {name: data for name, data in REVIEWS.items() if "train/neg" not in name}
    for source in (make(tmp_path / "part.tar.gz", kept), make_folder(tmp_path / "part", kept)):
        with pytest.raises(FileNotFoundError, match=rf"^{source}(: |/)aclImdb/train/neg "):
            read(source)
    (tmp_path / "text").write_text("no archive")
    for name, error in (("nowhere", FileNotFoundError), ("text", UserError)):
        with pytest.raises(error, match=name):
            read(tmp_path / name)


@pytest.mark.parametrize("mode", MODES)
def test_a_truncated_or_damaged_archive_is_never_read_as_other_text(tmp_path, mode):
    """tarfile stops before the checksum of the archive; a name in the index of a zip archive may be damaged."""
    # Digits, which compress little; the cut comes after all four folders, so only the end of the archive is missing.
    many = REVIEWS | {f"aclImdb/test/neg/{row}_1.txt": str(row**200).encode() for row in range(2, 30)}
    archive = make(tmp_path / "a", many, mode)
    expected, content, chance = read(archive), archive.read_bytes(), random.Random(2)
    assert len(expected["valid"]) == 30
    archive.write_bytes(content[: len(content) * 3 // 4 - 1])
    with pytest.raises(UserError, match="a "):
        read(archive)
    for _ in range(0 if mode == "w" else 10):  # tar alone has checksums of names only
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= chance.randrange(1, 256)
        archive.write_bytes(damaged)
        with contextlib.suppress(ValueError, FileNotFoundError):
            assert read(archive) == expected


@pytest.fixture
def mirror(tmp_path, monkeypatch) -> Iterator[str]:
    """A server with a small archive, its checksum in place of the official one."""
    (tmp_path / "served").mkdir()
    archive = make(tmp_path / "served" / ARCHIVE, REVIEWS)
    checksum = f"md5:{pooch.file_hash(str(archive), alg='md5')}"
    monkeypatch.setattr("fairseq_linformer.data.prepare.imdb.DOWNLOADS", {ARCHIVE: checksum})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with served(tmp_path / "served") as address:
        yield address


def test_a_download_from_a_mirror(mirror, tmp_path):
    assert read(mirror) == EXPECTED
    shutil.rmtree(tmp_path / "served")
    assert read(f"{mirror}/") == EXPECTED, "not from the cache"


def test_a_download_with_another_checksum_is_rejected(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)  # before it tries again
    make(tmp_path / "served" / ARCHIVE, {**REVIEWS, "aclImdb/test/pos/1_7.txt": b"another"})
    with pytest.raises(UserError, match=ARCHIVE):
        read(mirror)
    assert not list((tmp_path / "cache").rglob(f"*{ARCHIVE}"))


def test_the_command_prepares_an_archive_with_the_tokenizer_of_a_run(tmp_path, vocabulary, capsys):
    archive = make(tmp_path / "a.zip", dict.fromkeys(REVIEWS, b"the old dog barks today"), "zip")
    tokenizer = write_run(tmp_path / "run", vocabulary)
    main(["prepare", "imdb", "--source", str(archive), "--tokenizer", str(tokenizer), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert printed.endswith(f"\nnext: linformer finetune {tokenizer} --data {tmp_path} --tasks out\n")
    assert "single-label: 0 = negative, 1 = positive" in printed
    assert "train: 3 examples (officially 25,000), " in printed and "valid: 2 examples (officially 25,000), " in printed
    assert (tmp_path / "out" / "dict.txt").read_bytes() == (vocabulary / "dict.txt").read_bytes()
