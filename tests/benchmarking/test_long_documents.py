"""The study long-documents: the classifier, what is trained and what is not trained again, and the table."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarking import long_documents
from benchmarking.book_tasks import TaskData
from benchmarking.engine import Tuned
from benchmarking.long_documents import LONG_DOCUMENTS, MODEL, LongDocuments, PassageTrainer, experiments
from benchmarking.small_model import Rows, configure_model
from benchmarking.store import Store
from benchmarking.variants import variants_of, with_preset
from fairseq.data import Dictionary

from fairseq_linformer.attention import ATTENTIONS
from tests.helpers.benchmarks import options
from tests.helpers.commands import run
from tests.helpers.inputs import sentences
from tests.helpers.models import DEVICE

LENGTH = 24
TINY = ["model.encoder_embed_dim=16", "model.encoder_ffn_embed_dim=16"]


def make_part(count, seed):
    """Rows of symbols, of which one says the label."""
    chance = np.random.default_rng(seed)
    symbols = chance.integers(6, 12, size=(count, LENGTH)).astype(np.int32)
    labels = np.arange(count) % 2
    symbols[np.arange(count), chance.integers(1, LENGTH, size=count)] = 4 + labels
    texts = [" ".join(map(str, row)) for row in symbols]
    return Rows(torch.from_numpy(symbols), torch.from_numpy(labels), texts)


DICTIONARY = Dictionary()
for number in range(8):
    DICTIONARY.add_symbol(f"symbol{number}")
DATA = TaskData(make_part(64, 1), make_part(8, 2), make_part(40, 3), DICTIONARY, 2)


def trained(overrides, seed=1, updates=3, rate=0.001):
    trainer = PassageTrainer(
        DATA, configure_model(MODEL, [*overrides, *TINY], LENGTH), rate, seed, updates, tokens=96, device=DEVICE
    )
    trainer.train()
    return trainer


def test_every_row_is_trained_on_once_before_one_is_again():
    trainer = trained(["model.attention=none"], updates=0)
    drawn = torch.cat([trainer.numbers() for _ in range(32)])
    assert len(drawn) == 4 * 32, "96 tokens are four rows"
    assert sorted(drawn[:64].tolist()) == sorted(drawn[64:].tolist()) == list(range(64))


def test_full_attention_finds_the_symbol_that_says_the_label():
    trainer = trained(["model.attention=softmax"], updates=150, rate=0.01)
    assert trainer.share(DATA.test) > 0.9


@pytest.mark.parametrize("length", [16, 64, 512, 8192])
def test_the_variants_fit_every_length(length):
    own = {name: with_preset(words) for name, words in variants_of("long-documents", length).items()}
    configs = {name: configure_model(MODEL, words, length) for name, words in own.items()}
    assert configs["control"].projected_length == [1, 1]
    preset = configs["near_and_far"]
    assert preset.value_residual and preset.projection == "split-pool" and max(preset.linformer_window) <= length
    assert {config.attention for config in configs.values()} <= set(ATTENTIONS)


def comparison(folder, **changes):
    own = {name: variants_of("long-documents", LENGTH)[name] for name in ("softmax", "none")}
    data = changes.get("data", DATA)
    made = LongDocuments(Store(folder, {}), LENGTH, own, "n24", 5, "cpu", "books", data, data.digest(), tokens=96)
    return replace(made, **changes)


def test_the_learning_rate_is_the_best_of_valid_not_of_test(tmp_path):
    assert comparison(tmp_path).score({"valid": 0.5, "test": 0.75}) == 0.5


def test_a_run_belongs_to_its_rows_and_to_the_tokens_of_an_update(tmp_path):
    other = replace(DATA, test=make_part(40, 4))
    made = [comparison(tmp_path, **own).origin(["none"]) for own in ({}, {"tokens": 48}, {"digest": other.digest()})]
    assert all(made.count(own) == 1 for own in made)


def test_the_baseline_belongs_to_the_words_that_it_reads(tmp_path):
    assert comparison(tmp_path).baseline() > 0.9, "the symbol that says the label is among the words"
    blank = [replace(rows, texts=["nothing here"] * len(rows)) for rows in (DATA.train, DATA.valid, DATA.test)]
    assert comparison(tmp_path, data=TaskData(*blank, DATA.dictionary, DATA.classes)).baseline() == 0.5


def tables(task, *names):
    cost = {"seconds": 0.01, "low": 0.005, "high": 0.02, "majority": 0.125, "baseline": 0.25}
    results = {1: {"valid": 0.5, "test": 0.5}, 2: {"valid": 0.5, "test": 1.0}}
    words = ["--task", task, "--corpus", "c", "--tokenizer", "t"]
    asked = options("long-documents", *words, "--learning-rates", 0.1, 0.2, "--updates", 7, "--seeds", 1, 2)
    found = [Tuned(name, 512, {0.1: 0.5, 0.2: 0.25}, 0.1, results, cost) for name in names]
    return LONG_DOCUMENTS.tables(asked, found).splitlines()


def test_the_table_has_every_variant_and_what_stands_beside_it():
    assert tables("books", "linformer", "mine")[:8] == [
        "| variant | lr | books: % of 512 test rows after 7 updates, seeds 1, 2 | ms per update "
        "| TF-IDF + linear SVM | most frequent label |",
        "|---|---|---|---|---|---|",
        "| linformer | 0.1 | 75.0 ± 35.4 | 10 (5 to 20) | 25.0 | 12.5 |",
        "| mine | 0.1 | 75.0 ± 35.4 | 10 (5 to 20) | 25.0 | 12.5 |",
        "",
        "| % of valid, seed 1 | lr 0.1 | lr 0.2 |",
        "|---|---|---|",
        "| linformer | 50.0 | 25.0 |",
    ]


@pytest.fixture
def command(corpus, tmp_path):
    """Options of the study with two tiny variants and three small books, in tmp_path/out."""
    books = (sentences(200, seed).replace("\n\n", "\n").strip() for seed in range(3))
    (tmp_path / "books.txt").write_text("\n\n".join(books))
    words = ["--task", "books", "--corpus", tmp_path / "books.txt", "--tokenizer", corpus, "--out", tmp_path / "out"]
    words += ["--learning-rates", 0.001, "--seeds", 1, "--updates", 2, "--tokens", 64, "--rounds", 1, "--test-rows", 9]
    words += ["--variant", "softmax", "model.attention=softmax", *TINY]
    return lambda *more: [*words, *more]


@pytest.mark.slow
def test_the_command_trains_times_and_draws_and_trains_nothing_again(command, tmp_path, monkeypatch):
    words, out = command("--variant", "k4", "model.projected_length=4", "--lengths", 32, 48), tmp_path / "out"
    printed = run("scripts/study.py", "long-documents", *words, cwd=tmp_path)
    assert [printed.count(f"k4, n {n}, lr 0.001, seed 1:") for n in (32, 48)] == [1, 1]
    assert len(list(out.rglob("*-*.json"))) == 2 * 3 + 1, "two runs and the baseline of each length, and the times"
    assert len(list((out / "books/n48").rglob("*-*.json"))) == 3
    found = json.loads((out / "results.json").read_text())["variants"]
    assert [(own["variant"], own["n"]) for own in found] == [(own, n) for n in (32, 48) for own in ("softmax", "k4")]
    assert all(0 <= own["cost"]["baseline"] <= 1 for own in found)
    assert (out / "results.md").read_text().strip() in printed
    assert (out / "lengths.png").stat().st_size > 10_000
    monkeypatch.setattr(long_documents, "PassageTrainer", None)
    monkeypatch.setattr(long_documents.baseline, "learn_and_predict", None)
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the command's, whose times belong to it
    again = LONG_DOCUMENTS.run("long-documents", options("long-documents", *words))
    assert again.partition("\n\nresults.json")[0] in printed
    torch.set_num_threads(torch_threads)


@pytest.mark.parametrize(
    ("overrides", "n", "said"),
    [
        (["model.projected_length=4"], 9999, "lengths=9999 is not allowed"),
        (["model.projected_length=99"], 32, "projected_length=.*99"),
        (["optimization.lr=1"], 32, "optimization.lr=1 is not allowed"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(command, tmp_path, overrides, n, said):
    asked = options("long-documents", *command("--variant", "a", *overrides, "--lengths", 48, n))
    with pytest.raises(ValueError, match=said):
        LONG_DOCUMENTS.run("long-documents", asked)
    assert not (tmp_path / "out").exists()


def test_no_more_rows_are_drawn_than_are_trained_on(command, monkeypatch, tmp_path):
    for more, expected in (([], {32: 4, 48: 2}), (["--rows", 5], {32: 5, 48: 5})):
        made = experiments(options("long-documents", *command("--lengths", 48, 32, *more)), Store(tmp_path, {}))
        assert {own.n: len(own.data.train) for own in made} == expected and [own.n for own in made] == [32, 48]
