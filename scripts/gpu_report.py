"""Tables and the picture of what scripts/gpu.py measured, from its results.json."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarking.plots import Panel, draw
from benchmarking.tables import table
from gpu_speed import ANCHOR, INFERENCE, KERNELS, OTHERS, OURS, TRAINING, Row

from fairseq_linformer.system.files import write_whole

BLOCK = re.compile(r"(?<=<!-- make gpu -->\n).*?(?=<!-- end -->)", re.DOTALL)  # of a page
PICTURE = Path("benchmark/gpu.png")  # beside the page
SHORT = (512, 2048, 4096, 8192, 32768)  # n that the page shows, and models:
SHORT_MODELS = ("near_and_far", "fetch", *KERNELS, "hf-modernbert", "fairseq-example")
NOT = "not measured"
DRY_RUN = "dry run"  # in place of the card
Parts = dict[str, dict[str, Any]]


def read_parts(file: Path) -> Parts:
    """What results.json holds; nothing where there is none."""
    found: Parts = json.loads(file.read_text()) if file.is_file() else {}
    return found


def write_report(file: Path, order: Sequence[str]) -> None:
    """Writes results.md beside results.json: all tables, and why what is missing is."""
    parts = read_parts(file)
    texts = [_made_with(parts), *_tables(parts)]
    missing = [f"- {name}: {_why(parts.get(name))}" for name in order if not parts.get(name, {}).get("done")]
    cases = [row for row in rows_of_parts(parts) if "reason" in row and "model" in row]
    missing += [f"- {row['model']}, {row['phase']}, n={row['n']}: {row['reason']}" for row in cases]
    texts += [f"Not measured:\n\n{chr(10).join(missing)}"] if missing else []
    write_whole(file.with_name("results.md"), "\n\n".join(texts) + "\n")


def fill_page(file: Path, page: Path) -> None:
    """Fills a page's block from results.json, and draws the picture beside it; ends the program after a dry run."""
    parts = read_parts(file)
    if any(part["made_with"]["card"] == DRY_RUN for part in parts.values()):
        sys.exit(f"gpu: {file} is of a dry run, which fills no tables")
    texts = [_made_with(parts), *_tables(parts, SHORT, SHORT_MODELS)] if parts else ["Not measured yet."]
    if rows := _models(parts, TRAINING, True) or _models(parts, TRAINING):
        draw_speed(rows + _models(parts, INFERENCE), page.parent / PICTURE)
        texts.append(f"![Speed against n]({PICTURE})")
    text = page.read_text(encoding="utf-8")
    if not BLOCK.search(text):
        sys.exit(f"gpu: {page} has no block between <!-- make gpu --> and <!-- end -->")
    write_whole(page, BLOCK.sub(lambda _: "\n" + "\n\n".join(texts) + "\n\n", text, count=1))


def rows_of_parts(parts: Parts) -> list[Row]:
    """All rows; each of a model with the seconds of ANCHOR beside it, as they were in the same process."""
    found = []
    for part in parts.values():
        rows = part["rows"].values()
        first = {(row["phase"], row["n"]): row.get("seconds") for row in rows if row.get("model") == ANCHOR}
        found += [{**row, "first": first.get((row.get("phase"), row.get("n")))} for row in rows]
    return found


def _models(parts: Parts, phase: str, compiled: bool = False) -> list[Row]:
    rows = rows_of_parts(parts)
    return [row for row in rows if row.get("phase") == phase and row.get("compiled", compiled) == compiled]


def _made_with(parts: Parts) -> str:
    codes: dict[tuple[str, str], set[str]] = {}
    for part in parts.values():
        made = part["made_with"]
        codes.setdefault((made["card"], made["torch"]), set()).add(made["code"])
    machines = [f"{card}, torch {version}, code {', '.join(sorted(own))}" for (card, version), own in codes.items()]
    peaks = sorted({row["peak"] for row in rows_of_parts(parts) if "peak" in row})
    return f"{'; '.join(sorted(machines))}; peak in bf16: {'; '.join(peaks) or NOT}."


