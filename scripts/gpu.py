#!/usr/bin/env python3
"""Measure speed and quality on this machine's GPU: scripts/benchmark.py and scripts/compare.py, by importance.

examples:
  python scripts/gpu.py                          make gpu: at most 25 minutes; the next call continues
  python scripts/gpu.py --limit 540              at most nine minutes
  python scripts/gpu.py --dry-run --out trial    every kind of part in tiny sizes on the CPU, in about two minutes
  python scripts/gpu.py --tables                 fill docs/benchmark.md from results.json

OUT gets results.json and results.md after every part, and the output of the parts in log.txt. A part that is done is
repeated if the GPU, PyTorch or the code of attention and model has changed; one that failed is tried again after those
that have not been tried. The package need not be installed, but fairseq must be importable.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
sys.path[:0] = [str(ROOT), str(SCRIPTS)]

import benchmark  # noqa: E402
import compare  # noqa: E402
import fairseq  # noqa: E402
import torch  # noqa: E402

from fairseq_linformer.files import write_whole  # noqa: E402

DRY_RUN = "dry run"  # in place of the card
PAGE = ROOT / "docs/benchmark.md"
BLOCK = re.compile(r"(?<=<!-- make gpu -->\n).*?(?=<!-- end -->)", re.DOTALL)
PICTURE = Path("benchmark/gpu.png")  # next to the page

LENGTHS = (2048, 8192, 512, 4096, 32768, 1024, 16384)  # by importance
FIRST = ["near_and_far", "softmax-flash", "distant", "modernbert"]
REMAINING = ["near_and_far", "softmax-cudnn", "alternating", "longformer", "linformer"]
SIZES = ["--device", "cuda", "--dtype", "bfloat16", "--layers", "12", "--vocab-size", "50265", "--tokens", "65536"]
SIZES += ["--rounds", "10", "--limit", "25", "--set", "value_residual=true", "sharing=layerwise"]
TINY_SIZES = ["--device", "cpu", "--layers", "2", "--embed-dim", "32", "--heads", "2", "--vocab-size", "200"]
TINY_SIZES += ["--tokens", "128", "--rounds", "1"]
TINY_MODELS = ["model.encoder_layers=2", "model.encoder_embed_dim=32", "model.encoder_ffn_embed_dim=64"]
TINY_MODELS += ["model.encoder_attention_heads=2", "model.max_positions=64", "model.projected_length=16"]
TINY_MODELS += ["task.lengths=[32:0.67,64:0.33]", "dataset.batch_size=2", "dataset.num_workers=0", "common.cpu=true"]
TINY_MODELS += ["lr_scheduler.warmup_updates=2", "common.log_interval=2"]

Parts = dict[str, dict[str, Any]]  # results.json


@dataclass(frozen=True)
class Part:
    """Command of Python."""

    command: Sequence[str]
    minimum: float  # minimum seconds to start it
    limit: float  # seconds after which it is stopped
    out: Path | None = None  # folder with the results.json that it writes


def parts_of(work: Path, dry_run: bool) -> dict[str, Part]:
    """Return all parts by name, by importance."""
    files = [str(file) for file in (ROOT / "tests").rglob("test_*.py") if "mark.cuda" in file.read_text()]
    tests = ["-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    parts = {"tests": Part([*tests, *(["--collect-only"] if dry_run else []), *files], 30, 300)}

    def add(name: str, script: str, words: Sequence[str], minimum: float, limit: float) -> None:
        out = work / re.sub(r"\W+", "-", name)
        parts[name] = Part([str(SCRIPTS / script), "--out", str(out), *words], minimum, limit, out)

    def add_benchmarks(n: int) -> None:
        sizes = [*(TINY_SIZES if dry_run else SIZES), "--lengths", str(n)]
        compiled = ["--phases", benchmark.TRAINING, "--compile", "eager" if dry_run else "inductor"]
        add(f"compiled, n={n}", "benchmark.py", [*sizes, *compiled, "--models", *FIRST], 100, 180)
        add(f"eager, n={n}", "benchmark.py", [*sizes, "--models", *FIRST, *REMAINING[1:], "fairseq-example"], 60, 180)
        if not dry_run:
            add(f"compiled, remaining, n={n}", "benchmark.py", [*sizes, *compiled, "--models", *REMAINING], 100, 180)

    lengths = [64] if dry_run else LENGTHS
    for n in lengths[:2]:
        add_benchmarks(n)
    data = work / "data" if dry_run else ROOT / "data-bin/python"
    if not (data / "dict.txt").is_file():  # otherwise it was prepared by hand
        text = work / "text"
        parts["text"] = Part([str(SCRIPTS / "python_sources.py"), "--out", str(text)], 30, 120)
        words = ["--train", str(text / ("valid.txt" if dry_run else "train.txt")), "--valid", str(text / "valid.txt")]
        words += ["--vocab-size", "400" if dry_run else "4000", "--out", str(data)]
        parts["data"] = Part([str(SCRIPTS / "clone.py"), "prepare", "corpus", *words], 30, 240)
    words = ["--comparison", "gpu", "--data", str(data), "--seeds", "1", "--jobs", "1"]
    if dry_run:
        words += ["--updates", "8", "--only", "softmax", "distant", "control", "--all", *TINY_MODELS]
    add("quality", "compare.py", words, 120, 1500)
    for n in lengths[2:]:
        add_benchmarks(n)
    return parts


class Results:
    """Content of a folder's results.json: each part's rows, and their machine and code.

    Ends the program if the folder has results of a dry run and this is none, or the other way round.
    """

    def __init__(self, out: Path, dry_run: bool):
        self.file = out / "results.json"
        self.parts: Parts = read_parts(self.file)
        for card in {part["made_with"]["card"] for part in self.parts.values()}:
            if (card == DRY_RUN) != dry_run:
                sys.exit(f"gpu: {self.file} has results of {card}: name another --out")
        card = DRY_RUN if dry_run else card_name()
        self.made_with = {"card": card, "torch": torch.__version__, "code": benchmark.code_digest()}

    def is_done(self, name: str) -> bool:
        """Return True if a part is complete with this machine and code."""
        part = self.parts.get(name, {})
        return part.get("done", False) and part["made_with"] == self.made_with

    def was_tried(self, name: str) -> bool:
        """Return True if a part was started with this machine and code."""
        return self.parts.get(name, {}).get("tried_with") == self.made_with

    def add(self, name: str, part: Part, seconds: float, reason: str | None) -> None:
        """Add the measurements of a part; results of earlier code stay where it has measured nothing."""
        content = read_parts(part.out / "results.json") if part.out else {}
        measured = {key: content[key] for key in ("rows", "variants") if content.get(key)}
        entry = {"made_with": self.made_with, **measured} if measured or not reason else self.parts.get(name, {})
        self.parts[name] = {"made_with": self.made_with, **entry, "tried_with": self.made_with, "done": reason is None}
        self.parts[name] |= {"seconds": round(seconds, 1), **({"reason": reason} if reason else {})}
        write_whole(self.file, json.dumps(self.parts, indent=1) + "\n")
        write_whole(self.file.with_name("results.md"), report(self.parts) + "\n")


def read_parts(file: Path) -> Parts:
    """Return the content of results.json; empty if there is none."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def card_name() -> str:
    """Return the GPU's name, from another process: on some machines only one at a time may use a GPU."""
    command = [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]


