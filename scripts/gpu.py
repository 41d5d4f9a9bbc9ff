#!/usr/bin/env python3
"""What the package is worth on this machine's GPUs: parts in order of worth, each in a process with a limit of its own.

examples:
  python scripts/gpu.py                         make gpu: 25 minutes at most; what is left is for the next call
  python scripts/gpu.py --limit 540             goes on where the last call ended, by the results.json of --out
  python scripts/gpu.py --dry-run --out trial   every part in tiny sizes on the CPU; a folder for it alone
  python scripts/gpu.py --tables                fills docs/benchmark.md from results.json, and draws its picture

OUT gets results.json after every figure and results.md after every part. A part that failed says why, and the next call
tries it again after those that it has not tried; one that is done is repeated where the GPU, PyTorch or the code of
attention and model is another.
The package need not be installed. Without fairseq there are no trainings, no example of fairseq's, and hardly a test.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from benchmarking.store import PACKAGE, code_digest
from gpu_report import DRY_RUN, fill_page, write_report
from gpu_speed import ANCHOR, OURS, PEERS, Rows, Sizes, measure_attention, measure_models, reason
from gpu_training import VARIANTS, Trainings, run_tests

from fairseq_linformer.system.files import write_whole

ROOT = Path(__file__).resolve().parents[1]
NO_GPU = "gpu: PyTorch finds no GPU here; make gpu GPU='--dry-run --out trial' runs every part in tiny sizes on the CPU"
# Models that are compiled in one process, each in some twenty seconds.
FIRST = (ANCHOR, "softmax-flash", "fetch", "hf-modernbert")
LATER = (ANCHOR, *(name for name in (*OURS, *PEERS) if name not in FIRST))
LENGTHS = (2048, 8192, 512, 4096, 32768)  # n, in order of worth, the first two before the trainings
DRY = Sizes("cpu", 2, 32, 2, 200, tokens=128, rounds=1, product=64, compiler="eager")


@dataclass(frozen=True)
class Part:
    """What is measured in one process.

    Attributes:
        run: gives the rows of the part.
        least: seconds without which it is not begun.
        most: after so many it is ended.
    """

    run: Callable[[], Rows]
    least: float
    most: float


def parts_of(trainings: Trainings, dry: bool) -> dict[str, Part]:
    """All parts by name, in order of worth."""
    sizes, lengths, later = (DRY, (64,), ()) if dry else (Sizes(), LENGTHS, (1024, 16384))

    def models(n: int) -> dict[str, Part]:
        first, others = (partial(measure_models, sizes, n, own, compiled=True) for own in (FIRST, LATER))
        return {
            f"compiled, n={n}": Part(first, 100, 180),
            f"models, n={n}": Part(partial(measure_models, sizes, n), 45, 150),
            f"compiled, n={n}, others": Part(others, 100, 180),
        }

    def quality(corpus: str) -> dict[str, Part]:
        prepared = Part(partial(trainings.prepare, corpus), 30, 240)
        return {f"{corpus}, data": prepared} | {
            f"{corpus}, {name}": Part(partial(trainings.quality, corpus, name), 120, 420)
            for name in (["fetch"] if dry else VARIANTS)
        }

    found = {"tests": Part(partial(run_tests, dry), 30, 300)}
    for n in lengths[:2]:
        found |= models(n)
    found |= quality("python")
    for n in lengths[2:]:
        found |= models(n)
    for n in lengths:
        found[f"attention, n={n}"] = Part(partial(measure_attention, sizes, n), 20, 60)
    for n in later:
        found |= models(n)
    found |= {} if dry else quality("books")
    found["scaling"] = Part(trainings.scaling, 60, 300)
    return {name: replace(part, least=0, most=600) for name, part in found.items()} if dry else found  # on busy cores


class Results:
    """results.json of a folder: by part its rows, whether it is done, and what it was made with.

    Ends the program where that is a dry run's and this is none, or the other way round.
    """

    def __init__(self, out: Path, dry: bool):
        self.file = out / "results.json"
        self.parts: dict[str, dict[str, Any]] = json.loads(self.file.read_text()) if self.file.is_file() else {}
        for kept in {part["made_with"]["card"] for part in self.parts.values()}:
            if (kept == DRY_RUN) != dry:
                sys.exit(f"gpu: {self.file} holds other figures, {kept}: name another --out")
        card = DRY_RUN if dry else name_of_card()
        code = code_digest((PACKAGE / "attention", PACKAGE / "model"))
        self.made_with = {"card": card, "torch": torch.__version__, "code": code}

    def is_done(self, name: str) -> bool:
        own = self.parts.get(name, {})
        return own.get("done", False) and own["made_with"] == self.made_with

    def was_tried(self, name: str) -> bool:
        """Whether a part has failed, or reached its limit, as the code and the machine are now."""
        return self.parts.get(name, {}).get("tried_with") == self.made_with

    def begin(self, name: str) -> None:
        """Rows of another machine or code are not kept beside new ones."""
        own = self.parts.get(name, {})
        rows = own.get("rows", {}) if own.get("made_with") == self.made_with else {}
        self.parts[name] = {"made_with": self.made_with, "tried_with": self.made_with, "done": False, "rows": rows}

    def write(self) -> None:
        write_whole(self.file, json.dumps(self.parts, indent=1) + "\n")


def name_of_card() -> str:
    """Asked for in another process: on some machines only one at a time may use a GPU."""
    command = [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]


def environment_of(name: str, dry: bool) -> dict[str, str]:
    """Of a part's process: one GPU, or all of them."""
    paths = [str(ROOT), str(ROOT / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]
    every = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count()))))
    devices = "" if dry else every if name == "scaling" else every.split(",")[0]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": devices}


