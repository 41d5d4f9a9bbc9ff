"""scripts/recall.py: the rows of the task, what is trained and what is not trained again, tables and frontier."""

import json
import math
from dataclasses import replace

import pytest
import torch
from benchmarking import recall, recall_comparison
from benchmarking.recall import FIRST, Task, Trainer, configure
from benchmarking.recall_comparison import VARIANTS, RecallComparison, Recalled, as_table, compare_recall, frontier
from benchmarking.small_model import TEST_SEED
from recall import comparisons, parse_arguments

from fairseq_linformer.attention import ATTENTIONS
from tests.helpers.models import DEVICE

TASK = Task(32, (2, 4))


def draw(seed, rows=200, pairs=4):
    return TASK.draw(rows, pairs, torch.Generator().manual_seed(seed))


def test_a_row_holds_its_pairs_once_and_each_answer_is_the_value_of_the_key_before_the_mask():
    tokens, masked, answers = draw(1)
    keys, values, noise = range(FIRST, FIRST + 4), range(FIRST + 4, FIRST + 12), range(FIRST + 12, FIRST + 16)
    assert tokens.shape == (200, 32) and answers.shape == (200 * 8,) and masked.equal(tokens == FIRST + 16)
    answers = answers.view(200, 8).tolist()
    before = 0
    for row, expected in zip(tokens.tolist(), answers, strict=True):
        after = dict(enumerate(row[1:]))
        stored = {row[i]: after[i] for i in range(31) if row[i] in keys and after[i] in values}
        assert set(stored) == set(keys) and sum(token in values for token in row) == 4
        queries = [i for i in range(31) if after[i] == TASK.mask]
        assert [stored[row[i]] for i in queries] == expected
        assert sum(token in noise for token in row) == 32 - 2 * 4 - 2 * 8
        before += queries[0] < row.index(stored[row[queries[0]]])
    assert 0 < before < 200, "queries stand before and after what they ask for"


def test_assignments_are_drawn_anew_for_each_row_and_no_test_row_is_trained_on():
    tokens, _, _ = draw(1)
    first = {row[row.index(FIRST) + 1] for row in tokens.tolist()} - {TASK.mask}
    assert first == set(range(FIRST + 4, FIRST + 12)), "any value"
    tested = set(map(tuple, draw(TEST_SEED)[0].tolist()))
    assert len(tested) == 200
    for seed in (0, 1, 2, TEST_SEED - 1):
        assert not tested & set(map(tuple, draw(seed)[0].tolist()))
    with pytest.raises(SystemExit):
        parse_arguments(["--seeds", str(TEST_SEED)])


@pytest.mark.parametrize(
    ("length", "pairs", "said"),
    [
        (8, (2,), "length=8 is not allowed: it must be at least 16"),
        (32, (2, 9), "pairs=9 is not allowed: it must be from 1 to 8, a quarter of n=32"),
        (32, (0,), "pairs=0 is not allowed"),
    ],
)
def test_what_does_not_fit_in_a_row_is_refused(length, pairs, said):
    with pytest.raises(ValueError, match=said):
        Task(length, pairs)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("attention=softmax", r"attention=softmax is not allowed: it must be model\.OPTION=VALUE"),
        ("optimization.lr=1", r"optimization\.lr=1 is not allowed: it must be model\.OPTION=VALUE"),
        ("model.attention", r"model\.attention= is not allowed: it must be model\.OPTION=VALUE"),
        ("model.no_such=1", "no_such"),
        ("model.attention=[", r"model\.attention=\[: a value is not YAML"),
        ("model._name=roberta", r"model\._name=roberta is not allowed: it must be one of linformer_roberta_tiny, "),
        ("model._name=[1]", r"model\._name=\[1\] is not allowed"),
        ("model._name=${x}", "Interpolation key 'x' not found"),
        ("model.projected_length=99", "projected_length=.*99"),
    ],
)
def test_overrides_that_cannot_work_are_refused(override, said):
    with pytest.raises(ValueError, match=said):
        configure([override], 32)


def test_every_mechanism_is_among_the_variants_and_every_variant_fits_the_default_length():
    assert {configure(overrides, 64).attention for overrides in VARIANTS.values()} == set(ATTENTIONS)
    assert configure(VARIANTS["control"], 64).projected_length == [1, 1]


