"""The multiplier of Linformer's learned matrix at several lengths (scripts/compare_multipliers.py)."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fairseq_linformer.system.files import write_whole

from .plots import draw_multipliers
from .variants import Comparison, as_table

K = 128
LENGTHS = [512, 2048, 4096]
MULTIPLIERS = [1.0, 2**-3, 2**-5, 2**-7, 2**-10]
TOKENS = 2048  # per update, at least one row
BESIDE = {
    "mean-pool": ["model.projection=mean-pool"],
    "one-mean": ["model.projection=mean-pool", "model.projected_length=1"],
}


def compare_multipliers(
    data: Path,
    out: Path,
    lengths: Sequence[int],
    multipliers: Sequence[float],
    learning_rates: Sequence[float],
    seeds: Sequence[int],
    updates: int,
    jobs: int,
) -> str:
    """Trains what is not complete, draws multipliers.png, and returns a table for each length.

    Args:
        data: a prepared corpus.
        lengths: n, multiples of ``K``.
        multipliers: c of E = c W.
        learning_rates, seeds, updates, jobs: as in ``Comparison``.

    Raises:
        UserError: a path is not allowed, or a folder in `out` is of something else.
        OSError: the data does not exist, or a training failed.
    """
    learned = {f"c{c:g}": [f"model.projection_multiplier={c}"] for c in multipliers}
    results, tables = {}, []
    for n in lengths:
        sizes = [f"model.max_positions={n}", f"task.tokens_per_sample={n}", f"dataset.batch_size={max(1, TOKENS // n)}"]
        variants = {name: [*sizes, f"model.projected_length={K}", *own] for name, own in {**BESIDE, **learned}.items()}
        tuned = Comparison(data, out / f"n{n}", variants, learning_rates, seeds, updates, jobs).run()
        tables.append(f"n = {n}\n\n{as_table(tuned, tuned[0], updates)}\n")
        results[n] = {variant.name: variant for variant in tuned}
    content = {n: [asdict(variant) for variant in by_name.values()] for n, by_name in results.items()}
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "results.json", json.dumps({"updates": updates, "perplexity": content}, indent=1))
    write_whole(out / "results.md", "\n".join(tables))
    curves = {n: {c: list(own[f"c{c:g}"].perplexities.values()) for c in multipliers} for n, own in results.items()}
    beside = {n: {name: list(own[name].perplexities.values()) for name in BESIDE} for n, own in results.items()}
    draw_multipliers(curves, beside, out / "multipliers.png")
    return "\n".join(tables)
