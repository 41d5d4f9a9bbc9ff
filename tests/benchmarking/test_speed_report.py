"""The report of the study speed: its tables, the efficiency length, and the pictures."""

import math

import pytest
from benchmarking import suites
from benchmarking.speed import Runner, measure_suites, settings_of
from benchmarking.speed_report import efficiency_length, exponent, lengths_table, rows_table, write_report
from benchmarking.store import Store

from tests.helpers.benchmarks import MACHINE, plan


def rows_of(model, cost, phase="inference", lengths=(128, 512), note="", suite="efficiency", d=64):
    """Rows of one row each whose times are given; memory is a tenth of them."""
    case = {"suite": suite, "model": model, "note": note, "phase": phase, "d": d, "rows": 1}
    time = {"low": 1.0, "high": 1.0}
    return [
        {
            **{**case, "group": f"d={d}, {phase}, n={n}", "n": n, **time},
            **{"seconds": float(seconds), "MiB": seconds / 10, "tokens_per_second": n / seconds},
        }
        for n, seconds in zip(lengths, cost, strict=True)
    ]


def test_a_table_has_what_was_measured_and_says_why_the_rest_was_not():
    case = {"group": "n=512", "note": ""}
    time = {"seconds": 0.25, "low": 0.2, "high": 0.3, "tokens_per_second": 2048.0}
    rows = [
        {**case, "model": "linformer", **time, "MiB": 1234.5, "gemm_fraction": 0.894},
        {
            **case,
            "model": "softmax",
            "note": "compiled",
            **time,
            "seconds": 0.5,
            "memory_skipped": "no memory",
        },
        {**case, "model": "hf-roberta", "skipped": "No module named 'transformers'"},
    ]
    header, _, *lines = rows_table(rows).splitlines()
    assert header.endswith("| times as long as `linformer` | MiB | fraction of the measured GEMM peak |")
    assert lines == [
        "| n=512 | `linformer` | 250.0 (200.0 to 300.0) | 2,048 | 1.00 | 1,234 | 89 % |",
        "| n=512 | `softmax` compiled | 500.0 (200.0 to 300.0) | 2,048 | 2.00 | no memory |  |",
        "| n=512 | `hf-roberta` | not measured: No module named 'transformers' |  |  |  |  |",
    ]


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({128: 2.0, 256: 0.5}, 128 * math.sqrt(2)),  # as far above 1 as below it, in logarithms
        ({128: 8.0, 512: 0.5}, 128 * 4**0.75),  # three of four steps of the way
        ({512: 0.5, 128: 8.0}, 128 * 4**0.75),  # whatever their order
        ({128: 1.0, 256: 0.5}, 128.0),  # equal is not less, but from there on it is
        ({128: 0.9, 256: 0.5}, 0.0),
        ({128: 2.0, 256: 1.0}, math.inf),
        ({128: 0.5, 256: 2.0, 512: 0.5}, 256 * math.sqrt(2)),  # the last crossing: what is longer is cheaper, too
        ({128: 0.5, 256: 2.0}, math.inf),
    ],
)
def test_known_crossings(ratios, expected):
    assert efficiency_length(ratios) == pytest.approx(expected, rel=1e-12)


