"""The pictures of all studies: styles and what is drawn."""

import pytest
from benchmarking.plots import Dots, Panel, draw, draw_dots, styles
from matplotlib.colors import to_hex


@pytest.mark.parametrize("count", [1, 16, 17, 30])
def test_no_two_curves_of_a_legend_share_a_colour(count):
    looks = styles(f"variant {number}" for number in range(count))
    assert len({to_hex(look["color"]) for look in looks.values()}) == len(looks) == count


def test_a_picture_has_the_mean_of_every_curve_and_one_legend(figures, tmp_path):
    levels = {"level": 2.0, "a": 3.0}
    first = Panel({"a": {512: [1.0, 3.0], 1024: []}, "b": {512: [5.0]}}, "one", y="cost", beside=levels)
    second = Panel({"a": {0.1: [4.0], 0.9: [2.0]}}, "two", "x", "other", scale="logit", log=False, limits=(0, 5))
    draw([[first, second]], tmp_path / "a.png", "both")
    (figure,) = figures
    curves = [[line[0].get_xydata().tolist() for line in panel.containers] for panel in figure.axes]
    assert curves == [[[[512, 2.0]], [[512, 5.0]]], [[[0.1, 4.0], [0.9, 2.0]]]], "none where nothing was measured"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["level", "a", "b"]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["1k", "512"]
    assert figure.axes[0].get_yscale() == "log" and figure.axes[1].get_ylim() == (0, 5)


def test_dots_stand_in_the_line_of_their_name(figures, tmp_path):
    series = {"far": {"a": [1.0, 3.0], "b": [], "c": [5.0]}, "near": {"c": [4.0]}}
    draw_dots([Dots(series, "cost"), Dots({"": {"b": [7.0]}}, "time")], tmp_path / "a.png")
    (figure,) = figures
    dots = [[series[0].get_xydata().tolist() for series in panel.containers] for panel in figure.axes]
    assert dots == [[[[2.0, 0], [5.0, 2]], [[4.0, 2]]], [[[7.0, 1]]]], "none where nothing was measured"
    first, second = figure.axes
    assert [text.get_text() for text in first.get_yticklabels()] == ["a", "b", "c"] and first.yaxis_inverted()
    assert second.get_xlabel() == "time" and [text.get_text() for text in figure.legends[0].get_texts()] == [
        "far",
        "near",
    ]
