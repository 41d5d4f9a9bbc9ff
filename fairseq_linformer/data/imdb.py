"""The IMDB reviews (Maas et al., 2011, "Large Movie Review Dataset v1.0") in their official layout, aclImdb/.

The official data has no development set. Published results, those of RoBERTa's and Linformer's papers among them, are
reported on the official test set, so it becomes the split "valid": whoever tunes on it should hold out part of train.
The unlabelled reviews (train/unsup) are left out.
"""

import lzma
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from .classification import Example

LABELS = {"neg": "negative", "pos": "positive"}  # folder: name of the class
SPLITS = {"train": "train", "valid": "test"}  # fairseq's split: folder
REVIEW = re.compile(r"\d+_\d+\.txt")  # <number>_<stars>.txt
MEMBER = re.compile(rf"(?:\./)?aclImdb/(?P<folder>(?:train|test)/(?:neg|pos))/(?P<name>{REVIEW.pattern})")
REVIEW_BYTES = 1_000_000  # the longest official review has 14 kB; anything near this is no review
LINE_BREAKS = re.compile(r"(?:\s*<br />)+\s*")


def read_imdb(source: Path) -> dict[str, Iterator[Example]]:
    """The rows of train and valid, all negative reviews before the positive ones: shuffle them to train.

    `source` is the folder aclImdb, the folder that holds it, or the archive as downloaded (.tar.gz, also .tar.xz,
    .tar.bz2 or .tar), of which nothing is unpacked to disk; its reviews are held in memory, 66 MB for the full set.
    Both give the same rows in the same order: by split, label and file name.
    FileNotFoundError: a folder is missing, or is without reviews. ValueError: not an archive, or a damaged one;
    later, a review that is not UTF-8.
    """
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist: expected the folder aclImdb or its archive")
    reviews = _folder_reviews(source) if source.is_dir() else _archive_reviews(source)
    for split_folder in SPLITS.values():
        for label_folder in LABELS:
            if not reviews.get(f"{split_folder}/{label_folder}"):
                raise FileNotFoundError(f"{source}: no reviews in aclImdb/{split_folder}/{label_folder}")
    return {split: _examples(reviews, folder) for split, folder in SPLITS.items()}


Reviews = dict[str, dict[str, "bytes | Path"]]  # folder such as train/neg: file name: what the file holds, or the file


def _folder_reviews(source: Path) -> Reviews:
    root = source / "aclImdb" if (source / "aclImdb").is_dir() else source
    folders = [f"{split}/{label}" for split in SPLITS.values() for label in LABELS]
    return {
        folder: {file.name: file for file in (root / folder).iterdir() if REVIEW.fullmatch(file.name)}
        for folder in folders
        if (root / folder).is_dir()
    }


def _archive_reviews(archive: Path) -> Reviews:
    """Reads the regular files of the official layout, in one pass, into memory; ignores every other member.

    No member's name ever becomes a path, so what a hostile archive names is not opened or created.
    """
    reviews: Reviews = {}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                match = MEMBER.fullmatch(member.name)
                # A link is no regular file; a member of type "sparse" is, and may claim any size.
                if match is None or not member.isfile():
                    continue
                if member.size > REVIEW_BYTES:
                    raise ValueError(f"{archive}: {member.name} has {member.size:,} bytes, at most {REVIEW_BYTES:,}")
                file = members.extractfile(member)
                if file is not None:
                    reviews.setdefault(match["folder"], {})[match["name"]] = file.read()
    except (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{archive} cannot be read as a tar archive: {error}") from error
    return reviews


def _examples(reviews: Reviews, folder: str) -> Iterator[Example]:
    for label_folder, label in LABELS.items():
        yield from _labelled(reviews[f"{folder}/{label_folder}"].items(), f"{folder}/{label_folder}", label)


def _labelled(files: Iterable[tuple[str, "bytes | Path"]], folder: str, label: str) -> Iterator[Example]:
    for name, content in sorted(files, key=lambda file: file[0]):
        data = content.read_bytes() if isinstance(content, Path) else content
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{folder}/{name}: not UTF-8 ({error})") from error
        yield Example(LINE_BREAKS.sub(" ", text), label)
