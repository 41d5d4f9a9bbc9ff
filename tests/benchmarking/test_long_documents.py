"""scripts/long_documents.py: the classifier, what is trained and what is not trained again, tables and pictures."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarking import long_comparison
from benchmarking.long_comparison import LongComparison, as_table, compare_long, configure, default_variants
from benchmarking.long_documents import Trainer
from benchmarking.rows_of_text import PAD, Labelled, TaskData, as_rows, symbols_dictionary
from long_documents import comparisons, parse_arguments

from fairseq_linformer.attention import ATTENTIONS
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
    trainer = Trainer(DATA, configure([*overrides, *TINY], LENGTH), rate, seed, updates, tokens=96, device=DEVICE)
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


@pytest.mark.parametrize("name", default_variants(LENGTH))
def test_what_stands_beside_a_row_does_not_change_what_is_said_of_it(name):
    trainer = trained(default_variants(LENGTH)[name])
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
    configs = {name: configure(own, length) for name, own in default_variants(length).items()}
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

    monkeypatch.setattr(long_comparison, "Trainer", Stub)
    return asked


def comparison(folder, **changes):
    variants = {name: default_variants(LENGTH)[name] for name in ("softmax", "none")}
    made = LongComparison("listops", LENGTH, DATA, folder, variants, [0.1, 0.2], [1, 2], 5, tokens=96, rounds=3)
    return replace(made, **changes)


def test_an_interrupted_comparison_trains_only_what_is_not_complete(stub, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        comparison(tmp_path).run()
    assert stub == [("softmax", 0.1, 1), ("softmax", 0.2, 1), ("softmax", 0.1, 2)]
    results = comparison(tmp_path).run()
    assert stub[3:] == [("softmax", 0.1, 2), ("none", 0.1, 1), ("none", 0.2, 1), ("none", 0.2, 2)]
    softmax, none = results["variants"]
    assert (softmax["learning_rate"], none["learning_rate"]) == (0.1, 0.2), "the best of valid, not of test"
    assert none["tried"] == {"0.1": 0.5, "0.2": 0.75} and none["accuracies"] == {"1": 0.25, "2": 0.5}
    del stub[:]
    assert comparison(tmp_path).run() == results and not stub, "neither trained nor timed again"


def test_a_run_belongs_to_all_that_made_it(stub, tmp_path, monkeypatch):
    stub += [None] * 3  # none is interrupted
    comparison(tmp_path).run()
    changed = replace(DATA, test=make_part(40, 4))
    none = default_variants(LENGTH)["none"]
    for change, expected in (
        ({"updates": 6}, 6),
        ({"tokens": 48}, 6),
        ({"learning_rates": [0.1, 0.2, 0.3]}, 2),
        ({"variants": {"softmax": ["model.attention=softmax", "model.local_conv=5"], "none": none}}, 3),
        ({"variants": {"softmax": ["model.attention=softmax", "model.dropout=0.1"], "none": none}}, 3),
    ):
        del stub[3:]
        comparison(tmp_path, **change).run()
        assert len(stub) == 3 + expected, change
    del stub[3:]
    comparison(tmp_path, data=changed)._train("none", 0.1, 1)
    assert len(stub) == 3 + 1, "other rows"
    monkeypatch.setattr(long_comparison, "code_digest", lambda code: "of other code")
    del stub[3:]
    comparison(tmp_path).run()
    assert len(stub) == 3 + 6, "other code"


def test_the_baseline_belongs_to_the_words_that_it_reads(tmp_path):
    assert comparison(tmp_path)._baseline() > 0.9, "the symbol that says the label is among the words"
    blank = [replace(rows, texts=["nothing here"] * len(rows)) for rows in (DATA.train, DATA.valid, DATA.test)]
    assert comparison(tmp_path, data=TaskData(*blank, DATA.dictionary, DATA.classes))._baseline() == 0.5


def results(variants, **changes):
    found = [
        {
            "name": name,
            "tried": {"0.1": 0.5, "0.2": 0.25},
            "learning_rate": 0.1,
            "accuracies": {"1": 0.5, "2": 1.0},
            "cost": {"seconds": 0.01, "low": 0.005, "high": 0.02},
        }
        for name in variants
    ]
    about = {"task": "listops", "length": 512, "rows": {"train": 9, "valid": 3, "test": 4}, "updates": 7, "tokens": 96}
    return {**about, "machine": {}, "majority": 0.125, "baseline": 0.25, "variants": found, **changes}


def test_the_table_has_every_variant_the_baseline_and_what_was_published():
    lines = as_table(results(["linformer", "mine"])).splitlines()
    assert lines[:10] == [
        "| listops, n = 512: % of 4 test rows after 7 updates | lr | seeds 1, 2 | ms per update | LRA, ListOps |",
        "|---|---|---|---|---|",
        "| linformer | 0.1 | 75.0 ± 35.4 | 10 (5 to 20) | 35.70 |",
        "| mine | 0.1 | 75.0 ± 35.4 | 10 (5 to 20) |  |",
        "| TF-IDF + linear SVM |  | 25.0 |  |  |",
        "| most frequent label |  | 12.5 |  |  |",
        "",
        "| % of valid, first seed | lr 0.1 | lr 0.2 |",
        "|---|---|---|",
        "| linformer | 50.0 | 25.0 |",
    ]
    assert "Transformer 36.37" in lines[-2] and "larger and train longer" in lines[-1]
    own = as_table(results(["softmax"], task="needles"))
    assert "LRA" not in own and "Published" not in own and own.splitlines()[1] == "|---|---|---|---|"


def test_the_picture_has_the_lengths_that_compare_and_the_others_are_named(stub, tmp_path, monkeypatch):
    stub += [None] * 3  # none is interrupted
    drawn = []
    monkeypatch.setattr(long_comparison, "draw_lengths", lambda done, path: drawn.append([r["length"] for r in done]))
    newest = comparison(tmp_path / "n24")
    assert "leaves out" not in compare_long(newest)
    own = json.loads((tmp_path / "n24/results.json").read_text())
    other_rows, other_machine = {**own["rows"], "test": 4}, {**own["machine"], "threads": 99}
    others = {16: {}, 48: {"updates": 6}, 64: {"rows": other_rows}, 96: {"machine": other_machine}}
    for n, change in {**others, 128: {"tokens": 7}}.items():
        (tmp_path / f"n{n}").mkdir()
        (tmp_path / f"n{n}/results.json").write_text(json.dumps({**own, "length": n, **change}))
    assert compare_long(newest).endswith(
        "\n\nlengths.png leaves out n = 48, 64, 96: of other updates, test rows or another machine"
    )
    assert drawn == [[24], [16, 24, 128]]


def words_of_command(folder, *more):
    tiny = ["--learning-rates", "0.001", "--seeds", "1", "--updates", "2", "--tokens", "64", "--rows", "40"]
    words = ["--task", "listops", "--out", str(folder), "--rounds", "1", "--test-rows", "8", *tiny]
    return [*words, "--variant", "softmax", "model.attention=softmax", *TINY, "--variant", "k4", *more]


@pytest.mark.slow
def test_the_command_trains_times_and_draws_and_trains_nothing_again(tmp_path, monkeypatch):
    words = [*words_of_command(tmp_path, "model.projected_length=4"), "--lengths", "32", "48"]
    printed = run("scripts/long_documents.py", *words, cwd=tmp_path)
    assert printed.count("k4, lr 0.001, seed 1:") == 2
    folder = tmp_path / "listops"
    assert len(list(folder.rglob("*-*.json"))) == 2 * 4, "two runs, the times and the baseline of each length"
    for n in (32, 48):
        found = json.loads((folder / f"n{n}/results.json").read_text())
        assert [own["name"] for own in found["variants"]] == ["softmax", "k4"] and found["length"] == n
        assert found["rows"] == {"train": 40, "valid": 8, "test": 8} and 0 <= found["baseline"] <= 1
        assert (folder / f"n{n}/results.md").read_text().strip() in printed
    assert (folder / "lengths.png").stat().st_size > 10_000
    monkeypatch.setattr(long_comparison, "Trainer", None)
    monkeypatch.setattr(long_comparison.baseline, "learn_and_predict", None)
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the command's, whose times belong to it
    for again in comparisons(parse_arguments(words)):
        assert compare_long(again) in printed
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
    arguments = parse_arguments([*words_of_command(tmp_path / "o", *more), "--lengths", *lengths])
    with pytest.raises(ValueError, match=said):
        comparisons(arguments)
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

    monkeypatch.setattr("long_documents.make_rows", make_rows)
    words = ["--task", "imdb-bytes", "--source", str(tmp_path), "--lengths", "64", "32", "512", *words]
    comparisons(parse_arguments(words))
    assert asked == expected and list(asked) == [32, 64, 512]


def test_what_is_typed_twice_or_together_is_refused(capsys):
    assert parse_arguments(["--task", "listops"]).only is None
    own = parse_arguments(["--task", "listops", "--variant", "k8", "model.projected_length=8", "--variant", "plain"])
    assert own.variant == {"k8": ["model.projected_length=8"], "plain": []}
    for words, said in {
        ("--variant", "a", "--only", "none"): "not allowed with argument",
        ("--variant", "a", "--variant", "a"): "--variant: each must be there once, not a, a",
        ("--only", "none", "none"): "--only: each must be there once, not none, none",
        ("--lengths", "64", "64"): "--lengths: each must be there once, not 64, 64",
        ("--task", "chess"): "invalid choice",
    }.items():
        with pytest.raises(SystemExit):
            parse_arguments(["--task", "listops", *words])
        assert said in capsys.readouterr().err