def _tables(parts: Parts, lengths: Sequence[int] = (), models: Sequence[str] = (*OURS, *OTHERS)) -> list[str]:
    """A table for each thing that was measured; those of a page where lengths are given."""
    found = []
    about = {"training step": _models(parts, TRAINING), "training step, compiled": _models(parts, TRAINING, True)}
    about |= (
        {}
        if lengths
        else {"inference": _models(parts, INFERENCE), "attention, both passes": _models(parts, "attention")}
    )
    for title, rows in about.items():
        kept = [row for row in rows if not lengths or row["n"] in lengths]
        names = [name for name in models if any(row["model"] == name for row in kept)]
        if any("seconds" in row for row in kept):
            found.append(f"{title[:1].upper()}{title[1:]}, times as long as the first (GiB):\n\n{_speeds(kept, names)}")
    for corpus in ("python",) if lengths else ("python", "books"):
        rows = [row for row in rows_of_parts(parts) if row.get("corpus") == corpus]
        found += [f"Perplexity, {corpus}, by where the answer stands:\n\n{_qualities(rows)}"] if rows else []
    ranks = [row for row in rows_of_parts(parts) if "ranks" in row]
    speeds: dict[str, Callable[[Row], str]] = {"processes": lambda row: str(row["ranks"])}
    speeds["tokens/s"] = lambda row: f"{row['tokens per second']:,.0f}"
    return [*found, table(speeds, ranks)] if ranks and not lengths else found


def _speeds(rows: Sequence[Row], names: Sequence[str]) -> str:
    """A line for each n: the first model's time, share of the peak and memory, the others as multiples of its time."""
    known: dict[tuple[int, str], Row] = {}
    for row in rows:
        if "seconds" in row:
            known.setdefault((row["n"], row["model"]), row)  # ANCHOR is measured in several processes

    def cell(name: str, n: int) -> str:
        row = known.get((n, name))
        if row is None:
            return NOT
        memory = "" if row["MiB"] is None else f" ({row['MiB'] / 1024:.3g})"
        if name == ANCHOR or row["first"] is None:
            return f"{1000 * row['seconds']:,.3g} ms, {100 * row['share']:.0f} %{memory}"
        return f"{row['seconds'] / row['first']:.2f}{memory}"

    columns = {"n": lambda n: f"{n:,}", **{f"`{name}`": partial(cell, name) for name in names}}
    return table(columns, sorted({row["n"] for row in rows}))


def _qualities(rows: Sequence[Row]) -> str:
    def number(name: str) -> Callable[[Row], str]:
        return lambda row: next((_number(own["perplexity"]) for own in row["classes"] if own["name"] == name), NOT)

    columns: dict[str, Callable[[Row], str]] = {"variant": lambda row: f"`{row['variant']}`"}
    columns["updates"] = lambda row: f"{row['updates']:,}"
    columns["all"] = lambda row: f"{row['perplexity']:.2f}"
    return table(columns | {own["name"]: number(own["name"]) for own in rows[0]["classes"]}, rows)


def _number(perplexity: float | None) -> str:
    return "no tokens" if perplexity is None else f"{perplexity:,.3g}" if perplexity < 1000 else f"{perplexity:,.0f}"


def _why(part: dict[str, Any] | None) -> str:
    return "not begun" if part is None else part.get("reason", "not ended")


def draw_speed(rows: Sequence[Row], path: Path) -> None:
    """Tokens per second against n: a panel for training steps, one for inference."""
    panels = []
    for phase in (TRAINING, INFERENCE):
        curves: dict[str, dict[int, list[float]]] = {}
        for row in sorted(rows, key=lambda row: row["n"]):
            if row["phase"] == phase and "seconds" in row:
                curves.setdefault(row["model"], {})[row["n"]] = [row["n"] * row["rows"] / row["seconds"]]
        panels += [Panel(curves, phase, y="tokens/s")] if curves else []
    draw([panels], path)
