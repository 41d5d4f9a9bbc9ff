"""The study recall: the rows of the task, what ends a training, what is not trained again, and the table."""

import json
from dataclasses import replace

import pytest
import torch
from benchmarking import engine, recall, small_model
from benchmarking.engine import Tuned
from benchmarking.flags import LARGEST_SEED
from benchmarking.recall import EMPTY, KEYS, MASK, MODEL, RECALL, VALUES, RecallTask, RecallTrainer, experiments
from benchmarking.small_model import TEST_SEED, Rows, configure_model
from benchmarking.store import Store
from benchmarking.variants import variants_of, with_preset

from fairseq_linformer.attention import ATTENTIONS
from tests.helpers.benchmarks import options
from tests.helpers.models import DEVICE


def task(length, pairs, rows=10, batch=8, stop_at=0.99):
    return RecallTask(length, pairs, rows, batch, stop_at)


def draw(task, rows=200, seed=1):
    return task.draw(rows, torch.Generator().manual_seed(seed))


def test_what_a_row_has_twice_is_drawn_again():
    found = recall._distinct(2000, 3, range(5, 8), torch.Generator().manual_seed(1))
    orders, times = found.unique(dim=0, return_counts=True)
    assert len(orders) == 6 and found.sort(1).values.equal(torch.tensor([5, 6, 7]).expand(2000, -1))
    assert (times - 2000 / 6).abs().max() < 4 * (2000 * 5 / 36) ** 0.5, "all orders are as likely"


@pytest.mark.parametrize("pairs", [1, 4, 16])  # 16: all of the row
def test_pairs_come_first_and_each_answer_is_the_value_of_the_key_before_its_mask(pairs):
    rows = draw(task(64, pairs))
    tokens, answers = rows.tokens, rows.answers
    assert tokens.shape == (200, 64) and answers.shape == (200, pairs)
    for row, expected in zip(tokens.tolist(), answers.tolist(), strict=True):
        keys, values, later = row[: 2 * pairs : 2], row[1 : 2 * pairs : 2], row[2 * pairs :]
        assert set(keys) <= set(KEYS) and set(values) <= set(VALUES)
        assert len(set(keys)) == len(set(values)) == pairs, "none is there twice"
        asked = [(place, key) for place, key in enumerate(later) if key in KEYS]
        assert sorted(key for _, key in asked) == sorted(keys) and all(place % 2 == 0 for place, _ in asked)
        assert [later[place + 1] for place, _ in asked] == [MASK] * pairs
        assert later.count(EMPTY) == 64 - 4 * pairs
        assert expected == [values[keys.index(key)] for _, key in asked]


def test_queries_stand_where_the_power_law_says():
    tokens = draw(task(64, 1), 20_000).tokens  # one query: its place has the law's own probabilities
    places = (tokens[:, 2:] == MASK).int().argmax(1) // 2
    weights = torch.tensor([place**-0.99 for place in range(1, 32)])
    found, expected = torch.bincount(places, minlength=31) / 20_000, weights / weights.sum()
    assert (found - expected).abs().max() < 4 * (0.25 * 0.75 / 20_000) ** 0.5  # the first has 0.25, four deviations
    tokens = draw(task(64, 4), 20_000).tokens
    first = (tokens[:, 8:] == tokens[:, :1]).int().argmax(1).double().mean()
    last = (tokens[:, 8:] == tokens[:, 6:7]).int().argmax(1).double().mean()
    assert first + 1 < last, "the first pair took its place first"


@pytest.mark.parametrize(("length", "percent"), [(64, 28.7), (128, 15.3), (256, 8.2), (512, 2.5)])
def test_the_order_of_the_queries_says_something_of_whose_they_are(length, percent):
    """What docs/recall.md says that a guess by it has."""
    pairs, rows = recall.PAIRS[length], 5000
    drawn = draw(task(length, pairs), 2 * rows)
    values = drawn.tokens[:, 1 : 2 * pairs : 2]
    asked = (drawn.answers[:, :, None] == values[:, None]).int().argmax(-1)  # the pair of each query
    seen = torch.zeros(pairs, pairs).index_put_(
        (torch.arange(pairs).expand(rows, -1), asked[:rows]), torch.ones(()), accumulate=True
    )
    share = 100 * (asked[rows:] == seen.argmax(1)).double().mean()
    assert share == pytest.approx(percent, rel=0.1)


