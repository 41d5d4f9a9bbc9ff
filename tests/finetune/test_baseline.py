"""Baselines: TF-IDF learns the labels of words from a prepared folder, and nothing of the dev set."""

import itertools
import random
from pathlib import Path

import pytest

from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.prepare.vocabulary_training import train_sentencepiece
from fairseq_linformer.data.task_record import KINDS, own_task
from fairseq_linformer.data.tokenizer import SentencePieceTokenizer, Tokenizer
from fairseq_linformer.errors import UserError
from fairseq_linformer.finetune import baseline
from fairseq_linformer.finetune.baseline import fit_baselines

TEXT = "the film was long and its music loud yet people in row seven liked it very much then"
WORDS = TEXT.split()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "sentencepiece.bpe.model"
    train_sentencepiece([TEXT, "good bad funny sad Ann Bob not"] * 5, path, 295, 1)
    return SentencePieceTokenizer(path)


def rows(number, seed) -> list[tuple[list[str], list[str]]]:
    """Sentences, and the words among good, bad, funny, sad in each."""
    chance = random.Random(seed)
    sentences = []
    for _ in range(number):
        labels = [chance.choice(["good", "bad"]), *chance.sample(["funny", "sad"], chance.randrange(3))]
        words = [*chance.choices(WORDS, k=6), *labels]
        chance.shuffle(words)
        sentences.append((words, labels))
    return sentences


def prepare(folder, kind, tokenizer, train, valid) -> Path:
    scale = 5.0 if kind == "regression" else 1.0
    write_labelled(folder / kind, own_task("own", kind, scale=scale), {"train": train, "valid": valid}, tokenizer)
    return folder / kind


def example(kind, words, labels) -> Example:
    label = {
        "single-label": labels[0],
        "multi-label": tuple(labels),
        "regression": str(4.0 * ("good" in labels) + ("funny" in labels)),
        "token-label": tuple("LABEL" if word in labels else "O" for word in words),
    }
    return Example(tuple(words) if kind == "token-label" else " ".join(words), label[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_the_labels_of_words(tmp_path, tokenizer, kind):
    train, valid = ([example(kind, *row) for row in rows(number, number)] for number in (300, 60))
    folder = prepare(tmp_path, kind, tokenizer, train, valid)
    scores = fit_baselines(folder).tf_idf
    assert scores.keys() == {"valid"} and all(value > 90 for value in scores["valid"].values()), scores
    assert fit_baselines(folder).tf_idf == scores


def test_pairs_are_compared(tmp_path, tokenizer):
    """The label is 1 if both texts have the same word, so that neither text is enough."""
    words = itertools.product(("good", "bad"), repeat=2)
    pairs = [Example(f"music {first}", str(int(first == second)), f"film {second}") for first, second in words]
    folder = prepare(tmp_path, "single-label", tokenizer, 50 * pairs, 10 * pairs)
    assert fit_baselines(folder).tf_idf["valid"]["accuracy"] == 100


def test_words_of_a_single_row_count_if_all_are_and_texts_without_words_are_rejected(tmp_path, tokenizer, monkeypatch):
    """Rows of one long word each, such as proteins."""
    monkeypatch.setattr(baseline, "MIN_TEXTS_FOR_PRUNING", 2)
    rows = [Example(f"word{number}", "xy"[number % 2]) for number in range(6)]
    folder = prepare(tmp_path / "words", "single-label", tokenizer, rows, rows)
    assert fit_baselines(folder).tf_idf["valid"]["accuracy"] == 100
    nothing = [Example("film", "x"), Example("music", "y")]
    monkeypatch.setattr(baseline, "TOKEN", "none")
    with pytest.raises(UserError, match="no words"):
        fit_baselines(prepare(tmp_path / "none", "single-label", tokenizer, nothing, nothing))


@pytest.mark.parametrize("train", [1, 9])
def test_one_class_or_few_rows_are_no_error(tmp_path, tokenizer, train, monkeypatch):
    """A class that the sample for cross-validation lacks is no error either."""
    monkeypatch.setattr(baseline, "MAX_TEXTS", 3)
    rows = [Example("good", "x")] * train + [Example("film", "y")] * (train > 1)
    folder = prepare(tmp_path, "single-label", tokenizer, rows, [Example("bad", "x")])
    assert fit_baselines(folder).tf_idf["valid"]["accuracy"] == 100


@pytest.mark.parametrize("kind", KINDS)
def test_the_majority_class_is_that_of_train_not_of_the_dev_set(tmp_path, tokenizer, kind):
    common, rare = (["music", "good"], ["good"]), (["film", "bad"], ["bad"])
    train, valid = ([example(kind, *row) for row in rows] for rows in ([common] * 9 + [rare], [common] + [rare] * 3))
    scores = fit_baselines(prepare(tmp_path, kind, tokenizer, train, valid)).majority["valid"]
    name = "pearson" if kind == "regression" else "accuracy"
    assert scores[name] == {"single-label": 25.0, "multi-label": 25.0, "regression": 0.0, "token-label": 50.0}[kind]


def test_a_strength_is_chosen_by_cross_validation(tmp_path, tokenizer, monkeypatch):
    """If the classes overlap, the strongest regularisation is far from the best."""
    train, valid = ([example("single-label", *row) for row in rows(number, number)] for number in (300, 60))
    folder = prepare(tmp_path, "single-label", tokenizer, train, valid)
    for strengths in ((1e-9, 1.0), (1.0, 1e-9)):
        monkeypatch.setattr(baseline, "STRENGTHS", strengths)
        assert fit_baselines(folder).tf_idf["valid"]["accuracy"] > 90
    monkeypatch.setattr(baseline, "STRENGTHS", (1e-9,))
    assert fit_baselines(folder).tf_idf["valid"]["accuracy"] < 90
