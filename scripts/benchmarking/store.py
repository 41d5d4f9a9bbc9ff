"""The results of a study: each is computed once, and belongs to all that it was made of."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import fairseq_linformer
from fairseq_linformer.errors import UserError, one_line
from fairseq_linformer.system.files import LOCK_FILE, lock, write_whole
from fairseq_linformer.system.state import read_state

Figures = dict[str, Any]

STUDY_FILE = "study.json"
PACKAGE = Path(fairseq_linformer.__file__).parent
REMEDY = "name another --out"


class _Kept(TypedDict):
    made_of: dict[str, Any]
    result: Any
    digest: str  # of the result


class Store:
    """The folder of a study, in which every result is a file ``NAME-DIGEST.json``.

    The digest is that of all that the result was made of, so that one of other options, code or data is never taken for
    it. What all results have in common is in ``study.json``.

    Args:
        folder: is made when the study begins.
        settings: what all results share: the study's name, say.

    Raises:
        UserError: the folder has other settings, or damaged ones.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        self.folder, self.settings = folder, json.loads(json.dumps(settings))
        if (folder / STUDY_FILE).is_file():
            try:
                found = read_state(folder / STUDY_FILE, dict[str, Any])
            except ValueError as error:
                raise UserError(f"{error}: {REMEDY}") from error
            for name, value in self.settings.items():
                if found.get(name) != value:
                    said = f"{name}={one_line(found.get(name))}, not {value}"
                    raise UserError(f"{folder / STUDY_FILE} has {said}: {REMEDY}")

    def begin(self) -> None:
        """Makes the folder this study's, for as long as this object lives.

        Raises:
            OSError: it cannot be made.
            UserError: another process is at work there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / LOCK_FILE).open("a", encoding="utf-8")
        lock(self._lock, f"{self.folder}: another process is at work there")
        write_whole(self.folder / STUDY_FILE, json.dumps(self.settings, indent=1) + "\n")

    def once(self, name: str, made_of: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """A result, plain data, from its file; if there is none, it is computed and kept.

        Args:
            name: of the file, without digest and ending; it may have folders in it.
            made_of: all that the result depends on.
            compute: gives it.

        Raises:
            UserError: the file is damaged.
            OSError: its folder cannot be made.
        """
        file = self.folder / f"{name}-{digest(made_of)}.json"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)  # first: computing may take hours
            result = compute()
            kept = _Kept(made_of=dict(made_of), result=result, digest=digest(result))
            write_whole(file, json.dumps(kept, indent=1) + "\n")
        return _read(file)

    def all(self, folder: str) -> Iterator[Any]:
        """The results in a folder of this one, in the order of their names.

        Raises:
            UserError: a file is damaged.
        """
        yield from map(_read, sorted((self.folder / folder).glob("*-*.json")))


def _read(file: Path) -> Any:
    try:
        kept = read_state(file, _Kept)
        if digest(kept["result"]) != kept["digest"]:
            raise UserError(f"{file} is damaged: its result is not what was written")
    except ValueError as error:
        raise UserError(f"{error}: remove it, or {REMEDY}") from error
    return kept["result"]


def digest(content: Any) -> str:
    """A short hash of plain data."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def code_digest(places: Sequence[Path] = (PACKAGE, Path(__file__).parent)) -> str:
    """A hash of the code in these folders and files; by default of the package's and of the studies'."""
    found = hashlib.sha256()
    for place in places:
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            found.update(str(file.relative_to(place)).encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:12]
