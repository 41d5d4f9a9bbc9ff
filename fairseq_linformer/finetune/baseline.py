"""What no model of language is needed for: the majority class, and TF-IDF with a linear SVM, on a prepared folder.

The majority class is the commonest label of train for every row: the mean of scores, the commonest tag of words.

The features of TF-IDF are words and pairs of neighbours with sublinear counts; of pairs of texts those of both, their
products and their differences. On them stands a linear SVM (Fan et al., 2008, "LIBLINEAR"; one against the
rest for several classes); ridge regression for scores. For token labels the features are the word, its ends and shape,
and its neighbours. The strength of the regularisation is the best of STRENGTHS by cross-validation within train. What
is scored is looked at once. The same folder gives the same figures.
"""

import itertools
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset
from scipy.sparse import csr_matrix, hstack
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.svm import LinearSVC

from ..data.summary import read_summary
from ..data.task_record import Task
from ..data.tokenizer import DICTIONARY_FILE, Tokenizer, load_dictionary, load_tokenizer
from .metrics import score

STRENGTHS = (0.1, 1.0, 10.0)  # C of the SVM, 1 / alpha of ridge regression
FOLDS = 3
MOST_ROWS = 4_000  # that cross-validation looks at: enough to tell which strength is best
MOST_SENTENCES = 500  # likewise, of token labels
MOST_WORDS = 200_000  # that token labels are learned from, for the same time as that of texts
MANY_ROWS = 1_000  # from which on what stands in one row alone is left out: most pairs of words
TOKEN = r"\w+|[^\w\s]"  # words and signs: in 1-2-grams "not good", and emoji
HASHED = 2**20
TOLERANCE = 0.1  # LIBLINEAR's own; scikit-learn's 1e-4 takes several times as long for the same figures


@dataclass(frozen=True)
class _Split:
    """Rows of a split: texts of each, or words, and its label as ``score`` takes it."""

    texts: list[list[str]]
    labels: list


class Baselines(NamedTuple):
    """The metrics of each, times 100, by split that is scored: ``{"valid": {"accuracy": 81.5}}``."""

    words: dict[str, dict[str, float]]
    majority: dict[str, dict[str, float]]


def baselines(folder: Path) -> Baselines:
    """What TF-IDF with a linear SVM and the majority class reach.

    Args:
        folder: of a task, as ``write_labelled`` wrote it.

    Raises:
        FileNotFoundError: it is none, or lacks train or what is scored.
        UserError: its summary is damaged.
    """
    task, tokenizer = read_summary(folder).task, load_tokenizer(folder)
    splits = {split: _read_split(folder, split, task, tokenizer) for split in ("train", *task.scored)}
    train = splits["train"]
    if task.kind == "token-label":
        ends = itertools.accumulate(len(words) for words in train.labels)
        kept = max(1, sum(end <= MOST_WORDS for end in ends))
        train = _Split(train.texts[:kept], train.labels[:kept])
    scored = {split: rows for split, rows in splits.items() if split != "train"}
    predicted = learn_and_predict(
        task, train.texts, train.labels, {split: rows.texts for split, rows in scored.items()}
    )
    majority = _majority(task, splits["train"].labels)
    return Baselines(
        {
            split: score(task, rows.labels, _in_rows(task, predicted[split], rows.labels))
            for split, rows in scored.items()
        },
        {
            split: score(task, rows.labels, _in_rows(task, [majority] * len(_targets(task, rows.labels)), rows.labels))
            for split, rows in scored.items()
        },
    )


def _majority(task: Task, labels: Sequence) -> object:
    """What the majority class says of a row of the matrix."""
    targets = _targets(task, labels)
    return float(np.mean(targets)) if task.kind == "regression" else Counter(targets).most_common(1)[0][0]