def test_weights_and_batches_belong_to_the_seed_and_the_test_is_the_same_for_all():
    def trained(seed):
        trainer = Trainer(TASK, configure(["model.attention=softmax"], 32), 1e-3, seed, updates=2)
        trainer.train()
        return trainer, torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])

    (one, weights), (_, again), (_, other) = trained(1), trained(1), trained(2)
    assert weights.equal(again) and not weights.equal(other)
    assert one.recall() == one.recall(), "nothing is drawn from the training's generator"
    assert one.optimizer.param_groups[0]["lr"] == 0, "after the last update"


@pytest.mark.exhaustive
def test_full_attention_learns_to_copy_the_only_value_and_one_mean_of_two_does_not(monkeypatch):
    """With D = 1 it is enough to see which value the row holds; with D = 2 one mean cannot say whose it is."""

    def shares(*overrides):
        trainer = Trainer(Task(16, (1, 2)), configure(overrides, 16), 0.002, 1, updates=150, device=DEVICE)
        trainer.train()
        return trainer.recall()

    monkeypatch.setattr(recall, "TOKENS", 512)
    full, control = shares("model.attention=softmax"), shares(*VARIANTS["control"])
    assert full[1] > 0.95 and control[2] < 0.75


@pytest.fixture
def trained(monkeypatch):
    """Stands for the trainings: which ones there were; the third of them is interrupted."""
    asked = []

    class Stub:
        def __init__(self, task, config, rate, seed, updates, device):
            self.run = (config.attention, rate, seed)

        def train(self):
            asked.append(self.run)
            if len(asked) == 3:
                raise KeyboardInterrupt

        def step(self):
            pass

        def recall(self):
            attention, rate, seed = self.run
            best = {"softmax": 0.1, "none": 0.2}[attention]
            return {2: 0.5 if rate != best else 0.75, 4: 0.25 * seed if rate == best else 0.0}

    monkeypatch.setattr(recall_comparison, "Trainer", Stub)
    return asked


def comparison(folder, **changes):
    variants = {name: VARIANTS[name] for name in ("softmax", "none")}
    return replace(RecallComparison(TASK, folder, variants, [0.1, 0.2], [1, 2], updates=5, rounds=3), **changes)


