"""From which n a mechanism costs less than full attention: the interpolation, the table, the plot and the suite."""

import math

import pytest
from benchmarking import efficiency, suites
from benchmarking.efficiency import cost_ratios, efficiency_length, efficiency_table
from benchmarking.report import write_report
from benchmarking.runner import Benchmark
from matplotlib.figure import Figure

from tests.helpers.benchmarks import MACHINE, plan


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


def rows_of(model, cost, width="tiny", phase="inference", lengths=(128, 512), note=""):
    """Rows of the suite whose times are given; memory is a tenth of them."""
    case = {"suite": "efficiency", "model": model, "note": note, "phase": phase}
    time = {"low": 1.0, "high": 1.0, "tokens_per_second": 1.0}
    return [
        {**case, "group": f"{width}, {phase}, n={n}", "n": n, "seconds": float(seconds), "MiB": seconds / 10, **time}
        for n, seconds in zip(lengths, cost, strict=True)
    ]


def test_each_width_and_phase_is_compared_with_its_own_full_attention():
    rows = [*rows_of("softmax", (2, 8)), *rows_of("linformer", (4, 4)), *rows_of("nystrom", (1, 2))]
    rows += [*rows_of("softmax", (10, 10), "base"), *rows_of("linformer", (20, 20), "base")]
    rows += rows_of("linformer", (40, 5), "base", note="near_and_far")
    rows += [*rows_of("linformer", (1, 1), phase="training step")]  # full attention took too long
    rows[2] |= {"MiB": 0.1}  # of Linformer at n = 128
    del rows[8]["MiB"], rows[9]["MiB"]  # of Linformer with the width of base
    assert cost_ratios(rows, "seconds")["tiny", "inference", "linformer"] == {128: 2.0, 512: 0.5}
    assert efficiency_table(rows).splitlines() == [
        "| width | | mechanism | less time from n | less memory from n |",
        "|---|---|---|---|---|",
        "| tiny | inference | `linformer` | 256 | 128 or less |",
        "| tiny | inference | `nystrom` | 128 or less | 128 or less |",
        "| base | inference | `linformer` | not up to 512 | not measured |",
        "| base | inference | `near_and_far` | 323 | 323 |",
    ]


def test_the_plot_has_a_panel_for_each_width_phase_and_cost(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *arguments, **options: figures.append(figure))
    rows = []
    for width in ("tiny", "large"):
        for phase in ("inference", "training step"):
            rows += [*rows_of("softmax", (2, 8), width, phase), *rows_of("linformer", (4, 4), width, phase)]
    assert "## Efficiency lengths\n\n| width |" in write_report(tmp_path, {}, rows)
    (figure,) = figures
    assert [panel.get_title() for panel in figure.axes] == ["width of tiny", "width of large"] + 6 * [""]
    what = ["time, inference", "memory, inference", "time, training step", "memory, training step"]
    assert [panel.get_ylabel() for panel in figure.axes[::2]] == what
    for panel in figure.axes:
        curve, _ = panel.get_lines()  # the last one is at 1
        assert curve.get_label() == "linformer" and curve.get_xydata().tolist() == [[128, 2.0], [512, 0.5]]
    assert set(efficiency.STYLES) == {*suites.EFFICIENCY, "near_and_far"} - {"softmax"}, "each has a style of its own"


def test_the_plot_names_what_one_width_lacks_and_the_report_does_without_full_attention(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *arguments, **options: figures.append(figure))
    rows = [*rows_of("softmax", (2, 8)), *rows_of("linformer", (4, 4))]
    rows += [*rows_of("softmax", (2, 8), "base"), *rows_of("nystrom", (4, 4), "base")]
    write_report(tmp_path, {}, rows)
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["linformer", "nystrom"]
    assert "Efficiency lengths" not in write_report(tmp_path, {}, rows_of("linformer", (4, 4)))


@pytest.mark.exhaustive
def test_the_suite_measures_every_width_and_phase(tmp_path):
    benchmark = Benchmark(plan(tokens=256, lengths=(256,)), MACHINE, 1, 30.0, tmp_path)
    benchmark.run(["efficiency"])
    assert all(row["seconds"] > 0 and row["MiB"] > 0 for row in benchmark.rows)
    assert {(row["n"], row["k"]) for row in benchmark.rows} == {(128, 64), (256, 128)}
    table = efficiency_table(benchmark.rows).splitlines()[2:]
    assert len(table) == 3 * 2 * 5 and "not measured" not in str(table)
    parameters = [next(suites.efficiency(plan(lengths=(256,)))).cases[0].sizes, benchmark.plan.sizes]
    assert [(sizes.layers, sizes.embed_dim, sizes.heads) for sizes in parameters] == [(1, 256, 4), (1, 24, 3)]
    benchmark.run(["efficiency"])
    write_report(tmp_path, benchmark.settings, benchmark.rows)
    assert (tmp_path / "efficiency.png").stat().st_size > 10_000
