"""The study recall: the rows of the task, what is trained and what is not trained again, and the table."""

import json
import math

import pytest
import torch
from benchmarking import engine, recall
from benchmarking.engine import Tuned
from benchmarking.flags import LARGEST_SEED
from benchmarking.recall import FIRST, MODEL, RECALL, Task, Trainer, experiments
from benchmarking.small_model import TEST_SEED, configure_model
from benchmarking.store import Store
from benchmarking.variants import variants_of

from fairseq_linformer.attention import ATTENTIONS
from tests.helpers.benchmarks import options
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
    assert LARGEST_SEED == TEST_SEED - 1


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
        configure_model(MODEL, [override], 32)


def test_every_mechanism_is_among_the_variants_and_every_variant_fits_the_default_length():
    assert {configure_model(MODEL, overrides, 64).attention for overrides in variants_of("recall", 64).values()} == set(
        ATTENTIONS
    )
    assert configure_model(MODEL, variants_of("recall", 64)["control"], 64).projected_length == [1, 1]


def test_weights_and_batches_belong_to_the_seed_and_the_test_is_the_same_for_all():
    def trained(seed):
        trainer = Trainer(TASK, configure_model(MODEL, ["model.attention=softmax"], 32), 1e-3, seed, updates=2)
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
        trainer = Trainer(Task(16, (1, 2)), configure_model(MODEL, overrides, 16), 0.002, 1, updates=150, device=DEVICE)
        trainer.train()
        return trainer.recall()

    monkeypatch.setattr(recall, "TOKENS", 512)
    full, control = shares("model.attention=softmax"), shares(*variants_of("recall", 64)["control"])
    assert full["D=1"] > 0.95 and control["D=2"] < 0.75


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
            return {"D=2": 0.5 if rate != best else 0.75, "D=4": 0.25 * seed if rate == best else 0.0}

    monkeypatch.setattr(recall, "Trainer", Stub)
    return asked


def study(out, *words, only=("softmax", "none")):
    """The results of the study with two variants."""
    base = ["--out", out, "--only", *only] if only else ["--out", out]
    base += ["--lengths", 32, "--pairs", 2, 4, "--learning-rates", 0.1, 0.2, "--seeds", 1, 2, "--rounds", 3]
    RECALL.run("recall", options("recall", *base, "--updates", 5, "--device", "cpu", *words))
    return json.loads((out / "results.json").read_text())["variants"]


def test_an_interrupted_study_trains_only_what_is_not_complete(trained, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path)
    assert trained == [("softmax", 0.1, 1), ("softmax", 0.2, 1), ("none", 0.1, 1)]
    softmax, none = found = study(tmp_path)
    assert trained[3:] == [("none", 0.1, 1), ("none", 0.2, 1), ("softmax", 0.1, 2), ("none", 0.2, 2)]
    assert (softmax["learning_rate"], none["learning_rate"]) == (0.1, 0.2), "each has its own best"
    assert none["tried"] == {"0.1": 0.25, "0.2": 0.5}
    assert none["results"] == {"1": {"D=2": 0.75, "D=4": 0.25}, "2": {"D=2": 0.75, "D=4": 0.5}}
    del trained[:]
    assert study(tmp_path) == found and not trained, "neither trained nor timed again"


def test_a_run_belongs_to_all_that_made_it(trained, tmp_path, monkeypatch):
    trained += [None] * 3  # none is interrupted
    study(tmp_path)
    files = set(tmp_path.rglob("seed*.json"))
    for change in (["--updates", 6], ["--pairs", 2, 8]):
        del trained[3:]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recall.Trainer, "recall", lambda self: {"D=2": 0.5, "D=4": 0.5, "D=8": 0.5})
            study(tmp_path, *change)
        assert len(trained) == 3 + 6, change
    for changed in ("model.local_conv=5", "model.dropout=0.1"):
        own = ["--variant", "softmax", "model.attention=softmax", changed, "--variant", "none", "model.attention=none"]
        del trained[3:]
        study(tmp_path, *own, only=())
        assert {run[0] for run in trained[3:]} == {"softmax"}, "the model has changed, the other's has not"
    monkeypatch.setattr(engine, "code_digest", lambda *code: "of other code")
    del trained[3:]
    study(tmp_path)
    assert len(trained) == 3 + 6
    assert files < set(tmp_path.rglob("seed*.json")), "what was there stays"


