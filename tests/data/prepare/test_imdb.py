"""The reader of the IMDB reviews, from a folder, from archives, hostile ones among them, and from a download."""

import errno
import io
import itertools
import random
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pooch
import pytest

from fairseq_linformer.data.prepare import sources
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.imdb import ARCHIVE, REVIEW_BYTES, imdb_folder, read_imdb
from fairseq_linformer.errors import UserError
from linformer_cli.command import main
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


def read(source) -> dict[str, list[Example]]:
    with imdb_folder(str(source)) as folder:
        return {split: list(read.examples) for split, read in read_imdb(folder).items()}


def make_folder(path, files) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def make_tar(path, files, others=(), mode="w:gz") -> Path:
    """An archive of the files, in their order, after other members without content."""
    with tarfile.open(path, mode) as archive:
        for member in others:
            archive.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def make_zip(path, files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make(path, files, mode) -> Path:
    return make_zip(path, files) if mode == "zip" else make_tar(path, files, mode=mode)


def special(name, kind, target="") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2", "w", "zip"])
def test_archives_of_any_order_and_compression(tmp_path, mode):
    assert read(make(tmp_path / "download", {**REVIEWS, **OTHERS}, mode)) == EXPECTED


def test_folder_and_its_parent(tmp_path):
    make_folder(tmp_path, {**REVIEWS, **OTHERS})
    assert read(tmp_path) == EXPECTED
    assert read(tmp_path / "aclImdb") == EXPECTED


def test_reviews_are_in_the_order_of_their_names(tmp_path):
    names = [f"{number}_4.txt" for number in range(99)]
    rows = read(make_folder(tmp_path, REVIEWS | {f"aclImdb/train/neg/{name}": name.encode() for name in names}))
    assert [row.text for row in rows["train"] if row.text.endswith("_4.txt")] == sorted(names)


@pytest.mark.parametrize("prefix", ["./aclImdb/", "./", ""])
def test_members_may_be_named_from_the_folder_or_the_current_one(tmp_path, prefix):
    renamed = {name.replace("aclImdb/", prefix): data for name, data in REVIEWS.items()}
    assert read(make_tar(tmp_path / "a", renamed)) == EXPECTED
    assert read(make_zip(tmp_path / "b", renamed)) == EXPECTED


def test_only_the_reviews_of_an_archive_are_unpacked(tmp_path):
    for archive in (make_tar(tmp_path / "a", REVIEWS | OTHERS), make_zip(tmp_path / "b", REVIEWS | OTHERS)):
        with imdb_folder(str(archive)) as folder:
            unpacked = {str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir()}
        assert unpacked == set(REVIEWS)
        assert not folder.exists()


@pytest.mark.parametrize(
    "hostile", ["../aclImdb/train/pos/5_9.txt", "/aclImdb/train/pos/5_9.txt", "aclImdb/train/../../pos/5_9.txt"]
)
def test_an_archive_with_a_member_that_would_leave_is_refused(tmp_path, hostile):
    files = {**REVIEWS, hostile: b"outside"}
    for archive in (make_tar(tmp_path / "a.tar.gz", files), make_zip(tmp_path / "a.zip", files)):
        with pytest.raises(ValueError, match=rf"{archive} is refused: its member '{hostile}' would leave the folder"):
            read(archive)


def test_links_and_devices_in_archives_are_left_out(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    others = (
        special("aclImdb/train/pos/20_9.txt", tarfile.SYMTYPE, str(secret)),
        special("aclImdb/train/pos/21_9.txt", tarfile.LNKTYPE, "aclImdb/train/neg/0_3.txt"),
        special("aclImdb/train/pos/22_9.txt", tarfile.CHRTYPE),
        special("aclImdb/train/pos/23_9.txt", tarfile.FIFOTYPE),
        special("aclImdb/train/pos/24_9.txt", tarfile.DIRTYPE),
    )
    assert read(make_tar(tmp_path / "a.tar.gz", REVIEWS, others)) == EXPECTED
    zipped = make_zip(tmp_path / "a.zip", REVIEWS)
    with zipfile.ZipFile(zipped, "a") as archive:
        link = zipfile.ZipInfo("aclImdb/train/pos/20_9.txt")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(secret))
    assert read(zipped) == EXPECTED


def patched_zip(path, **fields) -> Path:
    """A zip archive of which every header, local and central, says that about its members."""
    make_zip(path, REVIEWS)
    content = bytearray(path.read_bytes())
    for magic, offsets in ((b"PK\x03\x04", {"flags": 6, "method": 8}), (b"PK\x01\x02", {"flags": 8, "method": 10})):
        start = content.find(magic)
        while start >= 0:
            for field, value in fields.items():
                content[start + offsets[field]] = value
            start = content.find(magic, start + 4)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"flags": 1}, "is encrypted, password required"),
        ({"method": 9}, "compression method is not supported"),  # deflate64, of large files in Windows' explorer
        ({"method": 77}, "compression method is not supported"),
    ],
)
def test_a_zip_archive_that_python_cannot_unpack_is_refused(tmp_path, fields, said):
    archive = patched_zip(tmp_path / "a.zip", **fields)
    with pytest.raises(ValueError, match=rf"a\.zip cannot be unpacked here: .*{said}"):
        read(archive)