def test_any_key_may_have_any_value_and_test_valid_and_train_are_different_rows():
    assert (len(KEYS), len(VALUES), EMPTY, MASK) == (4095, 4096, 4, 4 + 1 + 4095 + 4096)
    sets = task(64, 4, 5000).sets()
    assert {name: rows.tokens.shape for name, rows in sets.items()} == {
        "test": (3000, 64),
        "valid": (1000, 64),
        "train": (5000, 64),
    }
    assert len({tuple(row) for rows in sets.values() for row in rows.tokens.tolist()}) == 9_000
    keys, values = sets["train"].tokens[:, :8:2].double(), sets["train"].tokens[:, 1:8:2].double()
    assert keys.unique().numel() > 4000 and values.unique().numel() > 4000
    assert abs(torch.corrcoef(torch.stack([keys.flatten(), values.flatten()]))[0, 1]) < 0.03
    assert task(64, 4, 1000).sets()["test"].tokens.equal(sets["test"].tokens), "whatever is trained on"
    assert LARGEST_SEED == TEST_SEED - 1, "no training draws batches with the seed of the rows"


@pytest.mark.parametrize(
    ("length", "pairs", "said"),
    [
        (33, 2, "length=33 is not allowed: it must be even"),
        (32, 9, "pairs=9 is not allowed: it must be from 1 to 8: a quarter of n=32, at most 1024"),
        (8192, 1025, "pairs=1025 is not allowed: it must be from 1 to 1024"),
    ],
)
def test_what_does_not_fit_in_a_row_is_refused(length, pairs, said):
    with pytest.raises(ValueError, match=said):
        task(length, pairs)


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
    configs = {name: configure_model(MODEL, with_preset(own), 64) for name, own in variants_of("recall", 64).items()}
    assert {config.attention for config in configs.values()} == set(ATTENTIONS)
    assert configs["control"].projected_length == [1, 1]


def trainer(sets, seed=1, updates=2, device="cpu"):
    config = configure_model(MODEL, ["model.attention=softmax"], 32)
    return RecallTrainer(task(32, 2), sets, config, 0.003, seed, updates, device)


def small_sets(rows=16):
    return {name: draw(task(32, 2), rows, seed) for seed, name in enumerate(("test", "valid", "train"))}


def test_weights_and_batches_belong_to_the_seed_and_rows_to_the_task():
    def trained(seed):
        own = trainer(small_sets(), seed)
        own.train()
        return own, torch.cat([parameter.detach().flatten() for parameter in own.model.parameters()])

    (one, weights), (_, again), (_, other) = trained(1), trained(1), trained(2)
    assert weights.equal(again) and not weights.equal(other)
    assert one.optimizer.param_groups[0]["lr"] == 0, "after the last update"


def test_recall_is_the_share_of_all_masks_whatever_the_batch(monkeypatch):
    own, tokens = trainer(small_sets()), small_sets()["valid"].tokens
    said = own.logits(tokens).argmax(-1).view(16, 2)  # in the order of positions, row by row
    answers = said.clone()
    answers[:4, 1] = 0  # wrong
    for evaluated in (32, 96, 10**6):
        monkeypatch.setattr(small_model, "EVALUATED", evaluated)
        assert own.share(Rows(tokens, answers)) == 28 / 32


def test_a_training_ends_with_the_look_that_finds_enough(monkeypatch):
    shares = iter([0.5, 0.985, 0.99, 1.0])
    monkeypatch.setattr(recall, "EVERY", 2)
    monkeypatch.setattr(RecallTrainer, "share", lambda self, rows: next(shares))
    own = trainer(small_sets(), updates=7)
    own.train()
    assert own.curve == {"2": 0.5, "4": 0.985, "6": 0.99} and next(shares) == 1.0
    shares = iter([0.1, 0.2, 0.3])
    own = trainer(small_sets(), updates=5)
    own.train()
    assert own.curve == {"2": 0.1, "4": 0.2, "5": 0.3}, "the last update is looked at"


