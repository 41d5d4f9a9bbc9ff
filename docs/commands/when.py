"""Vectors of a published encoder under logistic regression, beside what was fine-tuned:

    PYTHONPATH=scripts python docs/commands/when.py ENCODER DATA OUT RESULTS [RESULTS...]

ENCODER is the checkpoint of linformer import, DATA its prepared tasks, each RESULTS the --out of a linformer finetune.
OUT gets vectors, computed once. A line of the output is a task, a name, a number of rows, and accuracies on test, one
per seed.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from benchmarking.sentences import SentenceEncoder
from fairseq.data.data_utils import load_indexed_dataset
from sklearn.linear_model import LogisticRegression

from fairseq_linformer.data.training_rows import first_rows
from fairseq_linformer.finetune.results import read_tables
from fairseq_linformer.finetune.results_table import BASELINE

VECTORS = "published vectors"
LONGEST = 254  # pieces: all-MiniLM-L6-v2 is meant for 256 tokens
COUNTS, SEEDS = (50, 500, 4000), (1, 2, 3)

checkpoint, data, out, *results = map(Path, sys.argv[1:])
encoder = SentenceEncoder("vectors", checkpoint, "cpu")


def vectors(task: str, split: str, rows: list[int]) -> np.ndarray:
    """Of some rows, (N, d)."""
    file = out / f"{task}.{split}.npy"
    if not file.is_file():
        texts = load_indexed_dataset(str(data / task / "input0" / split), None)
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, encoder.embed([texts[row].numpy()[:-1][:LONGEST] for row in rows]))
    return np.load(file)


def labels(task: str, split: str) -> np.ndarray:
    of_split = load_indexed_dataset(str(data / task / "label" / split), None)
    return np.array([int(of_split[row][0]) for row in range(len(of_split))])


def probe(task: str, counts: Iterable[int]) -> dict[int, list[float]]:
    """Accuracy on test by the number of rows, with those that fine-tuning has."""
    y, y_test = labels(task, "train"), labels(task, "test")
    drawn = [(count, first_rows(data / task, "single-label", count, seed)) for count in counts for seed in SEEDS]
    used = sorted({row for _, rows in drawn for row in rows.tolist()})
    x, x_test = vectors(task, "train", used), vectors(task, "test", [*range(len(y_test))])
    place = {row: number for number, row in enumerate(used)}
    found: dict[int, list[float]] = {}
    for count, rows in drawn:
        model = LogisticRegression(C=10, max_iter=1000).fit(x[[place[row] for row in rows]], y[rows])
        found.setdefault(count, []).append(100 * model.score(x_test, y_test))
    return found


tables, _ = read_tables(results)
for task in dict.fromkeys(row["task"] for row in next(iter(tables.values()))):
    curves: dict[str, dict[int, list[float]]] = {}
    for name, rows in tables.items():
        for row in rows:
            if (row["task"], row["split"], row["metric"]) == (task, "test", "accuracy"):
                curves.setdefault(BASELINE, {}).setdefault(row["rows"][0], [row["baseline"]])
                curves.setdefault(f"from {name}", {})[row["rows"][0]] = row["values"]
    curves[VECTORS] = probe(task, [count for count in COUNTS if count in curves[BASELINE]])
    for name, curve in curves.items():
        for count, values in sorted(curve.items()):
            print(task, name, count, *(f"{value:.1f}" for value in values), sep="\t", flush=True)