def test_a_damaged_result_is_named(trained, tmp_path):
    trained += [None] * 3
    study(tmp_path)
    file = next((tmp_path / "n32/softmax").rglob("seed1-*.json"))
    file.write_text('{"made_of": {}}')
    with pytest.raises(ValueError, match=rf"{file.name} is damaged: its content has no result"):
        study(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused_before_a_training(trained, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        study(tmp_path / "file")
    assert not trained


def test_the_table_has_every_number_of_pairs_with_its_spread():
    cost = {"seconds": 0.01, "low": 0.005, "high": 0.02}
    results = {1: {"D=2": 1.0, "D=4": 0.5}, 2: {"D=2": 0.5, "D=4": 0.5}}
    asked = options("recall", "--pairs", 4, 2, "--updates", 7, "--seeds", 1, 2, "--learning-rates", 0.1, 0.2)
    # 100 and 50 deviate by sqrt(2) * 25; the means over D are 75 and 50
    assert RECALL.tables(asked, [Tuned("a", 64, {0.1: 0.5, 0.2: 0.25}, 0.1, results, cost)]).splitlines() == [
        "| variant | lr | D = 2 | D = 4 | mean of D | ms per update |",
        "|---|---|---|---|---|---|",
        "| a | 0.1 | 75.0 ± 35.4 | 50.0 ± 0.0 | 62.5 ± 17.7 | 10 (5 to 20) |",
        "",
        "| mean of D, seed 1 | lr 0.1 | lr 0.2 |",
        "|---|---|---|",
        "| a | 50.0 | 25.0 |",
        "",
        "Percent of the values brought back after 7 updates, 2 seeds.",
    ]


@pytest.mark.slow
def test_the_command_trains_times_and_draws(tmp_path):
    words = ["--lengths", 16, "--pairs", 1, 2, "--learning-rates", 0.001, "--seeds", 1, "--updates", 1, "--rounds", 1]
    own = ["--variant", "softmax", "model.attention=softmax", "--variant", "k4", "model.projected_length=4"]
    printed = RECALL.run("recall", options("recall", "--out", tmp_path, *words, *own))
    assert printed.startswith((tmp_path / "results.md").read_text().rstrip("\n"))
    results = json.loads((tmp_path / "results.json").read_text())
    assert [one["variant"] for one in results["variants"]] == ["softmax", "k4"]
    for one in results["variants"]:
        assert one["cost"]["seconds"] > 0 and set(one["results"]["1"]) == {"D=1", "D=2"}
        assert math.isclose(one["tried"]["0.001"], sum(one["results"]["1"].values()) / 2)
    assert all((tmp_path / file).stat().st_size > 10_000 for file in ("recall.png", "frontier.png"))


def test_what_cannot_work_at_a_length_is_refused_before_the_first_trains(tmp_path):
    store = Store(tmp_path, {})
    found = experiments(options("recall", "--lengths", 64, 32, "--pairs", 4, 2), store)
    assert [(one.task, one.folder) for one in found] == [(Task(n, (2, 4)), f"n{n}") for n in (32, 64)]
    with pytest.raises(ValueError, match=r"projected_length=.*48"):
        study(tmp_path, "--lengths", 64, 32, "--variant", "k48", "model.projected_length=48", only=())
    with pytest.raises(ValueError, match="pairs=9 is not allowed"):
        study(tmp_path, "--pairs", 9)
    assert not any(tmp_path.iterdir())