def run_part(name: str, part: Part, results: Results, words: list[str], seconds: float) -> None:
    """Measures a part in a process of its own, which has so many seconds, and keeps each row as it comes."""
    before = results.parts.get(name, {})
    results.begin(name)
    own, start = results.parts[name], time.monotonic()
    command = [sys.executable, __file__, "--part", name, *words]
    with results.file.with_name("log.txt").open("a") as log:
        options: Any = {"stdout": subprocess.PIPE, "stderr": log, "text": True, "start_new_session": True}
        process = subprocess.Popen(command, env=environment_of(name, "--dry-run" in words), **options)
        timer = threading.Timer(seconds, stop, [own, f"ended after its limit of {seconds:.0f} s", process])
        timer.start()
        try:
            for line in process.stdout or ():
                if line.startswith('{"'):  # a line of ``measure``
                    said = json.loads(line)
                    own["rows"] |= said.pop("rows", {})
                    own |= said
                    results.write()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)  # to end by itself
        finally:
            timer.cancel()
            end(process)
    own["seconds"] = round(time.monotonic() - start, 1)
    if not own["done"]:
        own.setdefault("reason", f"its process ended with status {process.returncode}: log.txt")
        if before.get("rows") and not own["rows"]:  # figures of earlier code rather than none
            results.parts[name] = {**before, **{key: own[key] for key in ("tried_with", "reason", "seconds")}}
    results.write()


def stop(own: dict[str, Any], why: str, process: "subprocess.Popen[str]") -> None:
    """Ends a part's process for a reason."""
    own["reason"] = why
    end(process)


def end(process: "subprocess.Popen[str]") -> None:
    """Ends a process and those that it started; where it is still at work they have ten seconds to save."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            for _ in range(100):
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def measure(name: str, part: Part) -> None:
    """A part's rows as lines of JSON on standard output; why it failed, if so."""
    stdout, sys.stdout = sys.stdout, sys.stderr  # what libraries print belongs into the log
    threading.Thread(target=end_with, args=[os.getppid()], daemon=True).start()
    try:
        for case, row in part.run():
            print(json.dumps({"rows": {case: row}}), file=stdout, flush=True)
        print(json.dumps({"done": True}), file=stdout, flush=True)
    except Exception as error:
        print(f"{name}: {traceback.format_exc()}", file=sys.stderr)
        print(json.dumps({"reason": reason(error)}), file=stdout, flush=True)


def end_with(parent: int) -> None:
    """Ends this process and those that it started when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def run_all(parts: dict[str, Part], results: Results, words: list[str], limit: float) -> None:
    """Runs what is not done, as long as there is time for it."""
    until = time.monotonic() + limit
    for name in sorted(parts, key=results.was_tried):
        part = parts[name]
        left = until - time.monotonic()
        if results.is_done(name):
            continue
        if left < part.least:
            print(f"{name}: not begun, {left:.0f} s are left", flush=True)
            continue
        run_part(name, part, results, words, min(part.most, left))
        own = results.parts[name]
        print(f"{name}: {own['seconds']} s, {own.get('reason', 'done')}", flush=True)
        try:
            write_report(results.file, [*parts])
        except Exception as error:  # which may not cost the parts that are left
            print(f"results.md: {reason(error)}", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "gpu", help="default: gpu")
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=1500, help="of this call (default: 1500)")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--tables", action="store_true", help="fill docs/benchmark.md, measure nothing")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    out = options.out.absolute()
    if options.tables:
        return fill_page(out / "results.json", ROOT / "docs/benchmark.md")
    if not options.dry_run and not torch.cuda.is_available():
        sys.exit(NO_GPU)
    work = out / "work" if options.dry_run else ROOT / "runs/gpu"
    parts = parts_of(Trainings(work, options.dry_run), options.dry_run)
    if options.part:
        return measure(options.part, parts[options.part])
    out.mkdir(parents=True, exist_ok=True)
    words = ["--out", str(out), *(["--dry-run"] if options.dry_run else [])]
    run_all(parts, Results(out, options.dry_run), words, options.limit)


if __name__ == "__main__":
    main()