@pytest.mark.exhaustive
def test_full_attention_learns_rows_by_heart_on_any_device():
    sets = small_sets(8)
    sets["valid"] = sets["train"]
    own = trainer(sets, updates=400, device=DEVICE)
    own.train()
    assert own.curve.popitem()[1] >= 0.99


@pytest.fixture
def trained(monkeypatch):
    """Stands for the trainings: which ones there were; the third of them is interrupted."""
    asked = []

    class Stub:
        def __init__(self, task, sets, config, rate, seed, updates, device):
            self.run = (config.attention, rate, seed)
            best = {"softmax": 0.1, "none": 0.2}[config.attention]
            self.curve = {"5": 0.5 if rate != best else 0.75}

        def train(self):
            asked.append(self.run)
            if len(asked) == 3:
                raise KeyboardInterrupt

        def step(self):
            pass

        def share(self, rows):
            return 0.25 * self.run[-1]

    monkeypatch.setattr(recall, "RecallTrainer", Stub)
    return asked


def study(out, *words, only=("softmax", "none")):
    """The results of the study with two variants, without its pictures, which take longest."""
    base = ["--out", out, "--only", *only] if only else ["--out", out]
    base += ["--lengths", 64, "--rows", 10, "--learning-rates", 0.1, 0.2, "--seeds", 1, 2, "--rounds", 3]
    asked = options("recall", *base, "--updates", 5, "--device", "cpu", *words)
    replace(RECALL, pictures={}).run("recall", asked)
    return json.loads((out / "results.json").read_text())["variants"]


def test_an_interrupted_study_trains_only_what_is_not_complete(trained, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path)
    assert trained == [("softmax", 0.1, 1), ("softmax", 0.2, 1), ("none", 0.1, 1)]
    softmax, none = found = study(tmp_path)
    assert trained[3:] == [("none", 0.1, 1), ("none", 0.2, 1), ("softmax", 0.1, 2), ("none", 0.2, 2)]
    assert (softmax["learning_rate"], none["learning_rate"]) == (0.1, 0.2), "each has its own best"
    own = {"valid": 0.75, "updates": 5, "curve": {"5": 0.75}}
    assert none["results"] == {"1": {**own, "test": 0.25}, "2": {**own, "test": 0.5}}
    del trained[:]
    assert study(tmp_path) == found and not trained, "neither trained nor timed again"


def test_a_run_belongs_to_all_that_made_it(trained, tmp_path, monkeypatch):
    trained += [None] * 3  # none is interrupted
    study(tmp_path)
    files = set(tmp_path.rglob("seed*.json"))
    for change in (["--updates", 6], ["--pairs", 2], ["--rows", 11], ["--tokens", 640], ["--stop-at", 0.5]):
        del trained[3:]
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


def test_of_two_learning_rates_that_bring_back_enough_the_quicker_one_is_chosen(tmp_path):
    (own,) = experiments(options("recall", "--lengths", 64), Store(tmp_path, {}))
    slow, quick, short = ({"valid": v, "updates": u} for v, u in ((0.999, 200), (0.991, 100), (0.98, 50)))
    assert own.score(quick) > own.score(slow) > own.score(short)


