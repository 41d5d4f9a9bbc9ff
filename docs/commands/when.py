"""The vectors of a published encoder under logistic regression, and the picture of docs/when.md:

    PYTHONPATH=scripts python docs/commands/when.py ENCODER DATA OUT RESULTS [RESULTS...]

ENCODER is the checkpoint of linformer import, DATA its prepared tasks, each RESULTS a folder of linformer finetune. OUT
gets vectors, computed once, and when.png. A line of the output is a task, a number of rows, and the accuracy on test.
"""

import sys
from pathlib import Path

import numpy as np
from benchmarking.plots import Panel, draw
from benchmarking.sentences import SentenceEncoder
from fairseq.data.data_utils import load_indexed_dataset
from sklearn.linear_model import LogisticRegression

from fairseq_linformer.data.training_rows import first_rows
from fairseq_linformer.finetune.results import read_tables

BASELINE = "TF-IDF + linear SVM"
SEEDS = (1, 2, 3)

checkpoint, data, out, *results = map(Path, sys.argv[1:])
encoder = SentenceEncoder("vectors", checkpoint, "cpu")


def vectors(task: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Of each row its vector, (N, d), and its class, (N,)."""
    texts, labels = (load_indexed_dataset(str(data / task / name / split), None) for name in ("input0", "label"))
    file = out / f"{task}.{split}.npy"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, encoder.embed([texts[row].numpy()[:-1][: encoder.longest - 2] for row in range(len(texts))]))
    return np.load(file), np.array([int(labels[row][0]) for row in range(len(labels))])


def probe(task: str, counts: list[int]) -> dict[int, list[float]]:
    """Accuracy on test by the number of rows, with those that fine-tuning has; of one seed where these are all."""
    (x, y), (x_test, y_test) = vectors(task, "train"), vectors(task, "test")
    found = {}
    for count in counts:
        found[count] = []
        for seed in SEEDS if count < len(y) else SEEDS[:1]:
            rows = first_rows(data / task, "single-label", count, seed)
            model = LogisticRegression(C=10, max_iter=1000).fit(x[rows], y[rows])
            found[count].append(100 * model.score(x_test, y_test))
        print(task, f"{count:,}", *(f"{score:.1f}" for score in found[count]), sep="\t", flush=True)
    return found


tables, _ = read_tables(results)
panels = []
for task in dict.fromkeys(row["task"] for row in next(iter(tables.values()))):
    curves: dict[str, dict[int, list[float]]] = {}
    for name, rows in tables.items():
        for row in rows:
            if (row["task"], row["split"], row["metric"]) == (task, "test", "accuracy"):
                curves.setdefault(name, {})[row["rows"][0]] = row["values"]
                curves.setdefault(BASELINE, {})[row["rows"][0]] = [row["baseline"]]
    counts = sorted(curves[BASELINE])
    curves["vectors of a published encoder"] = probe(task, counts)
    panels.append(Panel(curves, title=task, x="labelled rows", y="accuracy on test", scale="lengths", log=False))
draw([panels], out / "when.png")