def test_an_interrupted_comparison_trains_only_what_is_not_complete(trained, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        comparison(tmp_path).run()
    assert trained == [("softmax", 0.1, 1), ("softmax", 0.2, 1), ("softmax", 0.1, 2)]
    softmax, none = comparison(tmp_path).run()
    assert trained[3:] == [("softmax", 0.1, 2), ("none", 0.1, 1), ("none", 0.2, 1), ("none", 0.2, 2)]
    assert (softmax.learning_rate, none.learning_rate) == (0.1, 0.2), "each has its own best"
    assert none.tried == {0.1: 0.25, 0.2: 0.5} and none.shares == {1: {2: 0.75, 4: 0.25}, 2: {2: 0.75, 4: 0.5}}
    assert none.of_pairs(4) == [0.25, 0.5] and none.means == [0.5, 0.625]
    del trained[:]
    assert comparison(tmp_path).run() == [softmax, none] and not trained, "neither trained nor timed again"


def test_a_run_belongs_to_all_that_made_it(trained, tmp_path, monkeypatch):
    trained += [None] * 3  # none is interrupted
    comparison(tmp_path).run()
    files = set(tmp_path.rglob("seed*.json"))
    for change in ({"updates": 6}, {"task": Task(32, (2, 8))}):
        del trained[3:]
        comparison(tmp_path, **change).run()
        assert len(trained) == 3 + 6, change
    for changed in ("model.local_conv=5", "model.dropout=0.1"):
        other = {"softmax": ["model.attention=softmax", changed], "none": VARIANTS["none"]}
        del trained[3:]
        comparison(tmp_path, variants=other).run()
        assert {run[0] for run in trained[3:]} == {"softmax"}, "the model has changed, the other's has not"
    monkeypatch.setattr(recall_comparison, "code_digest", lambda code: "of other code")
    del trained[3:]
    comparison(tmp_path).run()
    assert len(trained) == 3 + 6
    assert files < set(tmp_path.rglob("seed*.json")), "what was there stays"


def test_a_damaged_result_is_named(trained, tmp_path):
    trained += [None] * 3
    comparison(tmp_path).run()
    file = next((tmp_path / "softmax").rglob("seed1-*.json"))
    file.write_text('{"made_of": {}}')
    with pytest.raises(ValueError, match=rf"{file.name} is damaged: its content has no result"):
        comparison(tmp_path).run()


def test_a_folder_that_cannot_be_made_is_refused_before_a_training(trained, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        comparison(tmp_path / "file").run()
    assert not trained


def recalled(name, seconds, shares, rate=0.1):
    cost = {"seconds": seconds, "low": seconds / 2, "high": 2 * seconds}
    return Recalled(name, {0.1: 0.5, 0.2: 0.25}, rate, shares, cost)


def test_the_table_has_every_number_of_pairs_with_its_spread():
    two = [recalled("a", 0.01, {1: {2: 1.0, 4: 0.5}, 2: {2: 0.5, 4: 0.5}})]
    # 100 and 50 deviate by sqrt(2) * 25; the means over D are 75 and 50
    assert as_table(two, updates=7).splitlines() == [
        "| % of values after 7 updates, 2 seeds | lr | D = 2 | D = 4 | mean of D | ms per update |",
        "|---|---|---|---|---|---|",
        "| a | 0.1 | 75.0 ± 35.4 | 50.0 ± 0.0 | 62.5 ± 17.7 | 10 (5 to 20) |",
        "",
        "| mean of D, seed 1 | lr 0.1 | lr 0.2 |",
        "|---|---|---|",
        "| a | 50.0 | 25.0 |",
    ]


def test_the_frontier_has_what_nothing_cheaper_equals():
    points = {
        "a": (1.0, 50.0),
        "b": (2.0, 50.0),
        "c": (2.0, 60.0),
        "d": (3.0, 55.0),
        "e": (4.0, 99.0),
        "f": (1.0, 40.0),
    }
    assert frontier(points) == ["a", "c", "e"]


@pytest.mark.slow
def test_the_command_trains_times_and_draws(tmp_path):
    variants = {"softmax": VARIANTS["softmax"], "k4": ["model.projected_length=4"]}
    tiny = RecallComparison(Task(16, (1, 2)), tmp_path, variants, [0.001], [1], updates=1, rounds=1)
    assert compare_recall(tiny) == (tmp_path / "results.md").read_text().rstrip("\n")
    results = json.loads((tmp_path / "results.json").read_text())
    assert [own["name"] for own in results["variants"]] == ["softmax", "k4"]
    for own in results["variants"]:
        assert own["cost"]["seconds"] > 0 and set(own["shares"]["1"]) == {"1", "2"}
        assert math.isclose(own["tried"]["0.001"], sum(own["shares"]["1"].values()) / 2)
    assert (tmp_path / "recall.png").stat().st_size > 10_000


def test_variants_are_the_users_own_or_some_of_those_that_have_a_name(capsys):
    assert parse_arguments([]).variants == VARIANTS
    assert parse_arguments(["--only", "none", "control"]).variants == {n: VARIANTS[n] for n in ("none", "control")}
    own = parse_arguments(["--variant", "k8", "model.projected_length=8", "--variant", "plain"])
    assert own.variants == {"k8": ["model.projected_length=8"], "plain": []}
    for words, said in {
        ("--variant", "a", "--only", "none"): "not allowed with argument",
        ("--variant", "a", "--variant", "a"): "--variant: each must be there once, not a, a",
        (
            "--variant",
            "model.projected_length=8",
        ): "--variant model.projected_length=8 is not allowed: a name comes first",
        ("--variant", "../up"): "--variant ../up is not allowed: a name comes first",
        ("--only", "none", "none"): "--only: each must be there once, not none, none",
        ("--pairs", "2", "2"): "--pairs: each must be there once, not 2, 2",
    }.items():
        with pytest.raises(SystemExit):
            parse_arguments(words)
        assert said in capsys.readouterr().err


def test_what_cannot_work_at_a_length_is_refused_before_the_first_trains():
    own = comparisons(parse_arguments(["--lengths", "64", "32", "--pairs", "4", "2", "--out", "o"]))
    assert [(one.task, one.out.as_posix()) for one in own] == [(Task(n, (2, 4)), f"o/n{n}") for n in (32, 64)]
    for words, said in {
        ("--variant", "k48", "model.projected_length=48"): "projected_length=.*48",
        ("--pairs", "9"): "pairs=9 is not allowed",
    }.items():
        with pytest.raises(ValueError, match=said):
            comparisons(parse_arguments(["--lengths", "64", "32", *words]))


def test_a_device_that_is_not_there_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert parse_arguments([]).device == "cpu"
    for name, said in {"cuda": "PyTorch finds no GPU", "gpu": "gpu is neither cpu nor cuda"}.items():
        with pytest.raises(SystemExit):
            parse_arguments(["--device", name])
        assert f"argument --device: {said}" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert parse_arguments([]).device == "cuda"
