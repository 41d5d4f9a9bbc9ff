"""A reader for the archive of the Long Range Arena (Tay et al. 2020, arXiv 2011.04006).

The archive lra_release.gz is a tar.gz of 7.7 GB, to be unpacked. Three of its parts are read; the source is the part's
own folder, lra_release, or the folder that holds it:

* ListOps: ``listops-1000/basic_{train,val,test}.tsv`` with the columns Source, Target and a header.
* Retrieval: ``tsv_data/new_aan_pairs.{train,eval,test}.tsv``: label, two identifiers, two texts; no header.
* Pathfinder: ``pathfinder32/curv_contour_length_14/metadata/NUMBER.npy``, which are texts: folder, file and, fourth,
  label of a picture of 32 x 32 grey levels. The first 80 % are train and the last 10 % test: the Arena's shares, in the
  order of the metadata.

Its tasks Text (IMDB in bytes) and Image (CIFAR-10) have data of their own.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image, UnidentifiedImageError

from fairseq_linformer.errors import UserError, check

from . import listops
from .review_tasks import BYTES, as_bytes, from_bytes
from .rows_of_text import FIRST, MARKS, Labelled, Request, TaskData, as_rows, shuffled, symbols_dictionary

SEED = 1
PIXELS, LEVELS = 32, 256
DIFFICULTY = "curv_contour_length_14"
SHARES = {"train": (0.0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1.0)}  # of Pathfinder's pictures


def lra_listops(request: Request) -> TaskData:
    """The archive's expressions, cut to n - 2 symbols; the label is the value."""
    names = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}
    symbols, most = len(listops.SYMBOLS), request.length - MARKS
    return _table_task(request, "listops-1000", names, lambda fields: _expression(fields, most), symbols, classes=10)


def lra_retrieval(request: Request) -> TaskData:
    """Pairs of papers in one row, the first (n - 3) / 2 bytes of each; the label is whether one cites the other.

    The Arena encodes each of the two alone, up to 4,000 bytes, and classifies both vectors."""
    names = {"train": "train", "valid": "eval", "test": "test"}
    files = {split: f"new_aan_pairs.{name}.tsv" for split, name in names.items()}
    most = (request.length - MARKS - 1) // 2
    check("lengths", request.length, most >= 1, "at least 5")
    return _table_task(request, "tsv_data", files, lambda fields: _pair(fields, most), BYTES + 1, classes=2)


def lra_pathfinder(request: Request) -> TaskData:
    """Pictures as rows of 1,024 grey levels; the label is whether a dashed path joins the two dots."""
    least = PIXELS**2 + MARKS
    check("lengths", request.length, request.length >= least, f"at least {least}, the pixels of a picture")
    parts = {}
    metadata = _find(request, "pathfinder32", f"{DIFFICULTY}/metadata")
    files = sorted(metadata.glob("[0-9]*.npy"), key=lambda file: (len(file.stem), file.stem))
    pictures = [picture for file in files for picture in _pictures(file)]
    for split, (begin, end) in SHARES.items():
        some = pictures[int(begin * len(pictures)) : int(end * len(pictures))]
        order = np.random.default_rng(SEED).permutation(len(some))[: _count(request, split)]
        parts[split] = as_rows([_read_picture(*some[number]) for number in order], request.length)
    return TaskData(**parts, dictionary=symbols_dictionary(LEVELS), classes=2)


def _table_task(
    request: Request,
    folder: str,
    names: Mapping[str, str],
    parse: Callable[[list[str]], Labelled],
    symbols: int,
    classes: int,
) -> TaskData:
    """A task of one tab-separated file for each split."""
    parts = {}
    for split, name in names.items():
        examples = shuffled(list(_examples(_find(request, folder, name), parse)), SEED, _count(request, split))
        parts[split] = as_rows(examples, request.length)
    return TaskData(**parts, dictionary=symbols_dictionary(symbols), classes=classes)


def _count(request: Request, split: str) -> int:
    return request.rows if split == "train" else request.tested


def _find(request: Request, folder: str, name: str) -> Path:
    """A file or folder of a part of the archive."""
    source = cast(Path, request.source)
    places = [
        source / inner / name for inner in ("", folder, f"lra_release/{folder}", f"lra_release/lra_release/{folder}")
    ]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise FileNotFoundError(
            f"{source} holds no {name}, nor {folder}/{name}: it must be lra_release, or {folder} in it"
        )
    return found


def _examples(file: Path, parse: Callable[[list[str]], Labelled]) -> Iterator[Labelled]:
    with file.open(encoding="utf-8", errors="replace", newline="\n") as stream:
        for number, line in enumerate(stream, 1):
            fields = line.rstrip("\r\n").split("\t")
            if number == 1 and fields == ["Source", "Target"]:
                continue
            try:
                yield parse(fields)
            except (ValueError, KeyError, IndexError) as error:
                raise UserError(f"{file}: line {number} is not as in the official archive ({error!r})") from error


def _expression(fields: list[str], most: int) -> Labelled:
    source, target = fields
    symbols = source.replace("(", " ").replace(")", " ").split()
    return listops.encode(symbols[:most], int(target))


def _pair(fields: list[str], most: int) -> Labelled:
    label, _, _, *texts = fields
    first, second = (as_bytes(text, most) for text in texts)
    symbols = np.concatenate([first, np.array([FIRST + BYTES], dtype=np.int32), second])
    return Labelled(symbols, int(float(label)), " ".join(from_bytes([first, second])))


def _pictures(metadata: Path) -> Iterator[tuple[Path, int]]:
    """Files and labels, without the empty file that the archive has."""
    for number, line in enumerate(metadata.read_text(encoding="utf-8").splitlines(), 1):
        try:
            folder, name, _, label, *_ = line.split()
            picture, value = metadata.parent.parent / folder / name, int(label)
        except ValueError as error:
            raise UserError(f"{metadata}: line {number} is not as in the official archive ({error})") from error
        if picture.stat().st_size:
            yield picture, value


def _read_picture(file: Path, label: int) -> Labelled:
    try:
        with Image.open(file) as picture:
            levels = np.asarray(picture.convert("L"))
    except UnidentifiedImageError as error:
        raise UserError(f"{file}: not a picture") from error
    if levels.shape != (PIXELS, PIXELS):
        raise UserError(f"{file} has {levels.shape[0]} x {levels.shape[1]} pixels, not {PIXELS} x {PIXELS}")
    flat = levels.flatten().astype(np.int32)
    words = " ".join(f"p{place}l{level // 32}" for place, level in enumerate(flat.tolist()))
    return Labelled(flat + FIRST, label, words)