def environment(dry_run: bool) -> dict[str, str]:
    """Return the environment of the parts: one GPU, and fairseq's programs in PATH wherever pip has put them."""
    paths = [str(ROOT), str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    programs = [str(Path(fairseq.__file__).parents[1] / "bin"), os.environ.get("PATH", "")]
    device = "" if dry_run else os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    joined = {"PYTHONPATH": os.pathsep.join(paths), "PATH": os.pathsep.join(programs)}
    return {**os.environ, **joined, "CUDA_VISIBLE_DEVICES": device}


def run_part(part: Part, seconds: float, log: Path, variables: dict[str, str]) -> str | None:
    """Run a part for at most so many seconds, and return the reason if it is not complete.

    All processes of the part end with this function, even after an error.
    """
    with log.open("a") as stream:
        process = subprocess.Popen(
            [sys.executable, *part.command],
            stdout=stream,
            stderr=stream,
            cwd=ROOT,
            env=variables,
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"stopped at its limit of {seconds:.0f} s"
        finally:
            stop(process)
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"status {status}: {lines[-1][:200] if lines else log}" if status else None


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a process and those that it has started; it has ten seconds to save."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)


def run_all(parts: dict[str, Part], results: Results, limit: float, variables: dict[str, str]) -> None:
    """Run the incomplete parts, as long as there is time."""
    end = time.monotonic() + limit
    for name in sorted(parts, key=results.was_tried):
        part, left = parts[name], end - time.monotonic()
        if results.is_done(name):
            continue
        if left < part.minimum:
            print(f"{name}: not started, {left:.0f} s are left", flush=True)
            continue
        if part.out:
            (part.out / "results.json").unlink(missing_ok=True)  # of an earlier call
        start = time.monotonic()
        reason = run_part(part, min(part.limit, left), results.file.with_name("log.txt"), variables)
        results.add(name, part, time.monotonic() - start, reason)
        print(f"{name}: {time.monotonic() - start:.0f} s, {reason or 'done'}", flush=True)


def report(parts: Parts, lengths: Sequence[int] = ()) -> str:
    """Return all tables in Markdown, and the reasons of missing values.

    Args:
        parts: content of results.json.
        lengths: n to show, without reasons; all by default.
    """
    if not parts:
        return "Not measured yet."
    codes: dict[str, list[str]] = {}
    for part in parts.values():
        if "rows" in part or "variants" in part:
            made_with = part["made_with"]
            codes.setdefault(f"{made_with['card']}, torch {made_with['torch']}", []).append(made_with["code"])
    texts = ["; ".join(f"{machine}, code {', '.join(dict.fromkeys(names))}" for machine, names in codes.items())]
    texts[0] += ". Times are multiples of the first (with its share of the peak bfloat16 rate), and peak memory."
    texts[0] += " `softmax-flash` is PyTorch's FlashAttention-2; cuDNN's attention (`softmax-cudnn`) can be faster."
    texts += [benchmark.markdown(rows_of(parts), lengths)]
    variants = [row for part in parts.values() for row in part.get("variants", ())]
    texts += [f"Perplexity by copy distance:\n\n{compare.markdown(variants)}"] if variants else []
    reasons = [f"- {name}: {part['reason']}" for name, part in parts.items() if "reason" in part]
    if reasons and not lengths:
        texts.append("Not complete:\n\n" + "\n".join(reasons))
    return "\n\n".join(filter(None, texts))


def rows_of(parts: Parts) -> list[dict[str, Any]]:
    """Return the rows of all benchmarks."""
    return [row for part in parts.values() for row in part.get("rows", ())]


def page_block(parts: Parts) -> str:
    """Return the part of results.json that docs/benchmark.md shows."""
    tables = report(parts, (512, 2048, 4096, 8192, 32768))
    return f"\n{tables}\n\n" + (f"![Time and memory against n]({PICTURE})\n\n" if rows_of(parts) else "")


def fill_page(file: Path, page: Path) -> None:
    """Write the tables into a page and draw its picture; ends the program after a dry run."""
    parts = read_parts(file)
    if any(part["made_with"]["card"] == DRY_RUN for part in parts.values()):
        sys.exit(f"gpu: {file} has results of a dry run, which fill no tables")
    write_whole(page, BLOCK.sub(lambda _: page_block(parts), page.read_text(encoding="utf-8"), count=1))
    if rows_of(parts):
        benchmark.plot(rows_of(parts), page.parent / PICTURE)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "gpu", help="default: gpu")
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=1500, help="of this call (default: 1500)")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--tables", action="store_true", help="fill docs/benchmark.md, measure nothing")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    out = options.out.absolute()
    if options.tables:
        return fill_page(out / "results.json", PAGE)
    if not options.dry_run and not torch.cuda.is_available():
        sys.exit("gpu: PyTorch finds no GPU; make gpu GPU='--dry-run --out trial' rehearses on the CPU")
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the running part ends, too
    results = Results(out, options.dry_run)
    work = out / "work" if options.dry_run else ROOT / "runs/gpu" / results.made_with["code"]
    run_all(parts_of(work, options.dry_run), results, options.limit, environment(options.dry_run))


if __name__ == "__main__":
    main()
