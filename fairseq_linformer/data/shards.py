"""Corpora of several folders, of which a training reads one per epoch, in turn: fairseq's ``a:b:c``."""

import json
import os
from pathlib import Path

from ..errors import UserError

REPORT_FILE = "corpus.json"  # of a prepared folder: counts of its text
SHARDS_FILE = "shards.json"  # of a folder of several prepared folders, as version 0.3.0 could make it


def shard_folders(folder: Path) -> list[Path]:
    """Return the prepared folders within a folder that version 0.3.0 made; none of any other folder."""
    listed = folder / SHARDS_FILE
    if not listed.is_file():
        return []
    count = len(json.loads(listed.read_text(encoding="utf-8"))["shards"])
    return [folder / f"shard{number:0{len(str(count))}}" for number in range(1, count + 1)]


def data_paths(data: str) -> str:
    """Return the folders of a corpus with colons between them, as fairseq's tasks take them.

    Raises:
        UserError: one of them was never completed.
    """
    shards = shard_folders(Path(data))
    for shard in shards:
        if not (shard / "train.idx").is_file():
            raise UserError(f"{data} is not complete: {shard} holds no train.idx")
    return os.pathsep.join(map(str, shards)) or data
