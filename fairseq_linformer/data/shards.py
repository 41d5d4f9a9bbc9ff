"""A corpus in shards: folders that a training takes by turns, one per epoch, as fairseq does with a list of folders."""

import os
from pathlib import Path
from typing import NamedTuple, TypedDict

from ..errors import UserError
from ..system.state import read_state

# Of a prepared folder, and so of each shard: what its text holds. Until it is complete, the mark of an unfinished run.
REPORT_FILE = "corpus.json"
SHARDS_FILE = "shards.json"  # of the folder that holds them


class FirstShard(TypedDict):
    """What the first shard was made with.

    valid: the text files, by name and size.
    vocabulary: the options that it was trained with; none where it was given.
    """

    valid: list[str]
    vocabulary: dict[str, int]


class _Files(TypedDict):
    shards: list[list[str]]


class ShardList(_Files, total=False):
    """What SHARDS_FILE holds: the text files of each shard, by name and size; `first` once that shard is complete.

    Earlier versions wrote no `first`.
    """

    first: FirstShard


class Shards(NamedTuple):
    """A folder of shards, and the text files of each, by name and size."""

    folder: Path
    files: list[list[str]]

    @property
    def number(self) -> int:
        return len(self.files)

    def path(self, shard: int) -> Path:
        """The folder of a shard, from 1; the first holds the split valid, too."""
        return self.folder / f"shard{shard:0{len(str(self.number))}}"

    def missing(self) -> list[int]:
        """The shards that are not prepared yet, or lost a file."""
        return [
            shard
            for shard in range(1, self.number + 1)
            if not all((self.path(shard) / name).is_file() for name in (REPORT_FILE, "train.idx", "train.bin"))
        ]


def find_shards(folder: Path) -> Shards | None:
    """The shards that a folder holds, prepared or not; None of any other folder.

    Raises:
        UserError: its list of them is damaged.
    """
    listed = folder / SHARDS_FILE
    return Shards(folder, read_state(listed, ShardList)["shards"]) if listed.is_file() else None


def data_paths(data: str) -> str:
    """What fairseq takes for a corpus: its folder, or for a folder of shards all of these, with colons between them.

    Raises:
        UserError: some shards are not prepared yet, or the folder's list of them is damaged.
    """
    shards = find_shards(Path(data))
    if shards is None:
        return data
    if missing := shards.missing():
        named = ", ".join(f"--shard {shard}" for shard in missing)
        of = f"of {shards.number} shards linformer prepare corpus has not completed"
        raise UserError(f"{data} is not whole: {of} {named}")
    return os.pathsep.join(str(shards.path(shard)) for shard in range(1, shards.number + 1))