@pytest.mark.parametrize("mode", ["zip", "w:gz", "w:xz", "w:bz2", "w"])
def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(sources, "UNPACKED_BYTES", 9_999)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = {f"aclImdb/train/pos/{number}_9.txt": bytes(1_000) for number in range(10)}
    archive = make(tmp_path / "a", files, mode)
    with pytest.raises(ValueError, match=r"a is refused: it unpacks to 10,000 bytes or more; at most 9,999 are"):
        read(archive)
    assert [file.name for file in tmp_path.iterdir()] == ["a"], "nothing was unpacked, or it is gone"


def test_a_tar_archive_is_not_decompressed_on_and_on(tmp_path, monkeypatch):
    """What is not wanted, a file or a name, is decompressed too: its size counts before that."""
    monkeypatch.setattr(sources, "SCANNED_BYTES", 9_999)
    with pytest.raises(ValueError, match=r"a\.tar is refused: it unpacks to 10,000 bytes or more"):
        read(make_tar(tmp_path / "a.tar", {"aclImdb/README": bytes(10_000), **REVIEWS}))
    monkeypatch.setattr(sources, "HEADER_BYTES", 9_999)
    with pytest.raises(ValueError, match=r"b\.tar cannot be read as a zip or tar archive: a header of \d+ bytes"):
        read(make_tar(tmp_path / "b.tar", {"x" * 20_000: b""}))


def test_of_the_members_of_a_tar_archive_only_the_content_counts(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in REVIEWS.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), 0, 2**70  # a time that cannot be
            archive.addfile(member, io.BytesIO(content))
    assert read(tmp_path / "a.tar") == read(make_tar(tmp_path / "b.tar", REVIEWS))


def test_a_full_disk_is_not_the_archives_fault(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device", "x")

    archives = [make_zip(tmp_path / "a", REVIEWS), make_tar(tmp_path / "b", REVIEWS)]
    monkeypatch.setattr(shutil, "copyfileobj", full)
    for archive in archives:
        with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device: 'x'$"):
            read(archive)


@pytest.mark.parametrize(
    ("review", "said"),
    [
        (bytes(REVIEW_BYTES + 1), "3_8.txt has 1,000,001 bytes: a review has at most 1,000,000"),
        (b"\xff", "test/pos/3_8.txt: not UTF-8"),
    ],
)
def test_a_review_that_cannot_be_read_is_named(tmp_path, review, said):
    with pytest.raises(ValueError, match=said):
        read(make_tar(tmp_path / "a", {**REVIEWS, "aclImdb/test/pos/3_8.txt": review}))


@pytest.mark.parametrize("missing", ["train/neg", "train/pos", "test/neg", "test/pos"])
def test_a_missing_part_is_named(tmp_path, missing):
    kept = {name: data for name, data in REVIEWS.items() if missing not in name}
    for source in (make_tar(tmp_path / "part.tar.gz", kept), make_folder(tmp_path / "part", kept)):
        with pytest.raises(FileNotFoundError, match=rf"^{source}(: |/)aclImdb/{missing} holds no reviews"):
            read(source)


def test_a_source_that_is_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder or archive"):
        read(tmp_path / "nowhere")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ValueError, match="text cannot be read as a zip or tar archive"):
        read(tmp_path / "text")


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2", "zip"])
def test_an_archive_cut_short_is_refused(tmp_path, mode):
    # Reviews of digits that do not compress away, and the cut after all four folders: nothing else would tell.
    many = REVIEWS | {f"aclImdb/test/neg/{row}_1.txt": str(row**200).encode() for row in range(2, 500)}
    archive = make(tmp_path / "a", many, mode)
    assert len(read(archive)["valid"]) == 500
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size * 3 // 4])
    with pytest.raises(ValueError, match="a cannot be read as a zip or tar archive"):
        read(archive)


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "zip"])
def test_a_damaged_archive_is_never_read_as_other_text(tmp_path, mode):
    """tarfile stops before the checksum of the whole; a zip archive's name may be damaged where it is looked for."""
    files = {**REVIEWS, "aclImdb/train/pos/3_9.txt": bytes(random.Random(1).choices(b"abcdefgh ", k=3000))}
    archive = make(tmp_path / "a", files, mode)
    expected, content, chance, refused = read(archive), archive.read_bytes(), random.Random(2), 0
    for _ in range(150):
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= chance.randrange(1, 256)
        archive.write_bytes(damaged)
        try:
            assert read(archive) == expected
        except (ValueError, FileNotFoundError):
            refused += 1
    assert refused > 50


