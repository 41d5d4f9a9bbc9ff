"""scripts/compare_lengths.py: what each run is asked for, what is refused, table, cut rows and the command itself."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from benchmarking import lengths, variants
from benchmarking.lengths import VARIANTS, AtLength, LengthComparison
from benchmarking.lengths_report import Pretrained, draw_lengths, draw_positions, lengths_tables
from benchmarking.masked_text import Losses, MaskedText, read_split
from benchmarking.variants import Tuned
from compare_lengths import parse_arguments
from matplotlib.figure import Figure

from fairseq_linformer import LinformerRobertaModel
from tests.helpers.benchmarks import write_shards
from tests.helpers.commands import run

MEANS = ["model.projection=mean-pool", "model.projected_length=8"]


def comparison(data, out, **changes):
    own = LengthComparison(data, out, [32, 64], {"means": MEANS}, [0.1], [1], updates=10, jobs=1, rounds=1)
    return replace(own, **changes)


def test_variants_are_the_users_own_or_some_of_those_that_have_a_name(capsys):
    needed = ["--data", "data"]
    assert parse_arguments(needed).variants == VARIANTS and parse_arguments(needed).lengths == [512, 1024, 2048, 4096]
    assert parse_arguments([*needed, "--only", "near_and_far"]).variants == {"near_and_far": VARIANTS["near_and_far"]}
    own = parse_arguments([*needed, "--variant", "k8", "model.projected_length=8", "--variant", "plain"])
    assert own.variants == {"k8": ["model.projected_length=8"], "plain": []}
    for words, said in {
        ("--variant", "a", "--only", "near_and_far"): "not allowed with argument",
        ("--variant", "a", "--variant", "a"): "--variant: each must be there once, not a, a",
        ("--only", "near_and_far", "near_and_far"): "--only: each must be there once, not near_and_far, near_and_far",
        ("--lengths", "512", "512"): "--lengths: each must be there once, not 512, 512",
        ("--lengths", "8"): "--lengths: 8 is not allowed: it must be a whole number at least 16",
    }.items():
        with pytest.raises(SystemExit):
            parse_arguments([*needed, *words])
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lengths": [32, 48, 64]}, "--lengths=48 is not allowed: it must be a multiple of 16 that divides .*, 64"),
        ({"lengths": [40, 80]}, "--lengths=40 is not allowed"),
        ({"variants": {"a": ["model.max_positions=32"]}}, r"model\.max_positions=32 is not allowed: .* --lengths says"),
        (
            {"variants": {"a": ["optimization.lr=[1]"]}},
            r"optimization\.lr=\[1\] is not allowed: .* model\.OPTION=VALUE",
        ),
        ({"variants": {"a": ["model.attention"]}}, r"model\.attention= is not allowed"),
    ],
)
def test_what_cannot_work_is_refused(changes, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        comparison(tmp_path, tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lengths": [32, 16384]}, "train has .* tokens, fewer than the longest block, 16,384"),
        ({"lengths": [32, 4096]}, "valid has 1,165 tokens, fewer than the longest block, 4,096"),
        ({"variants": {"a": ["model.no_such=1"]}}, r"Could not override 'model\.no_such'"),
        ({"variants": {"a": ["model.projected_length=33"]}}, "projected_length=33 .* from 1 to max_positions=32"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_trains(changes, said, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "pretrain", lambda *arguments: pytest.fail("a training began"))
    with pytest.raises(ValueError, match=said):
        comparison(corpus, tmp_path, **changes).run()


def test_an_update_has_the_same_tokens_whatever_n_is(corpus, tmp_path, monkeypatch):
    asked = {}

    def pretrain(data, folder, updates, embed_dim, overrides):
        asked[folder.relative_to(tmp_path).as_posix()] = dict(override.split("=", 1) for override in overrides)
        (folder / "run").mkdir(parents=True)

    class Done(Exception):
        pass

    def costs(self, tuned):
        raise Done

    monkeypatch.setattr(variants, "pretrain", pretrain)
    monkeypatch.setattr(lengths.AtLength, "measure", lambda self, folder: 10.0)
    monkeypatch.setattr(LengthComparison, "_costs", costs)
    with pytest.raises(Done):
        comparison(corpus, tmp_path, lengths=[64, 16, 32]).run()
    assert list(asked) == [f"n{n}/means/lr0.1/seed1" for n in (16, 32, 64)]
    for options in asked.values():
        n = int(options["model.max_positions"])
        assert int(options["dataset.batch_size"]) * n == 64 and options["task.tokens_per_sample"] == str(n)
        assert options["checkpoint.save_interval_updates"] == "2", "a quarter of ten, rounded down"


def test_a_corpus_in_shards_is_measured_on_the_first(monkeypatch, tmp_path):
    first = write_shards(tmp_path / "data")
    asked = []

    class Asked(Exception):
        pass

    def from_pretrained(run, checkpoint, data):
        asked.append(data)
        raise Asked

    monkeypatch.setattr(LinformerRobertaModel, "from_pretrained", from_pretrained)
    text = MaskedText.of_stream(torch.arange(100).numpy())
    own = AtLength(tmp_path / "data", tmp_path, {"a": []}, [0.1], [1], 5, 1, length=32, text=text)
    (tmp_path / "checkpoint_last.pt").touch()
    for measure in (
        lambda: own.losses(tmp_path, "checkpoint_last.pt", 32),
        lambda: own.update(Tuned("a", {0.1: 9.0}, 0.1, {1: 9.0})),
    ):
        with pytest.raises(Asked):
            measure()
    assert asked == [str(first)] * 2


def pretrained(name, n, values, curve, seconds):
    """Of two seeds, whose perplexities in rows of 16 are twice those in rows of n."""
    losses = {rows: _losses(values, 1 if rows == n else 2) for rows in (16, 32) if rows <= n}
    cost = {"seconds": seconds, "low": seconds / 2, "high": 2 * seconds}
    tuned = Tuned(name, {0.1: values[0], 0.2: 99.0}, 0.1, dict(enumerate(values, 1)))
    return Pretrained(n, tuned, losses, {1: curve, 2: curve}, cost, updates=100)


def _losses(values, factor):
    return {
        seed: Losses((0, 8), (math.log(factor * x), math.log(factor * x)), (1, 1)) for seed, x in enumerate(values, 1)
    }


PICTURES = ("lengths.png", "positions.png")
CURVE = {25: 80.0, 100: 20.0}
ALL = [
    pretrained("softmax", 16, [10.0, 20.0], CURVE, 0.6),
    pretrained("near_and_far", 16, [20.0, 20.0], CURVE, 1.2),
    pretrained("softmax", 32, [11.0, 18.0], CURVE, 6.0),
]


def test_time_is_updates_times_the_median_and_perplexity_lies_on_a_line_between_those_measured():
    own = ALL[0]
    assert own.minutes == pytest.approx(1)
    assert own.after(1) == pytest.approx([20, 20]) and own.after(0.25) == pytest.approx([80, 80])
    assert own.after(0.5) == pytest.approx([40, 40]), "half of the updates, between 25 and 100 on a logarithmic scale"
    assert own.after(0.2) is None


def test_the_table_compares_with_the_first_variant_at_the_same_n_seed_by_seed():
    assert lengths_tables(ALL).splitlines() == [
        "| variant | n | lr | perplexity after 100 updates, seeds 1, 2 | against softmax, same n | after 1.0 min "
        "| in rows of 16 | ms per update |",
        "|---|---|---|---|---|---|---|---|",
        "| softmax | 16 | 0.1 | 15.00 ± 7.07 |  | 20.00 ± 0.00 |  | 600 (300 to 1200) |",
        "| softmax | 32 | 0.1 | 14.50 ± 4.95 |  | not measured | 29.00 ± 9.90 | 6000 (3000 to 12000) |",
        "| near_and_far | 16 | 0.1 | 20.00 ± 0.00 | +50.0 ± 70.7 % | 40.00 ± 0.00 |  | 1200 (600 to 2400) |",
        "",
        "| perplexity with seed 1 | n | lr 0.1 | lr 0.2 |",
        "|---|---|---|---|",
        "| softmax | 16 | 10.00 | 99.00 |",
        "| near_and_far | 16 | 20.00 | 99.00 |",
        "| softmax | 32 | 11.00 | 99.00 |",
    ]


def test_the_learning_rate_was_tried_with_the_seed_that_is_given_first():
    own = pretrained("softmax", 16, [10.0, 20.0], CURVE, 0.6)
    assert "| perplexity with seed 2 | n |" in lengths_tables([replace(own, curves={2: CURVE, 1: CURVE})])


def test_a_variant_without_a_measure_at_equal_time_is_drawn_where_it_has_one(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *arguments, **options: figures.append(figure))
    draw_lengths(ALL, tmp_path / "lengths.png")
    draw_positions(ALL, tmp_path / "positions.png")
    (updates, time, cost), parts = figures[0].axes, figures[1].axes
    curves = {
        panel: [curve[0].get_xydata().round(6).tolist() for curve in panel.containers]
        for panel in (updates, time, cost)
    }
    assert curves[updates] == [[[16, 15], [32, 14.5]], [[16, 20]]]
    assert curves[time] == [[[16, 20]], [[16, 40]]], "none at n = 32, which is too slow"
    assert curves[cost] == [[[16, 600], [32, 6000]], [[16, 1200]]]
    assert [panel.get_title() for panel in parts] == ["softmax", "near_and_far"] * 2
    assert [len(panel.get_lines()) for panel in parts] == [2, 1] * 2


def naive_perplexity(roberta, text, length):
    """Row by row, with the logits of every position."""
    losses = []
    for start in range(0, len(text.tokens), length - 1):
        tokens, masked = (x[start : start + length - 1] for x in (text.tokens, text.masked))
        row = torch.cat([torch.tensor([0]), torch.where(masked, roberta.task.mask_idx, tokens)])
        with torch.no_grad():
            logits = roberta.model(row.unsqueeze(0))[0][0, 1:]
        losses.append(F.cross_entropy(logits[masked], tokens[masked], reduction="none"))
    return math.exp(torch.cat(losses).mean())


@pytest.mark.exhaustive
def test_the_command_trains_measures_and_draws_once(corpus, tmp_path):
    words = ["scripts/compare_lengths.py", "--data", corpus, "--out", "out", "--variant", "means", *MEANS]
    words += ["--lengths", 64, 32, "--learning-rates", 0.01, "--seeds", 1, "--updates", 4, "--rounds", 1]
    printed, out = run(*words, cwd=tmp_path), tmp_path / "out"
    tables = (out / "results.md").read_text()
    assert tables in printed and all((out / name).stat().st_size > 10_000 for name in PICTURES)
    results = json.loads((out / "results.json").read_text())
    short, long = results["pretrained"]
    assert (results["tokens_per_update"], short["n"], long["n"]) == (64, 32, 64)
    assert [*short["in_rows_of"]] == ["32"] and [*long["in_rows_of"]] == ["32", "64"]
    assert all(
        [*own["by_updates"]["1"]] == ["1", "2", "3", "4"] and own["cost"]["seconds"] > 0 for own in (short, long)
    )
    assert long["by_updates"]["1"]["4"] == long["in_rows_of"]["64"]["1"] == long["perplexities"]["1"]
    assert sum(short["bins"]["masked_tokens"]) == sum(long["bins"]["masked_tokens"])

    folder = out / "n64" / "means" / "lr0.01" / "seed1"
    roberta = LinformerRobertaModel.from_pretrained(str(folder), "checkpoint_last.pt", str(corpus))
    text = MaskedText.of_stream(read_split(corpus, "valid", 64))
    for rows in (32, 64):
        expected = naive_perplexity(roberta.eval(), text, rows)
        assert long["in_rows_of"][str(rows)]["1"] == pytest.approx(expected, rel=1e-5), rows

    files = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    (folder / "losses" / "rows32-0.json").write_text("of another checkpoint")
    assert tables in run(*words, cwd=tmp_path)
    again = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    changed = {path.name for path, time in files.items() if again[path] != time}
    assert changed <= {"results.json", "results.md", *PICTURES, "train.log"}
