"""The picture of scripts/long_documents.py: accuracy, and time per update, against n."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from .plots import scale_lengths, style_of

BESIDE = {"baseline": ("TF-IDF + linear SVM", "--"), "majority": ("most frequent label", ":")}


def draw_lengths(done: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Accuracy with its deviation over seeds, and the time of an update with its quartiles, against n.

    Args:
        done: the results of each length, in ascending order.
        path: of the PNG.
    """
    figure = Figure(figsize=(12, 5), layout="constrained")
    accuracies, times = figure.subplots(1, 2)
    names = dict.fromkeys(own["name"] for results in done for own in results["variants"])
    for number, name in enumerate(names):
        found = [(r["length"], own) for r in done for own in r["variants"] if own["name"] == name]
        lengths = [n for n, _ in found]
        style = style_of(number)
        shares = [[100 * share for share in own["accuracies"].values()] for _, own in found]
        spread = [statistics.stdev(own) if len(own) > 1 else 0.0 for own in shares]
        accuracies.errorbar(lengths, [statistics.mean(own) for own in shares], spread, capsize=3, label=name, **style)
        costs = [own["cost"] for _, own in found]
        middle = [1000 * cost["seconds"] for cost in costs]
        below = [1000 * (cost["seconds"] - cost["low"]) for cost in costs]
        above = [1000 * (cost["high"] - cost["seconds"]) for cost in costs]
        times.errorbar(lengths, middle, (below, above), capsize=3, **style)
    lengths = [results["length"] for results in done]
    for what, (label, line) in BESIDE.items():
        values = [100 * results[what] for results in done]
        accuracies.plot(lengths, values, color="0.6", linestyle=line, marker="_", linewidth=2.5, label=label, zorder=0)
    for panel in (accuracies, times):
        scale_lengths(panel, lengths)
        panel.grid(color="0.9")
    accuracies.set(xlabel="n", ylabel="test rows found, %", ylim=(0, 105), title=done[0]["task"])
    tokens = " and ".join(sorted({f"{results['tokens']:,}" for results in done}))
    times.set(xlabel="n", ylabel="ms per update (median, quartiles)", ylim=(0, None))
    times.set_title(f"an update has {tokens} tokens, at least one row")
    figure.legend(*accuracies.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=120)
