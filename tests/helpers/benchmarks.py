"""Sizes, plans and inputs small enough for tests of the benchmark."""

import json
from pathlib import Path

from benchmarking import suites
from benchmarking.baselines import Sizes
from benchmarking.command import parse
from benchmarking.measuring import Machine
from benchmarking.suites import Plan

SIZES = Sizes(layers=1, embed_dim=24, heads=3, vocabulary=50, length=64, projected_length=16)
MACHINE = Machine("cpu", "float32")


def plan(**changes) -> Plan:
    rest = {"tokens": 128, "lengths": (512,), "device": "cpu", "models": suites.COMPARED}
    return Plan(**{"sizes": SIZES, **rest, **changes})


def options(study: str, *words):
    """Of a study, as typed."""
    return parse(study, [str(word) for word in words])


def write_shards(folder: Path) -> Path:
    """All of a corpus in two shards that tells it from another one; the first shard's folder."""
    for shard in ("shard1", "shard2"):
        (folder / shard).mkdir(parents=True)
        for name in ("corpus.json", "train.idx", "train.bin"):
            (folder / shard / name).touch()
    (folder / "shards.json").write_text(json.dumps({"shards": [["a.txt 1"], ["b.txt 1"]]}))
    return folder / "shard1"
