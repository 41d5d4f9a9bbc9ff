"""Sizes, plans and inputs small enough for tests of the benchmark."""

import json
from pathlib import Path

import torch
from benchmarking import suites
from benchmarking.baselines import Sizes
from benchmarking.command import parse
from benchmarking.measuring import Machine
from benchmarking.suites import Plan
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

SIZES = Sizes(layers=1, embed_dim=24, heads=3, vocabulary=50, length=64, projected_length=16)
MACHINE = Machine("cpu", "float32")


def plan(**changes) -> Plan:
    rest = {"tokens": 128, "lengths": (512,), "device": "cpu", "models": suites.COMPARED, "reviews": None}
    return Plan(**{"sizes": SIZES, **rest, **changes})


def options(study: str, *words):
    """Of a study, as typed."""
    return parse(study, [str(word) for word in words])


def write_shards(folder: Path) -> Path:
    """All of a corpus in two shards that tells it from another one; the first shard's folder."""
    for shard in ("shard1", "shard2"):
        (folder / shard).mkdir(parents=True)
        (folder / shard / "corpus.json").touch()
    (folder / "shards.json").write_text(json.dumps({"shards": [["a.txt 1"], ["b.txt 1"]]}))
    return folder / "shard1"


def write_reviews(folder: Path, *lengths: int) -> Path:
    """A tiny IMDB as `linformer prepare imdb` writes it."""
    (folder / "input0").mkdir(parents=True)
    builder = MMapIndexedDatasetBuilder(str(folder / "input0" / "train.bin"))
    for length in lengths:
        builder.add_item(torch.ones(length, dtype=torch.int))
    builder.finalize(str(folder / "input0" / "train.idx"))
    return folder
