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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sklearn
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from scipy.sparse import csr_matrix, hstack
from sklearn.base import BaseEstimator
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.svm import LinearSVC

from ..data.dictionaries import DICTIONARY_FILE, load_dictionary
from ..data.task_record import Task, has_pairs, read_summary
from ..data.tokenizer import Tokenizer, load_tokenizer
from ..errors import UserError
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

Texts = Sequence[Sequence[str]]  # of each row one text or two; for token labels its words


class Baselines(NamedTuple):
    """The metrics of each, times 100, by split that is scored: ``{"valid": {"accuracy": 81.5}}``."""

    words: dict[str, dict[str, float]]
    majority: dict[str, dict[str, float]]


class _Split(NamedTuple):
    """Rows of a split, and the label of each as ``score`` takes it."""

    texts: Texts
    labels: list


def baselines(folder: Path, subsets: Sequence[Sequence[int] | None] = (None,)) -> list[Baselines]:
    """What TF-IDF with a linear SVM and the majority class reach that learned from each of some subsets of train.

    Args:
        folder: of a task, as ``write_labelled`` wrote it.
        subsets: the numbers of the rows of each; None for all.

    Raises:
        FileNotFoundError: it is none, or lacks train or what is scored.
        UserError: its summary is damaged.
    """
    task, tokenizer = read_summary(folder).task, load_tokenizer(folder)
    scored = {split: _read_split(folder, split, task, tokenizer) for split in task.scored}
    return [_baselines(task, _read_split(folder, "train", task, tokenizer, rows), scored) for rows in subsets]


def _baselines(task: Task, train: _Split, scored: Mapping[str, _Split]) -> Baselines:
    kept = len(train.labels)
    if task.kind == "token-label":
        ends = itertools.accumulate(map(len, train.labels))
        kept = max(1, sum(end <= MOST_WORDS for end in ends))
    asked = {split: rows.texts for split, rows in scored.items()}
    predicted = learn_and_predict(task, train.texts[:kept], train.labels[:kept], asked)
    targets = _flat(task, train.labels)
    usual = float(np.mean(targets)) if task.kind == "regression" else Counter(targets).most_common(1)[0][0]
    constant = {split: _in_rows(task, itertools.repeat(usual), texts) for split, texts in asked.items()}
    return Baselines(
        *({name: score(task, scored[name].labels, found[name]) for name in scored} for found in (predicted, constant))
    )


def learn_and_predict(task: Task, texts: Texts, labels: Sequence, asked: Mapping[str, Texts]) -> dict[str, list]:
    """What the baseline says of texts, by split: the label of each, as ``score`` takes it.

    Args:
        task: its kind and its classes.
        texts: to learn from.
        labels: of each, as ``score`` takes them.
        asked: the texts of each split.
    """
    features = _Features(task, texts)
    matrices = {split: features.of(rows) for split, rows in asked.items()}
    classes, flat = MultiLabelBinarizer(classes=task.classes), _flat(task, labels)
    targets = classes.fit_transform(flat) if task.kind == "multi-label" else np.asarray(flat)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of a strength that is then not the best
        warnings.filterwarnings("ignore", "Label .* is present in all training examples|Label not .* is present")
        model = _learned(task, features.of(texts), targets, labels, classes)
        found = {split: model.predict(matrix) for split, matrix in matrices.items()}
    return {split: _in_rows(task, _named(task, found[split], classes), asked[split]) for split in found}


def _read_split(
    folder: Path, split: str, task: Task, tokenizer: Tokenizer, rows: Sequence[int] | None = None
) -> _Split:
    """Some rows of a split, all by default."""
    names = ["input0", "input1"] if has_pairs(folder) else ["input0"]
    columns = [_items(folder / name / split, rows) for name in names]
    if task.kind == "token-label":
        return _read_words(columns[0], *_read_labels(folder, split, rows), tokenizer)
    texts = list(zip(*map(tokenizer.decode, columns), strict=True))
    if task.kind == "regression":
        numbers = (folder / "label" / f"{split}.label").read_text(encoding="utf-8").split()
        chosen = numbers if rows is None else [numbers[row] for row in rows]
        return _Split(texts, [float(number) * task.scale for number in chosen])
    items, dictionary = _read_labels(folder, split, rows)
    labels = [tuple(dictionary[label] for label in item[:-1]) for item in items]
    return _Split(texts, labels if task.kind == "multi-label" else [label for (label,) in labels])


def _read_labels(folder: Path, split: str, rows: Sequence[int] | None) -> tuple[list[np.ndarray], Dictionary]:
    return _items(folder / "label" / split, rows), load_dictionary(folder / "label" / DICTIONARY_FILE)


def _read_words(
    rows: Sequence[np.ndarray], items: Sequence[np.ndarray], dictionary: Dictionary, tokenizer: Tokenizer
) -> _Split:
    """Token labels: the words of each row, and as many labels."""
    texts, labels = [], []
    for ids, item in zip(rows, items, strict=True):
        starts = np.flatnonzero(item[:-1] != dictionary.pad())
        texts.append(tokenizer.decode(np.split(ids[:-1], starts[1:])))
        labels.append(tuple(dictionary[label] for label in item[starts]))
    return _Split(texts, labels)


