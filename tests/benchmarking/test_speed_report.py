"""The report of the study speed: tables and pictures, from rows."""

import math

import pytest
from benchmarking import suites
from benchmarking.speed import Speed, settings_of
from benchmarking.speed_report import (
    LABELS,
    cost_ratios,
    efficiency_length,
    efficiency_table,
    exponent,
    rows_table,
    savings,
    write_report,
)
from benchmarking.store import Store
from matplotlib.figure import Figure

from tests.helpers.benchmarks import MACHINE, plan


def test_savings_and_exponents():
    def row(model, n, k, seconds):
        return {"model": model, "n": n, "k": k, "seconds": seconds}

    rows = [
        row("softmax", 1024, 128, 8.0),
        row("linformer", 1024, 128, 2.0),
        {"model": "linformer", "n": 1024, "k": 256},
    ]
    last = savings(rows, "seconds", {1024: (1.7, 1.6, 1.3)}).splitlines()[-1]
    assert last == "| 1024 | 4.0 (1.7) | not measured (1.6) | not measured (1.3) |  |  |"
    assert exponent([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)


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
            "tokens_per_second": 1024.0,
            "memory_skipped": "no memory",
        },
        {**case, "model": "hf-roberta", "skipped": "No module named 'transformers'"},
    ]
    header, _, *lines = rows_table(rows).splitlines()
    assert header.endswith("| times as long as `linformer` | MiB | fraction of the measured GEMM peak |")
    assert lines == [
        "| n=512 | `linformer` | 250.0 (200.0 to 300.0) | 2,048 | 1.00 | 1,234 | 89 % |",
        "| n=512 | `softmax` compiled | 250.0 (200.0 to 300.0) | 1,024 | 2.00 | no memory |  |",
        "| n=512 | `hf-roberta` | not measured: No module named 'transformers' |  |  |  |  |",
    ]


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved."""
    saved = []
    save = Figure.savefig

    def keep_and_save(figure, *arguments, **options):
        saved.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep_and_save)
    return saved


def overview_row(model, n, **measured):
    return {"suite": "overview", "group": f"n={n}", "model": model, "note": "", "n": n, **measured}


def test_the_overview_draws_every_model_where_it_was_measured(figures, tmp_path):
    time = {"low": 0.1, "high": 0.1, "tokens_per_second": 1.0}
    models = LABELS
    rows = [overview_row(model, n, seconds=n / 1024, MiB=2.0 * n, **time) for model in models for n in (512, 1024)]
    rows[-1] = overview_row("fairseq-roberta", 1024, skipped="took 61 s")
    write_report(tmp_path, {}, rows)
    assert (tmp_path / "overview.png").stat().st_size > 10_000
    (figure,) = figures
    for panel, scale in zip(figure.axes, (1 / 1024, 2 / 1024), strict=True):
        curves = {own.get_label(): own[0].get_xydata().tolist() for own in panel.containers}
        assert len(curves) == 4 and panel.get_xscale() == panel.get_yscale() == "log"
        assert curves["Linformer (ours)"] == [[512, 512 * scale], [1024, 1024 * scale]]
        assert curves["full attention (fairseq)"] == [[512, 512 * scale]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*curves]


def test_without_times_the_overview_is_of_memory_alone(figures, tmp_path):
    write_report(tmp_path, {}, [overview_row("linformer", n, MiB=n) for n in (512, 1024)])
    (figure,) = figures
    assert [panel.get_ylabel() for panel in figure.axes] == ["peak memory (GiB)"]


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
        "| width | phase | mechanism | less time from n | less peak memory from n |",
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
    assert [panel.get_title() for panel in figure.axes] == ["width of tiny", "width of large"] * 4
    what = ["time, inference", "peak memory, inference", "time, training step", "peak memory, training step"]
    assert [panel.get_ylabel() for panel in figure.axes[::2]] == what
    for panel in figure.axes:
        (curve,) = panel.containers
        assert curve.get_label() == "linformer" and curve[0].get_xydata().tolist() == [[128, 2.0], [512, 0.5]]
        assert panel.get_lines()[-1].get_label() == "full attention" and panel.get_lines()[-1].get_ydata()[0] == 1.0


def test_the_plot_names_what_one_width_lacks_and_the_report_does_without_full_attention(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *arguments, **options: figures.append(figure))
    rows = [*rows_of("softmax", (2, 8)), *rows_of("linformer", (4, 4))]
    rows += [*rows_of("softmax", (2, 8), "base"), *rows_of("nystrom", (4, 4), "base")]
    write_report(tmp_path, {}, rows)
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["full attention", "linformer", "nystrom"]
    assert "Efficiency lengths" not in write_report(tmp_path, {}, rows_of("linformer", (4, 4)))


@pytest.mark.exhaustive
def test_the_suite_measures_every_width_and_phase(tmp_path):
    own = plan(tokens=256, lengths=(256,))
    benchmark = Speed(own, MACHINE, 1, 30.0, Store(tmp_path, settings_of(own, MACHINE, 1, 30.0)))
    benchmark.run(["efficiency"])
    assert all(row["seconds"] > 0 and row["MiB"] > 0 for row in benchmark.rows)
    assert {(row["n"], row["k"]) for row in benchmark.rows} == {(128, 64), (256, 128)}
    table = efficiency_table(benchmark.rows).splitlines()[2:]
    assert len(table) == 3 * 2 * 5 and "not measured" not in str(table)
    parameters = [next(suites.efficiency(plan(lengths=(256,)))).cases[0].sizes, benchmark.plan.sizes]
    assert [(sizes.layers, sizes.embed_dim, sizes.heads) for sizes in parameters] == [(1, 256, 4), (1, 24, 3)]
    benchmark.run(["efficiency"])
    write_report(tmp_path, benchmark.store.settings, benchmark.rows)
    assert (tmp_path / "efficiency.png").stat().st_size > 10_000