def test_each_width_and_phase_is_compared_with_its_own_full_attention():
    rows = [*rows_of("softmax", (2, 8)), *rows_of("linformer", (4, 4)), *rows_of("nystrom", (1, 2))]
    rows += [*rows_of("softmax", (10, 10), d=96), *rows_of("linformer", (20, 20), d=96)]
    rows += rows_of("linformer", (40, 5), d=96, note="near_and_far")
    rows += rows_of("linformer", (1, 16), "training step")  # full attention took too long
    rows[2] |= {"MiB": 0.1}  # of Linformer at n = 128
    assert lengths_table(rows, "seconds").replace("-0.00", "0.00").splitlines() == [
        "| d | phase | model | `softmax` / it, n=128 | `softmax` / it, n=512 | less from n | n to the power of |",
        "|---|---|---|---|---|---|---|",
        "| 64 | inference | `softmax` |  |  |  | 1.00 |",
        "| 64 | inference | `linformer` | 0.50 | 2.00 | 256 | 0.00 |",
        "| 64 | inference | `nystrom` | 2.00 | 4.00 | 128 or less | 0.50 |",
        "| 96 | inference | `softmax` |  |  |  | 0.00 |",
        "| 96 | inference | `linformer` | 0.50 | 0.50 | not up to 512 | 0.00 |",
        "| 96 | inference | `linformer near_and_far` | 0.25 | 2.00 | 323 | -1.50 |",
        "| 64 | training step | `linformer` |  |  |  | 2.00 |",
    ]
    assert "| 64 | inference | `linformer` | 2.00 | 2.00 | 128 or less |" in lengths_table(rows, "MiB")
    several = [{**row, "rows": 4} for row in rows if row["model"] == "linformer"]
    assert lengths_table(several, "seconds").splitlines()[0] == "| d | phase | model |"
    assert exponent({1: 3.0, 2: 12.0, 4: 48.0}) == pytest.approx(2.0)


def curves(panel):
    return {own.get_label(): own[0].get_xydata().tolist() for own in panel.containers}


def test_a_picture_has_a_panel_for_each_width_phase_and_cost(figures, tmp_path):
    rows = []
    for d in (64, 96):
        for phase in ("inference", "training step"):
            rows += [*rows_of("softmax", (2, 8), phase, d=d), *rows_of("linformer", (4, 4), phase, d=d)]
    assert "### efficiency: time against n\n\n| d |" in write_report(tmp_path, {}, rows)
    (figure,) = figures
    assert [panel.get_title() for panel in figure.axes[:2]] == ["d = 64, inference", "d = 96, inference"]
    what = ["time", "peak memory"] * 2
    assert [panel.get_ylabel() for panel in figure.axes[::2]] == [f"{own}, multiples of `softmax`" for own in what]
    level = figure.axes[0].get_lines()[-1]
    assert level.get_label() == "softmax" and level.get_ydata()[0] == 1.0
    # in multiples of time per token, whatever the number of tokens
    assert all(curves(panel) == {"linformer": [[128, 2.0], [512, 0.5]]} for panel in figure.axes)


def test_every_model_is_drawn_where_it_was_measured(figures, tmp_path):
    rows = [row for model in ("linformer", "softmax") for row in rows_of(model, (64, 512), suite="overview")]
    rows[-1] = {name: x for name, x in rows[-1].items() if name not in ("seconds", "MiB")} | {"skipped": "took 61 s"}
    write_report(tmp_path, {}, rows)
    (figure,) = figures
    time, memory = map(curves, figure.axes)
    assert time == {"linformer": [[128, 5e5], [512, 1e6]], "softmax": [[128, 5e5]]}
    assert memory["linformer"] == [[128, 6.4], [512, 51.2]]
    for row in rows:
        row.pop("seconds", None)
    write_report(tmp_path, {}, rows)
    assert [panel.get_ylabel() for panel in figures[1].axes] == ["peak memory, MiB"], "without times, of memory alone"


@pytest.mark.exhaustive
def test_the_suite_efficiency_measures_every_width_and_phase(tmp_path):
    own, runner = plan(tokens=256, lengths=(256,)), Runner(MACHINE, 1, 30.0)
    rows = measure_suites(["efficiency"], own, runner, Store(tmp_path, settings_of(own, runner)))
    assert all(row["seconds"] > 0 and row["MiB"] > 0 for row in rows)
    assert {(row["n"], row["k"]) for row in rows} == {(128, 64), (256, 128)}
    assert len(lengths_table(rows, "seconds").splitlines()) == 2 + 3 * 2 * 6
    parameters = [next(suites.efficiency(plan(lengths=(256,)))).cases[0].sizes, own.sizes]
    assert [(sizes.layers, sizes.embed_dim, sizes.heads) for sizes in parameters] == [(1, 256, 4), (1, 24, 3)]
    write_report(tmp_path, {}, rows)
    assert (tmp_path / "efficiency.png").stat().st_size > 10_000
