"""The reader of the IMDB reviews, from a folder and from archives, hostile ones among them."""

import io
import itertools
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from fairseq_linformer.data.classification import Example
from fairseq_linformer.data.imdb import REVIEW_BYTES, read_imdb

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


def read(source: Path) -> dict[str, list[Example]]:
    return {split: list(rows) for split, rows in read_imdb(source).items()}


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def make_archive(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return path


def official(reviews: dict[str, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [member(name, content) for name, content in reviews.items()]


def make_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2", "w"])
def test_archives_of_any_order_and_compression(tmp_path: Path, mode: str) -> None:
    assert read(make_archive(tmp_path / "download", official({**REVIEWS, **OTHERS}), mode)) == EXPECTED


def test_folder_and_its_parent(tmp_path: Path) -> None:
    make_folder(tmp_path, {**REVIEWS, **OTHERS})
    assert read(tmp_path) == EXPECTED
    assert read(tmp_path / "aclImdb") == EXPECTED


def test_members_may_be_named_from_the_current_folder(tmp_path: Path) -> None:
    assert (
        read(make_archive(tmp_path / "a", official({f"./{name}": data for name, data in REVIEWS.items()}))) == EXPECTED
    )


def test_hostile_members_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (tmp_path / "inside").mkdir()
    archive = make_archive(
        tmp_path / "inside" / "a.tar.gz",
        [
            member("../aclImdb/train/pos/5_9.txt", b"outside"),
            member("/aclImdb/train/pos/6_9.txt", b"absolute"),
            member("aclImdb/train/pos/../pos/7_9.txt", b"detour"),
            member("aclImdb/train/pos/8_9.txt\n", b"line end"),
            member("aclImdb/train/pos/20_9.txt", type=tarfile.SYMTYPE, linkname=str(secret)),
            member("aclImdb/train/pos/21_9.txt", type=tarfile.LNKTYPE, linkname="aclImdb/train/neg/0_3.txt"),
            member("aclImdb/train/pos/22_9.txt", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
            member("aclImdb/train/pos/23_9.txt", type=tarfile.FIFOTYPE),
            member("aclImdb/train/pos/24_9.txt", type=tarfile.DIRTYPE),
            *official(REVIEWS),
        ],
    )
    before = sorted(tmp_path.rglob("*"))
    assert read(archive) == EXPECTED
    assert sorted(tmp_path.rglob("*")) == before


def test_a_member_too_large_for_a_review_is_refused(tmp_path: Path) -> None:
    huge = member("aclImdb/train/pos/9_9.txt", bytes(REVIEW_BYTES + 1))
    with pytest.raises(ValueError, match=r"9_9\.txt has 1,000,001 bytes, at most 1,000,000"):
        read(make_archive(tmp_path / "a", [*official(REVIEWS), huge]))


@pytest.mark.parametrize("missing", ["train/neg", "train/pos", "test/neg", "test/pos"])
def test_a_missing_part_is_named(tmp_path: Path, missing: str) -> None:
    kept = {name: data for name, data in REVIEWS.items() if missing not in name}
    archive = make_archive(tmp_path / "part.tar.gz", official(kept))
    folder = make_folder(tmp_path / "part", kept)
    for source in (archive, folder):
        with pytest.raises(FileNotFoundError, match=rf"{source}: no reviews in aclImdb/{missing}$"):
            read_imdb(source)


def test_a_source_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        read_imdb(tmp_path / "nowhere")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ValueError, match="text cannot be read as a tar archive"):
        read_imdb(tmp_path / "text")


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_a_download_cut_short_is_refused(tmp_path: Path, mode: str) -> None:
    # Reviews of digits that do not compress away, and the cut after all four folders: nothing else would tell.
    many = {f"aclImdb/test/neg/{row}_1.txt": str(row**200).encode() for row in range(2, 500)}
    archive = make_archive(tmp_path / "a", official({**REVIEWS, **many}), mode)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size * 3 // 4])
    with pytest.raises(ValueError, match="cannot be read as a tar archive"):
        read_imdb(archive)


def test_a_review_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a", official({**REVIEWS, "aclImdb/test/pos/3_8.txt": b"\xff"}))
    with pytest.raises(ValueError, match=r"test/pos/3_8\.txt: not UTF-8"):
        read(archive)


@pytest.mark.real_data
def test_the_sample_archive_and_its_folder_agree(real_data: Path, tmp_path: Path) -> None:
    source = real_data / "aclImdb_v1_10k.tar.xz"
    rows = read(source)
    for split, count in {"train": 5000, "valid": 2500}.items():
        assert Counter(row.label for row in rows[split]) == {"negative": count, "positive": count}
    assert not any("<br" in row.text for row in itertools.chain(*rows.values()))
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    assert read(tmp_path) == rows
