"""Baselines without a neural network, on a prepared folder: TF-IDF with a linear SVM, and the majority class.

TF-IDF has words and pairs of neighbouring words as features, with sublinear counts; for pairs of texts those of both,
their products and their differences. A linear SVM classifies them (Fan et al., 2008, "LIBLINEAR"; one against the rest
for several classes), or ridge regression predicts scores. For token labels the features are the word, its affixes and
shape, and its neighbours. Cross-validation within train chooses the regularisation.

The majority class is the most frequent label of train for every row: the mean of scores, the most frequent tag.
"""

import contextlib
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset
from scipy.sparse import csr_matrix, hstack
from sklearn.base import BaseEstimator
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.svm import LinearSVC

from ..data.dictionaries import DICTIONARY_FILE, load_dictionary
from ..data.subword_models import load_tokenizer
from ..data.task_record import Task, has_pairs, read_summary
from ..data.tokenizer import Tokenizer
from ..errors import UserError
from .metrics import score

STRENGTHS = (0.1, 1.0, 10.0)  # C of the SVM, 1 / alpha of ridge regression
DEFAULT_STRENGTH = 1.0  # if cross-validation is not possible
FOLDS = 3
MAX_TEXTS, MAX_SENTENCES = 4_000, 500  # of cross-validation, the latter for token labels
MAX_WORDS = 200_000  # training words for token labels, which take as long as texts do
MIN_TEXTS_FOR_PRUNING = 1_000  # above which features of a single text are left out: most pairs of words
TOKEN = r"\w+|[^\w\s]"  # words and signs: in 1-2-grams "not good", and emoji
HASHED_FEATURES = 2**20
TOLERANCE = 0.1  # LIBLINEAR's default; scikit-learn's 1e-4 takes several times as long for the same metrics

Texts = Sequence[Sequence[str]]  # one text or two per row; for token labels the words of each row


class Baselines(NamedTuple):
    """Metrics of each, times 100, by scored split: ``{"valid": {"accuracy": 81.5}}``."""

    tf_idf: dict[str, dict[str, float]]
    majority: dict[str, dict[str, float]]


def fit_baselines(folder: Path) -> Baselines:
    """Train both baselines on the split train of a prepared folder, and score them on the task's scored splits."""
    task, tokenizer = read_summary(folder).task, load_tokenizer(folder)
    train = _read_split(folder, "train", task, tokenizer)
    scored = {split: _read_split(folder, split, task, tokenizer) for split in task.scored}
    model, flat = TfIdf(task, *train), _flatten(task, train[1])
    constant = float(np.mean(flat)) if task.kind == "regression" else Counter(flat).most_common(1)[0][0]

    def evaluate(predict: Callable[[Texts], list]) -> dict[str, dict[str, float]]:
        return {split: score(task, labels, predict(texts)) for split, (texts, labels) in scored.items()}

    return Baselines(
        tf_idf=evaluate(model.predict),
        majority=evaluate(lambda texts: _group(task, itertools.repeat(constant), texts)),
    )


def _flatten(task: Task, labels: Sequence) -> list:
    return list(itertools.chain.from_iterable(labels)) if task.kind == "token-label" else list(labels)


def _group(task: Task, flat: Iterable, texts: Texts) -> list:
    """Return one label per text, from one label per row of the feature matrix."""
    flat = iter(flat)
    if task.kind != "token-label":
        return list(itertools.islice(flat, len(texts)))
    return [tuple(itertools.islice(flat, len(words))) for words in texts]


def _read_split(folder: Path, split: str, task: Task, tokenizer: Tokenizer) -> tuple[Texts, list]:
    """Return the texts of a split, and their labels in the form of ``score``."""
    names = ["input0", "input1"] if has_pairs(folder) else ["input0"]
    columns = [_read_items(folder / name / split) for name in names]
    texts = list(zip(*map(tokenizer.decode, columns), strict=True))
    if task.kind == "regression":
        numbers = (folder / "label" / f"{split}.label").read_text(encoding="utf-8").split()
        return texts, [float(number) * task.scale for number in numbers]

    items, dictionary = _read_items(folder / "label" / split), load_dictionary(folder / "label" / DICTIONARY_FILE)
    if task.kind == "token-label":
        starts = [np.flatnonzero(item[:-1] != dictionary.pad()) for item in items]  # padding inside words
        words = [np.split(ids[:-1], row[1:]) for ids, row in zip(columns[0], starts, strict=True)]
        labels = [tuple(dictionary[label] for label in item[row]) for item, row in zip(items, starts, strict=True)]
        return list(map(tokenizer.decode, words)), labels

    labels = [tuple(dictionary[label] for label in item[:-1]) for item in items]
    return texts, labels if task.kind == "multi-label" else [label for (label,) in labels]


def _read_items(prefix: Path) -> list[np.ndarray]:
    """Return the items of one of fairseq's datasets, (tokens,) each."""
    if not MMapIndexedDataset.exists(str(prefix)):
        raise FileNotFoundError(f"{prefix}.idx and .bin are missing")
    dataset = MMapIndexedDataset(str(prefix))
    return [dataset[row].numpy() for row in range(len(dataset))]


