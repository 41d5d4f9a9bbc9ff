"""IMDB reviews (Maas et al., 2011, "Large Movie Review Dataset v1.0") in their official layout, aclImdb/.

The official data has no development set. Published results, those of RoBERTa's and Linformer's papers among them, are
reported on the official test set, so it becomes the split "valid". To tune hyperparameters, hold out part of train. The
unlabelled reviews (train/unsup) are left out.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .examples import Example
from .sources import as_folder, download, is_address
from .table import decoded

LABELS = {"neg": "negative", "pos": "positive"}  # folder: name of the class
SPLITS = {"train": "train", "valid": "test"}  # fairseq's split: folder
OFFICIAL_ROWS = {"train": 25_000, "valid": 25_000}  # 12,500 of each label
REVIEW = re.compile(r"\d+_\d+\.txt")  # <number>_<stars>.txt
# The members of an archive that are unpacked: the labelled reviews in the official layout.
MEMBER = re.compile(rf"(?:\./)?(?:aclImdb/)?((?:train|test)/(?:neg|pos)/{REVIEW.pattern})")
LINE_BREAKS = re.compile(r"(?:\s*<br />)+\s*")

ARCHIVE = "aclImdb_v1.tar.gz"
# Path below http://ai.stanford.edu/~amaas/data/sentiment, with the checksum that torchtext recorded.
DOWNLOADS = {ARCHIVE: "md5:7c2ac02c03563afcf9b574c7e56c153a"}


@contextlib.contextmanager
def imdb_folder(source: str) -> Iterator[Path]:
    """Yield a folder for `read_imdb`: `source` is one, an archive of one, or the address of the download."""
    path = download(source, DOWNLOADS)[ARCHIVE] if is_address(source) else Path(source)
    with as_folder(path, _review_path, source) as folder:
        yield folder


def _review_path(member: str) -> str | None:
    match = MEMBER.fullmatch(member)
    return match and f"aclImdb/{match[1]}"


def read_imdb(folder: Path) -> dict[str, Iterator[Example]]:
    """Read the splits train and valid. Rows are sorted by label, then by file name: shuffle them to train.

    Args:
        folder: aclImdb, or the folder that holds it.

    Raises:
        FileNotFoundError: a folder of the layout is missing, or holds no reviews.
        UserError: a file that is consumed is not UTF-8.
    """
    root = folder / "aclImdb" if (folder / "aclImdb").is_dir() else folder
    return {
        split: _examples({label: _reviews(root / split_folder / name) for name, label in LABELS.items()})
        for split, split_folder in SPLITS.items()
    }


def _reviews(folder: Path) -> list[Path]:
    reviews = sorted(file for file in folder.glob("*") if REVIEW.fullmatch(file.name))
    if not reviews:
        raise FileNotFoundError(f"{folder} holds no reviews: files named NUMBER_STARS.txt")
    return reviews


def _examples(reviews: Mapping[str, Sequence[Path]]) -> Iterator[Example]:
    for label, files in reviews.items():
        for file in files:
            text = LINE_BREAKS.sub(" ", decoded(file.read_bytes(), str(file)))
            yield Example(text, label, location=str(file))