def _items(prefix: Path, rows: Sequence[int] | None) -> list[np.ndarray]:
    """Some items of a dataset of fairseq's, (tokens,) each.

    Raises:
        FileNotFoundError: there is none.
    """
    if not MMapIndexedDataset.exists(str(prefix)):
        raise FileNotFoundError(f"{prefix}.idx and .bin are missing: what the baseline is measured on")
    dataset = MMapIndexedDataset(str(prefix))
    return [dataset[int(row)].numpy() for row in (range(len(dataset)) if rows is None else rows)]


class _Features:
    """Texts as rows of a sparse matrix, (rows, features), or words, (words, features)."""

    def __init__(self, task: Task, texts: Texts) -> None:
        self._of_words = task.kind == "token-label"
        self._vectorizer = TfidfVectorizer(
            ngram_range=(1, 2), sublinear_tf=True, token_pattern=TOKEN, min_df=2 if len(texts) >= MANY_ROWS else 1
        )
        if not self._of_words:
            self._fit([*itertools.chain.from_iterable(texts)])

    def _fit(self, texts: Sequence[str]) -> None:
        """With words that a single text has where no other word is left: rows of one long word each, say.

        Raises:
            UserError: the texts have no words.
        """
        try:
            self._vectorizer.fit(texts)
        except ValueError:
            try:
                self._vectorizer.set_params(min_df=1).fit(texts)
            except ValueError as error:
                raise UserError("the texts to train on have no words") from error

    def of(self, texts: Texts) -> csr_matrix:
        if self._of_words:
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


def _flat(task: Task, labels: Sequence) -> list:
    """A label per row of the matrix."""
    return list(itertools.chain.from_iterable(labels)) if task.kind == "token-label" else list(labels)


def _in_rows(task: Task, flat: Iterable, texts: Sequence) -> list:
    """Labels, one per row of the matrix, as labels of texts: for token labels a tuple with one per word."""
    flat = iter(flat)
    if task.kind != "token-label":
        return list(itertools.islice(flat, len(texts)))
    return [tuple(itertools.islice(flat, len(words))) for words in texts]


def _named(task: Task, outputs: np.ndarray, classes: MultiLabelBinarizer) -> list:
    """What a model gives as labels, one per row of the matrix."""
    return classes.inverse_transform(outputs) if task.kind == "multi-label" else outputs.tolist()


def _learned(
    task: Task, matrix: csr_matrix, targets: np.ndarray, labels: Sequence, classes: MultiLabelBinarizer
) -> BaseEstimator:
    """The model that has learned the targets, one per row of the matrix, with the best strength.

    That is the one with the best mean of the headline metrics over FOLDS of train.
    """
    least = 2 if task.kind in ("single-label", "token-label") else 1  # different targets that a model needs
    if len(np.unique(targets)) < least:
        return DummyClassifier().fit(matrix, targets)
    model, grid = _model(task)
    lengths = [len(row) if task.kind == "token-label" else 1 for row in labels]
    places = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])  # of each text, its rows of the matrix
    most = MOST_SENTENCES if task.kind == "token-label" else MOST_ROWS
    sample = [places[row] for row in np.random.default_rng(1).permutation(len(labels))[:most]]
    if len(sample) < FOLDS or len(np.unique(targets[np.concatenate(sample)])) < least:
        return model.fit(matrix, targets)
    held = [sample[fold::FOLDS] for fold in range(FOLDS)]
    kept = [[text for number, text in enumerate(sample) if number % FOLDS != fold] for fold in range(FOLDS)]
    folds = [(np.concatenate(train), np.concatenate(test)) for train, test in zip(kept, held, strict=True)]

    def headline(wanted: np.ndarray, outputs: np.ndarray, text_of: np.ndarray) -> float:
        texts = np.split(text_of, np.flatnonzero(np.diff(text_of)) + 1)
        found = score(task, *(_in_rows(task, _named(task, part, classes), texts) for part in (wanted, outputs)))
        return float(np.mean([found[name] for name in task.headline]))

    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitFailedWarning)  # a fold of one class fails alike at every strength
        scoring = make_scorer(headline).set_score_request(text_of=True)  # the number of each row's text
        search = GridSearchCV(model, grid, scoring=scoring, cv=folds, refit=False, error_score=0.0)
        search.fit(matrix, targets, text_of=np.repeat(np.arange(len(lengths)), lengths))
    return model.set_params(**search.best_params_).fit(matrix, targets)


def _model(task: Task) -> tuple[BaseEstimator, dict[str, list[float]]]:
    """What learns the targets of a task, and the values of its parameter for STRENGTHS."""
    if task.kind == "regression":
        return Ridge(solver="sparse_cg"), {"alpha": [1 / strength for strength in STRENGTHS]}
    svm = LinearSVC(tol=TOLERANCE, random_state=1)
    if task.kind == "multi-label":
        return OneVsRestClassifier(svm), {"estimator__C": list(STRENGTHS)}
    return svm, {"C": list(STRENGTHS)}