class TfIdf:
    """TF-IDF with a linear model, trained on texts and their labels in the form of ``score``."""

    def __init__(self, task: Task, texts: Texts, labels: Sequence) -> None:
        if task.kind == "token-label":
            ends = itertools.accumulate(map(len, labels))
            num_texts = max(1, sum(end <= MAX_WORDS for end in ends))
            texts, labels = texts[:num_texts], labels[:num_texts]
        self._task = task
        self._binarizer = MultiLabelBinarizer(classes=task.classes)
        self._vectorizer = None if task.kind == "token-label" else _fit_vectorizer(texts)

        targets = _flatten(task, labels)
        array = self._binarizer.fit_transform(targets) if task.kind == "multi-label" else np.asarray(targets)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the warning is of a strength that is not the best
            warnings.filterwarnings("ignore", "Label .* is present in all training examples|Label not .* is present")
            self._model = self._fit(self._features(texts), array, texts, labels)

    def predict(self, texts: Texts) -> list:
        """Return the labels of texts in the form of ``score``."""
        return self._to_labels(self._model.predict(self._features(texts)), texts)

    def _to_labels(self, outputs: np.ndarray, texts: Texts) -> list:
        is_multi_label = self._task.kind == "multi-label"
        flat = self._binarizer.inverse_transform(outputs) if is_multi_label else outputs.tolist()
        return _group(self._task, flat, texts)

    def _features(self, texts: Texts) -> csr_matrix:
        """Return a matrix with a row per text, or per word for token labels."""
        if self._vectorizer is None:
            hasher = FeatureHasher(HASHED_FEATURES, input_type="string", alternate_sign=False)
            return hasher.transform(itertools.chain.from_iterable(map(_word_features, texts)))
        parts = [self._vectorizer.transform(column) for column in zip(*texts, strict=True)]
        if len(parts) == 2:
            first, second = parts
            parts += [first.multiply(second), abs(first - second)]
        return hstack(parts, format="csr")

    def _fit(self, features: csr_matrix, targets: np.ndarray, texts: Texts, labels: Sequence) -> BaseEstimator:
        if self._task.kind in ("single-label", "token-label") and len(np.unique(targets)) < 2:
            return DummyClassifier().fit(features, targets)

        of_words = self._task.kind == "token-label"
        text_of_row = np.repeat(np.arange(len(texts)), list(map(len, labels)) if of_words else 1)
        limit = MAX_SENTENCES if of_words else MAX_TEXTS
        sample = np.sort(np.random.default_rng(1).permutation(len(texts))[:limit])
        rows = np.flatnonzero(np.isin(text_of_row, sample))
        sampled_texts, sampled_labels = ([column[text] for text in sample] for column in (texts, labels))

        def validate(strength: float) -> float:
            model = _linear_model(self._task.kind, strength)
            folds = {"cv": GroupKFold(FOLDS), "groups": text_of_row[rows]}
            outputs = cross_val_predict(model, features[rows], targets[rows], **folds)
            metrics = score(self._task, sampled_labels, self._to_labels(outputs, sampled_texts))
            return float(np.mean([metrics[name] for name in self._task.headline]))

        strength = DEFAULT_STRENGTH
        if len(sample) >= FOLDS:
            with contextlib.suppress(ValueError):  # a fold of one class alone
                strength = max(STRENGTHS, key=validate)
        return _linear_model(self._task.kind, strength).fit(features, targets)


def _fit_vectorizer(texts: Texts) -> TfidfVectorizer:
    """Return a vectorizer with the features of several texts, or of all if there are no such features."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=TOKEN)
    columns = list(itertools.chain.from_iterable(texts))
    if len(texts) >= MIN_TEXTS_FOR_PRUNING:
        with contextlib.suppress(ValueError):  # rows of one long word each, for example
            return vectorizer.set_params(min_df=2).fit(columns)
    try:
        return vectorizer.set_params(min_df=1).fit(columns)
    except ValueError as error:
        raise UserError("the texts to train on have no words") from error


def _word_features(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the features of each word of a row: itself, its affixes and shape, and two words on either side."""
    padded = ["<s>", "<s>", *(word.strip() for word in words), "</s>", "</s>"]
    low = [word.lower() for word in padded]
    for index in range(2, len(padded) - 2):
        word = padded[index]
        shape = re.sub(r"[^\W\d_]", "x", re.sub(r"[A-Z]", "X", re.sub(r"\d", "9", word)))
        neighbours = [f"{step}={low[index + step]}" for step in (-2, -1, 0, 1, 2)]
        pairs = [f"-1,0={low[index - 1]} {low[index]}", f"0,1={low[index]} {low[index + 1]}"]
        yield [*neighbours, *pairs, f"shape={shape[:8]}", f"begin={low[index][:3]}", f"end={low[index][-3:]}", "bias"]


def _linear_model(label_type: str, strength: float) -> BaseEstimator:
    if label_type == "regression":
        return Ridge(alpha=1 / strength, solver="sparse_cg")
    svm = LinearSVC(C=strength, tol=TOLERANCE, random_state=1)
    return OneVsRestClassifier(svm) if label_type == "multi-label" else svm
