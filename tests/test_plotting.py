"""The style of pictures: what stands in one legend can be told apart, and every axis has ticks with labels."""

import pytest
from matplotlib.colors import to_rgb

from fairseq_linformer.plotting import (
    COLORS,
    picture,
    scale_lengths,
    scale_log,
    style_in_order,
    style_of,
)


def ticks(axis):
    """The labels of the ticks that are seen."""
    low, high = axis.get_view_interval()
    return [axis.get_major_formatter()(tick) for tick in axis.get_major_locator()() if low <= tick <= high]


def test_no_two_curves_look_alike():
    assert len({to_rgb(colour) for colour in COLORS}) == len(COLORS) == 16
    assert len({tuple(style_of(number).values()) for number in range(208)}) == 208
    assert len({style_in_order(number, 24)["color"] for number in range(24)}) == 24
    assert style_in_order(0, 1)["linestyle"] == "-"


@pytest.mark.parametrize(
    "low, high, expected",
    [
        (0.92, 1.13, ["0.95", "1", "1.05", "1.1"]),
        (20.5, 24.9, ["21", "22", "23", "24"]),
        (1.3, 40, ["2", "5", "10", "20"]),
        (1e-6, 30, ["1e-06", "1e-05", "0.0001", "0.001", "0.01", "0.1", "1", "10"]),
        (900, 70_000, ["1,000", "2,000", "5,000", "10,000", "20,000", "50,000"]),
    ],
)
def test_a_logarithmic_axis_has_labels_on_any_range(low, high, expected, tmp_path):
    with picture(tmp_path / "a.png", 1, 1, 3, 3) as (_, panels):
        axis = panels[0, 0].yaxis
        panels[0, 0].plot([1, 2], [low, high])
        scale_log(axis)
        panels[0, 0].set_ylim(low, high)
        assert ticks(axis) == expected
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "lengths, expected",
    [
        ([512, 1024, 65536], ["512", "1k", "64k"]),
        ([100, 2**20], ["100", "1,024k"]),
        ([2**power for power in range(17)], ["2", "16", "128", "1k", "8k", "64k"]),
    ],
)
def test_an_axis_of_lengths_is_marked_at_them(lengths, expected, tmp_path):
    with picture(tmp_path / "a.png", 1, 1, 3, 3) as (_, panels):
        panels[0, 0].plot(lengths, lengths)
        scale_lengths(panels[0, 0].xaxis, lengths)
        assert sorted(ticks(panels[0, 0].xaxis)) == sorted(expected)
