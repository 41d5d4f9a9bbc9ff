"""The study long-documents: the classifier, what is trained and what is not trained again, and the table."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarking import engine, long_documents
from benchmarking.engine import Tuned
from benchmarking.long_documents import LONG_DOCUMENTS, MODEL, LongDocuments, Trainer, experiments
from benchmarking.rows_of_text import PAD, Labelled, TaskData, as_rows, symbols_dictionary
from benchmarking.small_model import configure_model
from benchmarking.store import Store
from benchmarking.variants import variants_of

from fairseq_linformer.attention import ATTENTIONS
from tests.helpers.benchmarks import options
from tests.helpers.commands import run
from tests.helpers.models import DEVICE

LENGTH = 24
TINY = ["model.encoder_embed_dim=16", "model.encoder_ffn_embed_dim=16"]


def make_part(count, seed):
    """Rows of 4 to 22 symbols, of which one says the label."""
    chance = np.random.default_rng(seed)
    examples = []
    for number in range(count):
        symbols = chance.integers(6, 12, size=chance.integers(4, LENGTH - 2)).astype(np.int32)
        symbols[chance.integers(len(symbols))] = 4 + number % 2
        examples.append(Labelled(symbols, number % 2, " ".join(map(str, symbols))))
    return as_rows(examples, LENGTH)


DATA = TaskData(make_part(64, 1), make_part(8, 2), make_part(40, 3), symbols_dictionary(8), 2)


def trained(overrides, seed=1, updates=3, rate=0.001):
    trainer = Trainer(
        DATA, configure_model(MODEL, [*overrides, *TINY], LENGTH), rate, seed, updates, tokens=96, device=DEVICE
    )
    trainer.train()
    return trainer


def test_weights_and_order_belong_to_the_seed_and_every_row_is_trained_on_once_before_one_is_again():
    def weights(trainer):
        return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])

    one, again, other = (weights(trained(["model.attention=softmax"], seed)) for seed in (1, 1, 2))
    assert one.equal(again) and not one.equal(other)
    trainer = trained(["model.attention=none"], updates=0)
    drawn = torch.cat([next(trainer.batches) for _ in range(32)])
    assert len(drawn) == 4 * 32, "96 tokens are four rows"
    assert sorted(drawn[:64].tolist()) == sorted(drawn[64:].tolist()) == list(range(64))


@pytest.mark.parametrize("name", variants_of("long-documents", LENGTH))
def test_what_stands_beside_a_row_does_not_change_what_is_said_of_it(name):
    trainer = trained(variants_of("long-documents", LENGTH)[name])
    trainer.model.eval()
    rows = DATA.test.tokens
    assert len({int((row != PAD).sum()) for row in rows}) > 5
    with torch.no_grad():
        together = trainer._logits(rows)
        alone = torch.cat([trainer._logits(row[None]) for row in rows])
    assert torch.allclose(together, alone, atol=1e-5)
    right = together.argmax(-1).cpu() == DATA.test.labels
    assert trainer.accuracy(DATA.test) == right.double().mean()


def test_full_attention_finds_the_symbol_that_says_the_label():
    trainer = trained(["model.attention=softmax"], updates=150, rate=0.01)
    assert trainer.accuracy(DATA.test) > 0.9


@pytest.mark.parametrize("length", [16, 64, 512, 8192])
def test_the_variants_fit_every_length(length):
    configs = {name: configure_model(MODEL, own, length) for name, own in variants_of("long-documents", length).items()}
    assert configs["control"].projected_length == [1, 1]
    preset = configs["near_and_far"]
    assert preset.value_residual and preset.projection == "split-pool" and max(preset.linformer_window) <= length
    assert {config.attention for config in configs.values()} <= set(ATTENTIONS)


@pytest.fixture
def stub(monkeypatch):
    """Stands for the trainings: which ones there were; the third of them is interrupted."""
    asked = []

    class Stub:
        def __init__(self, data, config, rate, seed, updates, tokens, device):
            self.run = (config.attention, rate, seed)

        def train(self):
            asked.append(self.run)
            if len(asked) == 3:
                raise KeyboardInterrupt

        def step(self):
            pass

        def accuracy(self, rows):
            attention, rate, seed = self.run
            best = rate == {"softmax": 0.1, "none": 0.2}[attention]
            return (0.75 if best else 0.5) if rows is DATA.valid else (0.25 * seed if best else 1.0)

    monkeypatch.setattr(long_documents, "Trainer", Stub)
    return asked


def comparison(folder, **changes):
    own = {name: variants_of("long-documents", LENGTH)[name] for name in ("softmax", "none")}
    data = changes.get("data", DATA)
    made = LongDocuments(Store(folder, {}), LENGTH, own, "n24", 5, "cpu", "listops", data, data.digest(), tokens=96)
    return replace(made, **changes)


def test_the_learning_rate_is_the_best_of_valid_not_of_test(stub, tmp_path):
    stub += [None] * 3  # none is interrupted
    softmax, none = comparison(tmp_path).tune([0.1, 0.2], [1, 2])
    assert (softmax.learning_rate, none.learning_rate) == (0.1, 0.2)
    assert none.tried == {0.1: 0.5, 0.2: 0.75} and none.each("test") == [0.25, 0.5]
    del stub[3:]
    assert comparison(tmp_path).tune([0.1, 0.2], [1, 2]) == [softmax, none] and len(stub) == 3, "not trained again"


def test_a_run_belongs_to_all_that_made_it(stub, tmp_path, monkeypatch):
    stub += [None] * 3
    none = variants_of("long-documents", LENGTH)["none"]

    def trained(rates=(0.1, 0.2), **changes):
        del stub[3:]
        comparison(tmp_path, **changes).tune(rates, [1, 2])
        return len(stub) - 3

    assert trained() == 6 and trained() == 0
    assert trained(updates=6) == 6 and trained(tokens=48) == 6 and trained((0.1, 0.2, 0.3)) == 2
    for changed in ("model.local_conv=5", "model.dropout=0.1"):
        assert trained(variants={"softmax": ["model.attention=softmax", changed], "none": none}) == 3
    other = replace(DATA, test=make_part(40, 4))
    assert other.digest() != DATA.digest()
    assert trained(digest=other.digest()) == 6, "other rows"
    monkeypatch.setattr(engine, "code_digest", lambda *code: "of other code")
    assert trained() == 6, "other code"


def test_the_baseline_belongs_to_the_words_that_it_reads(tmp_path):
    assert comparison(tmp_path).baseline() > 0.9, "the symbol that says the label is among the words"
    blank = [replace(rows, texts=["nothing here"] * len(rows)) for rows in (DATA.train, DATA.valid, DATA.test)]
    assert comparison(tmp_path, data=TaskData(*blank, DATA.dictionary, DATA.classes)).baseline() == 0.5


def tables(task, *names):
    cost = {"seconds": 0.01, "low": 0.005, "high": 0.02, "majority": 0.125, "baseline": 0.25}
    results = {1: {"valid": 0.5, "test": 0.5}, 2: {"valid": 0.5, "test": 1.0}}
    asked = options("long-documents", "--task", task, "--learning-rates", 0.1, 0.2, "--updates", 7, "--seeds", 1, 2)
    found = [Tuned(name, 512, {0.1: 0.5, 0.2: 0.25}, 0.1, results, cost) for name in names]
    return LONG_DOCUMENTS.tables(asked, found).splitlines()


def test_the_table_has_every_variant_and_what_stands_beside_it():
    assert tables("listops", "linformer", "mine")[:8] == [
        "| variant | lr | listops: % of 512 test rows after 7 updates, seeds 1, 2 | ms per update "
        "| TF-IDF + linear SVM | most frequent label |",
        "|---|---|---|---|---|---|",
        "| linformer | 0.1 | 75.0 ± 35.4 | 10 (5 to 20) | 25.0 | 12.5 |",
        "| mine | 0.1 | 75.0 ± 35.4 | 10 (5 to 20) | 25.0 | 12.5 |",
        "",
        "| % of valid, seed 1 | lr 0.1 | lr 0.2 |",
        "|---|---|---|",
        "| linformer | 50.0 | 25.0 |",
    ]


def words_of_command(folder, *more):
    tiny = ["--learning-rates", "0.001", "--seeds", "1", "--updates", "2", "--tokens", "64", "--rows", "40"]
    words = ["--task", "listops", "--out", str(folder), "--rounds", "1", "--test-rows", "8", *tiny]
    return [*words, "--variant", "softmax", "model.attention=softmax", *TINY, "--variant", "k4", *more]


@pytest.mark.slow
def test_the_command_trains_times_and_draws_and_trains_nothing_again(tmp_path, monkeypatch):
    words = [*words_of_command(tmp_path, "model.projected_length=4"), "--lengths", "32", "48"]
    printed = run("scripts/study.py", "long-documents", *words, cwd=tmp_path)
    assert [printed.count(f"k4, n {n}, lr 0.001, seed 1:") for n in (32, 48)] == [1, 1]
    assert len(list(tmp_path.rglob("*-*.json"))) == 2 * 3 + 1, "two runs and the baseline of each length, and the times"
    assert len(list((tmp_path / "listops/n48").rglob("*-*.json"))) == 3
    found = json.loads((tmp_path / "results.json").read_text())["variants"]
    assert [(own["variant"], own["n"]) for own in found] == [(own, n) for n in (32, 48) for own in ("softmax", "k4")]
    assert all(0 <= own["cost"]["baseline"] <= 1 for own in found)
    assert (tmp_path / "results.md").read_text().strip() in printed
    assert (tmp_path / "lengths.png").stat().st_size > 10_000
    monkeypatch.setattr(long_documents, "Trainer", None)
    monkeypatch.setattr(long_documents.baseline, "learn_and_predict", None)
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the command's, whose times belong to it
    assert (
        LONG_DOCUMENTS.run("long-documents", options("long-documents", *words)).partition("\n\nresults.json")[0]
        in printed
    )
    torch.set_num_threads(torch_threads)


@pytest.mark.parametrize(
    ("more", "lengths", "said"),
    [
        (["model.projected_length=4"], ["32", "9999"], "lengths=9999 is not allowed"),
        (["model.projected_length=99"], ["32"], "projected_length=.*99"),
        (["optimization.lr=1"], ["32"], "optimization.lr=1 is not allowed"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(tmp_path, more, lengths, said):
    arguments = options("long-documents", *words_of_command(tmp_path / "o", *more), "--lengths", *lengths)
    with pytest.raises(ValueError, match=said):
        LONG_DOCUMENTS.run("long-documents", arguments)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--updates", "10", "--tokens", "128"], {64: 20, 32: 40, 512: 10}),
        (["--updates", "20000", "--tokens", "128"], {64: 25_000, 32: 25_000, 512: 20_000}),
        (["--rows", "99"], {64: 99, 32: 99, 512: 99}),
    ],
)
def test_no_more_rows_are_read_than_are_trained_on(words, expected, monkeypatch, tmp_path):
    asked = {}

    def make_rows(task, request):
        asked[request.length] = request.rows
        return DATA

    monkeypatch.setattr(long_documents, "make_rows", make_rows)
    words = ["--task", "imdb-bytes", "--source", str(tmp_path), "--lengths", "64", "32", "512", *words]
    experiments(options("long-documents", *words), Store(tmp_path, {}))
    assert asked == expected and list(asked) == [32, 64, 512]
