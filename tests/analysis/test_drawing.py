"""The pictures: curves that can be told apart, axes that can be read, and no panel that could not be otherwise."""

import pytest
from matplotlib.colors import to_rgb

from fairseq_linformer.analysis import drawing
from fairseq_linformer.analysis.findings import describe_loss
from fairseq_linformer.analysis.low_rank import OWN
from fairseq_linformer.analysis.measuring import measure
from tests.helpers.models import small, tokens


@pytest.fixture(scope="module")
def measured():
    model = small(attention="linformer", max_positions=64, sharing="headwise", encoder_layers=8).eval()
    return measure(model.encoder.sentence_encoder, tokens(1), [8] * 8)


POINTS = [{"updates": n, "effective rank": [n, 5.0], "local": [0.99, 0.9901 + n / 1e6], "all": [3]} for n in (1, 2)]


def test_no_colour_stands_twice_in_a_legend(measured, figures):
    drawing.draw_spectrum(measured.spectrum, "")
    drawing.draw_ranks(measured.spectrum, "")
    drawing.draw_low_rank(measured.low_rank, 64, "")
    drawing.draw_rows(measured.matrices["matrices"], "")
    drawing.draw_use(measured.matrices["layers"], "")
    drawing.draw_training(POINTS, "")
    for figure in figures:
        colours = {}
        for panel in figure.axes:
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
                line = getattr(handle, "lines", [handle])[0]  # of bars of errors
                colours.setdefault(label, to_rgb(line.get_color()))
        assert len({*colours.values()}) == len(colours) == len(figure.legends[0].get_texts()) > 1


def test_the_use_of_rows_that_differ_little_can_be_read(figures):
    drawing.draw_use([{"use": [1.06, 1.0, 0.94], "share": 1.0}], "")
    axis = figures[0].axes[0].yaxis
    low, high = axis.get_view_interval()
    assert sum(low <= tick <= high for tick in axis.get_major_locator()()) >= 3


def test_the_spectrum_of_a_linformer_ends_at_k(measured, figures):
    drawing.draw_spectrum(measured.spectrum, "")
    assert figures[0].axes[0].get_xlim() == pytest.approx((1, 1.05 * 8))


@pytest.mark.parametrize(("k", "ticks"), [(8, [8, 16, 32]), (24, [16, 24]), (32, [16, 32])])
def test_the_k_of_the_model_has_a_tick(k, ticks, figures):
    errors = [{"k": tried, "p5": 0.1, "median": 0.2, "p95": 0.3} for tried in (16, 32)]
    kinds = {"truncated SVD": errors, "segment means": errors, "Gaussian": errors, OWN: [{**errors[0], "k": k}]}
    drawing.draw_low_rank({"layers": [{"projected": kinds, "linformer": kinds}]}, 64, "")
    for panel in figures[0].axes:
        assert sorted(panel.xaxis.get_major_locator()()) == ticks


def test_a_form_that_was_not_measured_has_no_panels(figures):
    model = small(attention="softmax", positions="rotary").eval()
    found = measure(model.encoder.sentence_encoder, tokens(1), None)
    drawing.draw_low_rank(found.low_rank, 64, "")
    assert len(figures[0].axes) == len(found.low_rank["layers"])
    assert "Loss: smallest with segment means" in describe_loss(found.low_rank, found.spectrum)


def test_what_hardly_changes_with_updates_has_no_panel(figures):
    drawing.draw_training(POINTS, "")
    assert [panel.get_title() for panel in figures[0].axes] == ["effective rank"]
    drawing.draw_training([POINTS[0], {**POINTS[0], "updates": 2}], "")
    assert len(figures) == 1


def test_the_heat_map_says_which_share_it_is(measured, figures):
    drawing.draw_spectrum_heat(measured.spectrum, "")
    panel, bar = figures[0].axes
    assert panel.get_title() == "share of the 4 largest singular values"
    assert bar.get_ylabel() == "share of the sum of all 64"


def test_what_the_first_token_takes_has_one_scale_for_all_models(figures):
    models = [{"name": name, "attention": name, "maps": [[[[most, 1]]]]} for name, most in (("a", 4), ("b", 16))]
    drawing.draw_first_token({"tokens": ["x", "y"], "models": models, "unit": 0.01}, "")
    a, b, bar = figures[0].axes
    assert a.images[0].norm(0.04) == b.images[0].norm(0.04) == pytest.approx(0.5) and bar.get_ylabel() == "weight"
    assert b.images[0].norm(0.16) == pytest.approx(1)
