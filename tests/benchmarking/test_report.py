"""Tables and plots, from rows."""

import pytest
from benchmarking import plots
from benchmarking.report import as_table, exponent, savings, write_report
from matplotlib.figure import Figure


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
    header, _, *lines = as_table(rows).splitlines()
    assert header.endswith("| MiB | fraction of the measured GEMM peak |")
    assert lines == [
        "| n=512 | `linformer` | 250.0 (200.0 to 300.0) | 2,048 | 1.00 x | 1,234 | 89 % |",
        "| n=512 | `softmax` compiled | 250.0 (200.0 to 300.0) | 1,024 | 0.50 x | no memory |  |",
        "| n=512 | `hf-roberta` | not measured: No module named 'transformers' | | | | |",
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
    models = plots.OVERVIEW_STYLES
    rows = [overview_row(model, n, seconds=n / 1024, MiB=2.0 * n, **time) for model in models for n in (512, 1024)]
    rows[-1] = overview_row("fairseq-roberta", 1024, skipped="took 61 s")
    write_report(tmp_path, {}, rows)
    assert (tmp_path / "overview.png").stat().st_size > 10_000
    (figure,) = figures
    for panel, scale in zip(figure.axes, (1 / 1024, 2 / 1024), strict=True):
        curves = {line.get_label(): line.get_xydata().tolist() for line in panel.get_lines()}
        assert len(curves) == 4 and panel.get_xscale() == panel.get_yscale() == "log"
        assert curves["Linformer (ours)"] == [[512, 512 * scale], [1024, 1024 * scale]]
        assert curves["full attention (fairseq)"] == [[512, 512 * scale]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*curves]


def test_without_times_the_overview_is_of_memory_alone(figures, tmp_path):
    write_report(tmp_path, {}, [overview_row("linformer", n, MiB=n) for n in (512, 1024)])
    (figure,) = figures
    assert [panel.get_ylabel() for panel in figure.axes] == ["peak memory (GiB)"]
