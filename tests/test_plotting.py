"""Style of pictures: curves differ, axes have labelled ticks, and a legend fits into its figure."""

import pytest
from matplotlib.colors import to_rgb

from fairseq_linformer.plotting import COLORS, legend, picture, scale_lengths, scale_log, style_in_order, style_of


def test_no_two_curves_look_alike():
    assert len({to_rgb(colour) for colour in COLORS}) == len(COLORS) == 16
    assert len({tuple(style_of(number).values()) for number in range(208)}) == 208
    assert len({style_in_order(number, 24)["color"] for number in range(24)}) == 24


@pytest.mark.parametrize(
    ("lengths", "low", "high", "expected"),
    [
        ((), 0.92, 1.13, ["0.95", "1", "1.05", "1.1"]),
        ((), 1.3, 40, ["2", "5", "10", "20"]),
        ((), 1e-6, 30, ["1e-06", "1e-05", "0.0001", "0.001", "0.01", "0.1", "1", "10"]),
        ((), 900, 70_000, ["1,000", "2,000", "5,000", "10,000", "20,000", "50,000"]),
        ([512, 1024, 65536], 500, 70_000, ["512", "1k", "64k"]),
        ([2**power for power in range(17)], 1.9, 70_000, ["2", "16", "128", "1k", "8k", "64k"]),
    ],
)
def test_a_logarithmic_axis_has_labels_on_any_range(lengths, low, high, expected, figures):
    with picture("a.png", 1, 1, 3, 3) as (_, [[panel]]):
        panel.plot([1, 2], [low, high])
        if lengths:
            scale_lengths(panel.yaxis, lengths)
        else:
            scale_log(panel.yaxis)
        panel.set_ylim(low, high)
        ticks = sorted(tick for tick in panel.yaxis.get_major_locator()() if low <= tick <= high)
        assert [panel.yaxis.get_major_formatter()(tick) for tick in ticks] == expected


def test_a_legend_is_as_wide_as_the_figure_at_most(figures):
    with picture("a.png", 1, 1, 5, 5) as (figure, [[panel]]):
        for number in range(9):
            panel.plot([1, 2], label=f"a variant with a long name {number}")
        legend(figure, [panel])
    (box,) = figures[0].legends
    assert box._ncols == 2 and box.get_window_extent().width <= figures[0].bbox.width