@pytest.fixture
def mirror(tmp_path, monkeypatch) -> Iterator[str]:
    """A server with a small archive, its checksum in place of the official one."""
    (tmp_path / "served").mkdir()
    archive = make_tar(tmp_path / "served" / ARCHIVE, REVIEWS)
    checksum = f"md5:{pooch.file_hash(str(archive), alg='md5')}"
    monkeypatch.setattr("fairseq_linformer.data.prepare.imdb.DOWNLOADS", {ARCHIVE: checksum})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with served(tmp_path / "served") as address:
        yield address


def test_a_download_from_a_mirror(mirror, tmp_path):
    assert read(mirror) == EXPECTED
    shutil.rmtree(tmp_path / "served")
    assert read(f"{mirror}/") == EXPECTED, "not from the cache"


@pytest.mark.slow  # pooch waits before it tries again
def test_a_download_with_another_checksum_is_refused(mirror, tmp_path):
    make_tar(tmp_path / "served" / ARCHIVE, {**REVIEWS, "aclImdb/test/pos/1_7.txt": b"another"})
    with pytest.raises(UserError, match=rf"{ARCHIVE}.* does not match"):
        read(mirror)
    assert not list((tmp_path / "cache").rglob(f"*{ARCHIVE}"))


def test_the_rows_are_reported_beside_the_official_ones(tmp_path, monkeypatch):
    make_folder(tmp_path, REVIEWS)

    def reports() -> list[str]:
        splits = read_imdb(tmp_path)
        assert [len(list(read.examples)) for read in splits.values()] == [3, 2]
        return [read.report(split) for split, read in splits.items()]

    assert reports() == [
        "train: 3 rows, 2 negative, 1 positive (officially 25,000, the same number per label)",
        "valid: 2 rows (officially 25,000)",
    ]
    monkeypatch.setattr("fairseq_linformer.data.prepare.imdb.OFFICIAL_ROWS", 2)
    assert reports()[1] == "valid: 2 rows (as in the official data)"
    monkeypatch.setattr("fairseq_linformer.data.prepare.imdb.OFFICIAL_ROWS", 3)
    assert reports()[0].endswith("(officially 3, the same number per label)"), "labels other than the official ones"


def test_the_script_prepares_an_archive_with_the_tokenizer_of_a_run(tmp_path, corpus, capsys):
    archive = make_zip(tmp_path / "a.zip", dict.fromkeys(REVIEWS, b"the old dog barks today"))
    tokenizer = write_run(tmp_path / "run", corpus)
    arguments = ["--source", str(archive), "--tokenizer", str(tokenizer), "--out", str(tmp_path / "out")]
    main(["prepare", "imdb", *arguments])
    printed = capsys.readouterr().out
    assert printed.endswith(f"\nnext: linformer finetune {tokenizer} --data {tmp_path} --tasks out\n")
    assert "single-label: 0 = negative, 1 = positive" in printed
    assert "valid: 2 rows (officially 25,000)\n" in printed
    assert (tmp_path / "out" / "dict.txt").read_bytes() == (corpus / "dict.txt").read_bytes()


@pytest.mark.exhaustive
@pytest.mark.real_data
def test_the_sample_archive_and_its_folder_agree(real_data, tmp_path):
    source = real_data / "aclImdb_v1_10k.tar.xz"
    rows = read(source)
    for split, count in {"train": 5000, "valid": 2500}.items():
        assert Counter(row.label for row in rows[split]) == {"negative": count, "positive": count}
    assert not any("<br" in row.text for row in itertools.chain(*rows.values()))
    shutil.unpack_archive(source, tmp_path)
    assert read(tmp_path) == rows
