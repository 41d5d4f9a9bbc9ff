"""The pictures of all studies: styles and what is drawn."""

import pytest
from benchmarking.plots import Panel, draw, draw_map, frontier, styles
from matplotlib.colors import to_hex
from matplotlib.figure import Figure


@pytest.mark.parametrize("count", [1, 16, 17, 30])
def test_no_two_curves_of_a_legend_share_a_colour(count):
    looks = styles(f"variant {number}" for number in range(count))
    assert len({to_hex(look["color"]) for look in looks.values()}) == len(looks) == count


def test_a_picture_has_the_mean_of_every_curve_and_one_legend(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *arguments, **options: figures.append(figure))
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


def test_a_map_has_a_number_in_every_cell(tmp_path):
    draw_map({"a": {"D=2": 20.0, "D=4": 80.0}, "b": {"D=2": 1.0, "D=4": 2.0}}, "title", tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 5_000


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