def learn_and_predict(
    task: Task, texts: Sequence[Sequence[str]], labels: Sequence, asked: Mapping[str, Sequence[Sequence[str]]]
) -> dict[str, list]:
    """What the baseline says of texts, by split: a label per text; of token labels one per word, in one list.

    Args:
        task: its kind and its classes.
        texts: to learn from, one or two per row; of token labels, the words of each row.
        labels: of each, as ``score`` takes them.
        asked: the texts of each split.
    """
    features = _Features(task, texts)
    matrices = {split: features.of(rows) for split, rows in asked.items()}
    matrix = features.of(texts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of a strength that is then not the best
        warnings.filterwarnings("ignore", "Label .* is present in all training examples|Label not .* is present")
        strength = _best_strength(task, matrix, labels)
        return {split: _predict(task, strength, matrix, labels, matrices[split]) for split in matrices}


def _read_split(folder: Path, split: str, task: Task, tokenizer: Tokenizer) -> _Split:
    names = ["input0", "input1"] if (folder / "input1").is_dir() else ["input0"]
    columns = [_items(folder / name / split) for name in names]
    if task.kind == "regression":
        numbers = (folder / "label" / f"{split}.label").read_text(encoding="utf-8").split()
        labels: list = [float(number) * task.scale for number in numbers]
    else:
        dictionary = load_dictionary(folder / "label" / DICTIONARY_FILE)
        items = _items(folder / "label" / split)
        if task.kind == "token-label":
            starts = [np.flatnonzero(item[:-1] != dictionary.pad()) for item in items]
            labels = [
                tuple(dictionary[label] for label in item[places]) for item, places in zip(items, starts, strict=True)
            ]
            rows = zip(columns[0], starts, strict=True)
            return _Split([tokenizer.decode(np.split(ids[:-1], places[1:])) for ids, places in rows], labels)
        labels = [tuple(dictionary[label] for label in item[:-1]) for item in items]
        if task.kind == "single-label":
            labels = [label for (label,) in labels]
    return _Split([list(row) for row in zip(*map(tokenizer.decode, columns), strict=True)], labels)


def _items(prefix: Path) -> list[np.ndarray]:
    """The items of a dataset of fairseq's, (tokens,) each.

    Raises:
        FileNotFoundError: there is none.
    """
    if not MMapIndexedDataset.exists(str(prefix)):
        raise FileNotFoundError(f"{prefix}.idx and .bin are missing: what the baseline is measured on")
    dataset = MMapIndexedDataset(str(prefix))
    return [dataset[row].numpy() for row in range(len(dataset))]


class _Features:
    """Texts as rows of a sparse matrix, (rows, features), or words, (words, features)."""

    def __init__(self, task: Task, texts: Sequence[Sequence[str]]) -> None:
        self._task = task
        self._vectorizer = TfidfVectorizer(
            ngram_range=(1, 2), sublinear_tf=True, token_pattern=TOKEN, min_df=2 if len(texts) >= MANY_ROWS else 1
        )
        if task.kind != "token-label":
            self._vectorizer.fit(itertools.chain.from_iterable(texts))

    def of(self, texts: Sequence[Sequence[str]]) -> csr_matrix:
        if self._task.kind == "token-label":
            hasher = FeatureHasher(HASHED, input_type="string", alternate_sign=False)
            return hasher.transform(itertools.chain.from_iterable(map(_word_features, texts)))
        parts = [self._vectorizer.transform(column) for column in zip(*texts, strict=True)]
        if len(parts) == 2:
            first, second = parts
            parts += [first.multiply(second), abs(first - second)]
        return hstack(parts, format="csr")


def _word_features(words: Sequence[str]) -> Iterator[list[str]]:
    """Of each word of a row: itself and its ends and shape, and the two words on either side."""
    padded = ["<s>", "<s>", *(word.strip() for word in words), "</s>", "</s>"]
    low = [word.lower() for word in padded]
    for place in range(2, len(padded) - 2):
        word = padded[place]
        shape = re.sub(r"[^\W\d_]", "x", re.sub(r"[A-Z]", "X", re.sub(r"\d", "9", word)))
        near = [f"{step}={low[place + step]}" for step in (-2, -1, 0, 1, 2)]
        pairs = [f"-1,0={low[place - 1]} {low[place]}", f"0,1={low[place]} {low[place + 1]}"]
        yield [*near, *pairs, f"shape={shape[:8]}", f"begin={low[place][:3]}", f"end={low[place][-3:]}", "bias"]


def _targets(task: Task, labels: Sequence) -> list:
    """A label per row of the matrix."""
    return list(itertools.chain.from_iterable(labels)) if task.kind == "token-label" else list(labels)


def _in_rows(task: Task, predictions: Sequence, like: Sequence) -> list:
    """Predictions, one per row of the matrix, as labels of texts: for token labels as many in a tuple as `like` has."""
    if task.kind != "token-label":
        return list(predictions)
    remaining = iter(predictions)
    return [tuple(itertools.islice(remaining, len(row))) for row in like]


def _best_strength(task: Task, matrix: csr_matrix, labels: Sequence) -> float:
    """That of STRENGTHS with the best mean of the headline metrics over FOLDS of train."""
    most = MOST_SENTENCES if task.kind == "token-label" else MOST_ROWS
    rows = np.random.default_rng(1).permutation(len(labels))[:most]
    if len(rows) < FOLDS:
        return 1.0
    lengths = [len(row) if task.kind == "token-label" else 1 for row in labels]
    places = np.split(np.arange(matrix.shape[0]), np.cumsum(lengths)[:-1])  # of each text, its rows of the matrix
    means = []
    for strength in STRENGTHS:
        scores = []
        for fold in range(FOLDS):
            held, kept = rows[fold::FOLDS], np.delete(rows, np.s_[fold::FOLDS])
            held_places, kept_places = (np.concatenate([places[row] for row in part]) for part in (held, kept))
            known, wanted = ([labels[row] for row in part] for part in (kept, held))
            predicted = _predict(task, strength, matrix[kept_places], known, matrix[held_places])
            found = score(task, wanted, _in_rows(task, predicted, wanted))
            scores.append(np.mean([found[name] for name in task.headline]))
        means.append(np.mean(scores))
    return STRENGTHS[int(np.argmax(means))]


def _predict(task: Task, strength: float, known: csr_matrix, labels: Sequence, asked: csr_matrix) -> list:
    """What is learned from the rows of `known` and their labels says of the rows of `asked`."""
    targets = _targets(task, labels)
    if task.kind == "regression":
        return Ridge(alpha=1 / strength, solver="sparse_cg").fit(known, targets).predict(asked).tolist()
    svm = LinearSVC(C=strength, tol=TOLERANCE, random_state=1)
    if task.kind == "multi-label":
        classes = MultiLabelBinarizer(classes=task.classes)
        model = OneVsRestClassifier(svm).fit(known, classes.fit_transform(targets))
        return classes.inverse_transform(model.predict(asked))
    if len(set(targets)) == 1:
        return targets[:1] * asked.shape[0]
    return svm.fit(known, targets).predict(asked).tolist()