def test_the_table_says_what_was_brought_back_and_when():
    cost = {"seconds": 0.01, "low": 0.005, "high": 0.02}
    first, second = {"valid": 0.99, "test": 0.75, "updates": 100}, {"valid": 0.98, "test": 0.25, "updates": 500}
    words = ["--lengths", 64, 256, "--updates", 500, "--seeds", 1, 2, "--learning-rates", 0.1, 0.2]
    tuned = [
        Tuned("a", 64, {0.1: 0.5, 0.2: 0.25}, 0.1, {1: first, 2: {**first, "updates": 300}}, cost),
        Tuned("b", 64, {0.1: 0.5, 0.2: 0.25}, 0.1, {1: first, 2: second}, cost),
        Tuned("b", 256, {0.1: 0.5, 0.2: 0.75}, 0.2, {1: second, 2: second}, cost),
    ]
    assert RECALL.tables(options("recall", *words), tuned).splitlines() == [
        "| variant | n | lr | D | % of test | updates until 99% | ms per update |",
        "|---|---|---|---|---|---|---|",
        "| a | 64 | 0.1 | 4 | 75.0 ± 0.0 | 200 ± 141 | 10 (5 to 20) |",
        "| b | 64 | 0.1 | 4 | 50.0 ± 35.4 | 100; not reached by 1 of 2 | 10 (5 to 20) |",
        "| b | 256 | 0.2 | 16 | 25.0 ± 0.0 | not reached by 2 of 2 | 10 (5 to 20) |",
        "",
        "| % of valid, at most --stop-at, seed 1 | n | lr 0.1 | lr 0.2 |",
        "|---|---|---|---|",
        "| a | 64 | 50.0 | 25.0 |",
        "| b | 64 | 50.0 | 25.0 |",
        "| b | 256 | 50.0 | 75.0 |",
        "",
        "Percent of the values of 3,000 test rows after at most 500 updates of 4,096 tokens; seeds: 2. "
        "Who sees the values of a row, not whose they are, has 1/D, or a little more by the order of the "
        "queries.",
    ]


def test_nothing_is_no_negative_share():
    """A later update costs a run a little of what chooses the learning rate."""
    assert RECALL.form(0 - 1e-9 * 500) == "0.0" and RECALL.form(0.25) == "25.0"


def test_a_curve_keeps_the_last_share_of_a_run_that_was_stopped():
    results = {1: {"curve": {"2": 0.5, "4": 1.0}}, 2: {"curve": {"2": 0.25, "4": 0.5, "5": 0.75}}}
    assert recall._curve(Tuned("a", 64, {}, 0.1, results)) == {2: [50, 25], 4: [100, 50], 5: [100, 75]}


@pytest.mark.slow
def test_the_command_trains_times_and_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(recall, "TESTED", 20)
    monkeypatch.setattr(recall, "LOOKED_AT", 20)
    words = ["--lengths", 16, 64, "--pairs", 1, "--rows", 30, "--tokens", 64, "--learning-rates", 0.001, "--seeds", 1]
    own = ["--variant", "softmax", "model.attention=softmax", "--variant", "k4", "model.projected_length=4"]
    words += ["--updates", 2, "--rounds", 1, "--out", tmp_path]
    printed = RECALL.run("recall", options("recall", *words, *own))
    assert printed.startswith((tmp_path / "results.md").read_text().rstrip("\n"))
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(one["variant"], one["n"]) for one in results["variants"]] == [
        (name, n) for n in (16, 64) for name in ("softmax", "k4")
    ]
    for one in results["variants"]:
        assert one["cost"]["seconds"] > 0 and [*one["results"]["1"]["curve"]] == ["2"]
    assert (tmp_path / "recall.png").stat().st_size > 10_000


def test_what_cannot_work_at_a_length_is_refused_before_the_first_trains(tmp_path):
    store = Store(tmp_path, {})
    found = experiments(options("recall", "--lengths", 512, 64), store)
    paper = ((64, 4, 100_000, 64), (512, 64, 100_000, 8))  # updates of 4,096 tokens
    assert [(one.task, one.folder) for one in found] == [(task(*own), f"n{own[0]}") for own in paper]
    with pytest.raises(ValueError, match=r"projected_length=.*96"):
        study(tmp_path, "--lengths", 128, 64, "--variant", "k96", "model.projected_length=96", only=())
    with pytest.raises(ValueError, match="pairs=17 is not allowed"):
        study(tmp_path, "--pairs", 17)
    with pytest.raises(ValueError, match="length=32 is not one of the paper's, 64, 128, 256, 512: give --pairs, too"):
        study(tmp_path, "--lengths", 32)
    assert not any(tmp_path.iterdir())
