#!/usr/bin/env python3
"""Measure time and memory of whole models and of single attention layers, and of other implementations.

examples:
  python scripts/benchmark.py --out runs/benchmark --lengths 512 4096
  python scripts/benchmark.py --out runs/layers --scopes layer --models linformer fairseq-example softmax-math
  python scripts/benchmark.py --out runs/gpu --device cuda --dtype bfloat16 --layers 12 --tokens 65536 --compile

The cases of one length run in turns, round after round, after warm-up calls: models, each in inference (features of all
positions) and in a training step (loss at masked positions, gradients, AdamW). Times are medians with quartiles. Memory
is the peak of PyTorch's allocator during a call, minus the memory allocated before it. On a GPU the table also has the
share of the peak rate of matrix products. Other models have their last feed-forward network on all positions, those of
this package on masked positions only, or on all with --all-positions.

OUT gets results.json after every length, then results.md and benchmark.png. A case that fails or takes longer than
--limit is listed with the reason.
"""

import argparse
import contextlib
import gc
import hashlib
import json
import math
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml
from benchmark_models import LOCAL, MODELS, Model, Sizes, layer_inputs, package_config, text_inputs
from torch import Tensor
from torch.autograd.profiler import profile
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

import fairseq_linformer
from fairseq_linformer.cli.program import program
from fairseq_linformer.files import write_whole
from fairseq_linformer.plotting import legend, picture, scale_lengths, scale_log, style_of
from fairseq_linformer.precision import bfloat16_instructions

Row = dict[str, Any]
Call = Callable[[], Any]
Name = TypeVar("Name")

INFERENCE, TRAINING = "inference", "training step"
PHASES = (INFERENCE, TRAINING)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEFAULT_MODELS = ("linformer", "near_and_far", "softmax", "fairseq-example", "modernbert")
MIN_ROUNDS = 3
PEAK_RATES = {"H100 80GB HBM3": 989e12, "H200": 989e12, "A100": 312e12}  # bfloat16, by NVIDIA's data sheets
KERNEL_NAMES = {"flash": "pytorch_flash", "cudnn": "cudnn"}  # part of a kernel's name in the profiler


@dataclass(frozen=True)
class Case:
    """Phase of one model, or of one layer's attention, on sequences of n tokens."""

    model: str
    scope: str
    phase: str
    sizes: Sizes
    sequences: int
    dtype: str = "float32"
    name: str = ""  # in the table

    def build(self) -> Model:
        """Build the model, or the attention of one layer.

        Raises:
            ImportError: a package is not installed.
            NotImplementedError: the attention of a layer cannot be used alone.
        """
        torch.manual_seed(1)
        source = MODELS[self.model]
        build = source.model if self.scope == "model" else source.layer
        if build is None:
            raise NotImplementedError("measured as a whole model only")
        return build(self.sizes)

    def inputs(self) -> Sequence[Tensor]:
        """Draw a batch."""
        return (text_inputs if self.scope == "model" else layer_inputs)(self.sizes, self.sequences)


# --- timing ---


def interleave(
    calls: dict[Name, Call], rounds: int, warm_ups: int = 0, limit: float = math.inf, device: str = "cpu"
) -> tuple[dict[Name, list[float]], dict[Name, str]]:
    """Time calls in turns, round after round.

    Args:
        calls: by name; those that fail are removed, with the memory that they hold.
        rounds: number of timed calls of each.
        warm_ups: rounds before these that are not counted.
        limit: seconds after which no further round begins; at least three are timed.
        device: synchronised after each call.

    Returns:
        Seconds by name, and the errors of the calls that failed.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in calls}
    errors: dict[Name, str] = {}
    start = time.perf_counter()
    for number in range(-warm_ups, rounds):
        if number >= MIN_ROUNDS and time.perf_counter() - start > limit:
            break
        for name in [*calls]:
            try:
                elapsed = timed(calls[name], device)
                seconds[name] += [elapsed] if number >= 0 else []
            except Exception as error:  # out of memory, for example
                errors[name] = one_line(error)
            if name in errors:
                del seconds[name], calls[name]
                free_memory(device)
    return seconds, errors


def timed(call: Call, device: str = "cpu") -> float:
    """Return the seconds until the device has finished a call."""
    if device != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1000


def quartiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median ("seconds") and the quartiles ("low", "high")."""
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else 3 * [*seconds]
    return {"seconds": median, "low": low, "high": high}


def one_line(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def free_memory(device: str) -> None:
    """Return unused memory to the device."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


# --- memory, rate and kernels ---


def peak_memory(call: Call, device: str = "cpu") -> float:
    """Return the peak MiB of a call above the memory allocated before it, as PyTorch's allocator counts."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - allocated) / 2**20
    with profile(profile_memory=True) as recorded:
        call()
    events = recorded.kineto_results.events()  # in order of time; recorded.events() has sums only
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return max(accumulate(changes, initial=0)) / 2**20


def operations(case: Case) -> int | None:
    """Count floating-point operations of the matrix products of a call; a backward pass counts as two forward passes.

    One sequence is counted on PyTorch's meta device, which computes nothing, and multiplied by their number.

    Returns:
        None for a model that cannot run there.
    """
    options = tuple(option for option in case.sizes.options if option[0] != "flex_attention")
    case = replace(case, sizes=replace(case.sizes, dropout=0.0, options=options))
    model = case.build()
    model.module.to("meta").eval()
    inputs = [tensor.detach().to("meta") for tensor in replace(case, sequences=1).inputs()]
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            (model.features if case.phase == INFERENCE else model.loss)(*inputs)
    except RuntimeError:
        return None
    return case.sequences * int(counter.get_total_flops()) * (1 if case.phase == INFERENCE else 3)


def kernel_times(call: Call) -> dict[str, float]:
    """Return the kernels of a call on the GPU with their share of the time, the longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        call()
        torch.cuda.synchronize()
    events = sorted(recorded.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events) or 1
    return {event.key[:120]: round(event.self_device_time_total / total, 3) for event in events}


# --- the runner ---


@dataclass(frozen=True)
class Runner:
    """Runner of a group of cases in turns."""

    device: str
    rounds: int
    limit: float  # seconds that a call may take, and after which a group begins no further round
    compiler: str | None = None  # backend that compiles each layer; None for eager execution

    def measure(self, cases: Sequence[Case]) -> list[Row]:
        """Return a row for each case, with times and memory or with the reason for their absence.

        The cases are phases of models on the same batch.
        """
        rows = {case: self._columns(case) for case in cases}
        calls: dict[Case, Call] = {}
        models: dict[str, Model] = {}
        dtypes = {case.dtype for case in cases}
        batches = {dtype: [self._move(tensor, dtype) for tensor in cases[0].inputs()] for dtype in dtypes}
        for case in cases:
            with self._reason(rows[case]):
                if case.name not in models:
                    models[case.name] = self._build(case)
                calls[case] = self._warm(self._call(models[case.name], case.phase, batches[case.dtype]))
        models.clear()  # so that a case without memory frees it
        warm_ups = 2 if self.device == "cuda" else 0
        seconds, errors = interleave(calls, self.rounds, warm_ups, self.limit, self.device)
        for case, error in errors.items():
            rows[case]["reason"] = error
        for case, values in seconds.items():
            with self._reason(rows[case]):
                rows[case] |= {**quartiles(values), **self._figures(case, calls[case], statistics.median(values))}
        for case, row in rows.items():
            first = rows[next(first_case for first_case in cases if first_case.phase == case.phase)]
            if "seconds" in row and "seconds" in first:
                row["relative"] = row["seconds"] / first["seconds"]
        return [*rows.values()]

    def _columns(self, case: Case) -> Row:
        sizes = {"n": case.sizes.length, "k": case.sizes.projected_length, "sequences": case.sequences}
        compiled = self.compiler is not None
        return {"model": case.name, "scope": case.scope, "phase": case.phase, **sizes, "compiled": compiled}

    @contextlib.contextmanager
    def _reason(self, row: Row) -> Iterator[None]:
        """Write an error into a row: a missing package, memory, or kernel."""
        try:
            yield
        except Exception as error:
            row["reason"] = one_line(error)
            free_memory(self.device)

    def _move(self, tensor: Tensor, dtype: str) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.to(self.device)
        return tensor.detach().to(self.device, DTYPES[dtype]).requires_grad_()

    def _build(self, case: Case) -> Model:
        model = case.build()
        model.module.to(self.device, DTYPES[case.dtype])
        if self.compiler:
            compile_separately(model, self.compiler)
        return model

    def _call(self, model: Model, phase: str, batch: Sequence[Tensor]) -> Call:
        optimizer = torch.optim.AdamW(model.module.parameters(), lr=1e-5, fused=True)

        def infer() -> None:
            model.module.eval()
            with torch.no_grad(), model.selected_kernel():
                model.features(*batch)

        def train() -> None:
            model.module.train()
            with model.selected_kernel():
                model.loss(*batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            for tensor in batch:
                tensor.grad = None

        return infer if phase == INFERENCE else train

    def _warm(self, call: Call) -> Call:
        """Return a call after it has run.

        Raises:
            TimeoutError: it exceeds the limit.
        """
        if self.compiler:
            call()
        seconds = timed(call, self.device)
        if seconds > self.limit:
            raise TimeoutError(f"a call takes {seconds:.0f} s, more than --limit {self.limit:g}")
        return call

    def _figures(self, case: Case, call: Call, seconds: float) -> Row:
        """Return peak memory; on a GPU also the share of the peak rate and the kernels.

        Raises:
            RuntimeError: another kernel ran than the one that the model is named after.
        """
        row: Row = {"MiB": peak_memory(call, self.device)}
        if self.device == "cuda":
            kernels = kernel_times(call)
            expected = KERNEL_NAMES.get(case.model.removeprefix("softmax-"), "")
            if not any(expected in name for name in kernels):
                raise RuntimeError(f"no kernel is named {expected}: {', '.join(kernels)}")
            row["kernels"] = dict([*kernels.items()][:6])
            rates = [rate for card, rate in PEAK_RATES.items() if card in torch.cuda.get_device_name()]
            if rates and (count := operations(case)):
                row["share"] = count / seconds / rates[0]
        return row


def compile_separately(model: Model, compiler: str) -> None:
    """Compile each layer of a model, with graphs that no other model can reuse.

    PyTorch shares graphs between modules of one class, in its caches too, whatever attention kernel is selected: the
    flash kernel's model would run cuDNN's. So caches are off, and each model has a backend function of its own.
    """
    torch.compiler.config.force_disable_caches = True

    def backend(graph: Any, inputs: Any) -> Any:
        return torch._dynamo.lookup_backend(compiler)(graph, inputs)

    for layer in model.layers:
        layer.compile(dynamic=False, backend=backend)


# --- report ---


def machine_name(device: str) -> str:
    """Return the GPU, or the CPU with its instructions for bfloat16 and the number of threads."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    file = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", file.read_text(), re.MULTILINE) if file.is_file() else []
    instructions = bfloat16_instructions(on_gpu=False) or "no instructions for bfloat16"
    return f"{[*names, platform.processor()][0]}, {instructions}, {torch.get_num_threads()} threads"


def code_digest() -> str:
    """Return a short hash of the code of attention and model."""
    digest = hashlib.sha256()
    package = Path(fairseq_linformer.__file__).parent
    for file in sorted([*(package / "attention").rglob("*.py"), *(package / "model").rglob("*.py")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def markdown(rows: Sequence[Row], lengths: Sequence[int] = ()) -> str:
    """Return a table for each scope and phase: time, later ones as multiples of the first, and peak memory in brackets.

    On a GPU the first time has its share of the peak rate.

    Args:
        rows: of ``Runner.measure``.
        lengths: n to show; all by default.
    """
    groups = grouped(row for row in rows if not lengths or row["n"] in lengths)
    return "\n\n".join(f"{title}:\n\n{_table(group)}" for title, group in groups.items())


def grouped(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows with times by scope and phase, in words."""
    groups: dict[str, list[Row]] = {}
    for row in (row for row in rows if "seconds" in row):
        scope = "Whole model" if row["scope"] == "model" else "One attention layer"
        groups.setdefault(f"{scope}, {row['phase']}{', compiled' * row['compiled']}", []).append(row)
    return groups


def _table(rows: Sequence[Row]) -> str:
    cells: dict[tuple[int, str], str] = {}
    for row in rows:
        memory = f"{row['MiB']:,.0f} MiB" if row["MiB"] < 1024 else f"{row['MiB'] / 1024:.3g} GiB"
        share = f", {100 * row['share']:.0f} %" if "share" in row else ""
        relative = row.get("relative", 1.0)
        time = f"{1000 * row['seconds']:,.3g} ms{share}" if relative == 1.0 else f"{relative:.2f}"
        cells.setdefault((row["n"], row["model"]), f"{time} ({memory})")
    names = list(dict.fromkeys(row["model"] for row in rows))
    lines = [f"| n | {' | '.join(f'`{name}`' for name in names)} |", "|---" * (len(names) + 1) + "|"]
    for n in sorted({row["n"] for row in rows}):
        lines.append(f"| {n:,} | {' | '.join(cells.get((n, name), 'not measured') for name in names)} |")
    return "\n".join(lines)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw microseconds per token and peak memory against n, a line of panels for each scope and phase."""
    groups = grouped(rows)
    models = list(dict.fromkeys(row["model"] for row in rows))
    with picture(path, len(groups), 2, 9, 0.8 + 3 * len(groups)) as (figure, panels):
        for line, (title, group) in zip(panels, groups.items(), strict=True):
            for model in dict.fromkeys(row["model"] for row in group):
                points = sorted({row["n"]: row for row in group if row["model"] == model}.items())
                style = {**style_of(models.index(model)), "label": model}
                per_token = [1e6 * row["seconds"] / row["n"] / row["sequences"] for _, row in points]
                line[0].plot([n for n, _ in points], per_token, **style)
                line[1].plot([n for n, _ in points], [row["MiB"] for _, row in points], **style)
            for panel, label in zip(line, ("microseconds per token", "peak memory, MiB"), strict=True):
                panel.set(title=title, xlabel="sequence length n", ylabel=label)
                scale_lengths(panel.xaxis, sorted({row["n"] for row in group}))
                scale_log(panel.yaxis)
        legend(figure, [*panels.flat])


# --- command line ---


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", metavar="DIR", type=Path, required=True, help="folder of the results")
    add("--models", metavar="NAME", nargs="+", choices=MODELS, default=DEFAULT_MODELS, help=f"of {', '.join(MODELS)}")
    add("--scopes", nargs="+", choices=("model", "layer"), default=["model"], help="whole model, or one layer")
    add("--phases", nargs="+", choices=PHASES, default=PHASES, help="default: both")
    add("--lengths", metavar="N", nargs="+", type=int, default=[512, 4096], help="n (default: 512 4096)")
    add("--set", metavar="OPTION=VALUE", nargs="+", default=[], help="further options of this package's models")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--dtype", nargs="+", choices=DTYPES, default=["float32"], help="of weights and activations; several in turns")
    add("--layers", metavar="L", type=int, default=2, help="default: 2")
    add("--embed-dim", metavar="D", type=int, default=768, help="d (default: 768)")
    add("--heads", metavar="H", type=int, default=12, help="default: 12")
    add("--vocab-size", metavar="V", type=int, default=8000, help="default: 8000")
    add("--dropout", metavar="P", type=float, default=0.0, help="of hidden layers and attention weights (default: 0)")
    add("--tokens", metavar="T", type=int, default=4096, help="per batch, at least one sequence (default: 4096)")
    add("--rounds", metavar="R", type=int, default=7, help="times that each case is timed (default: 7)")
    add("--limit", metavar="S", type=float, default=60.0, help="seconds that a call may take (default: 60)")
    add("--all-positions", action="store_true", help="last feed-forward network on all positions in every model")
    add("--compile", metavar="BACKEND", nargs="?", const="inductor", help="compile layers (default backend: inductor)")
    return parser.parse_args(words)


def cases_of(options: argparse.Namespace, scope: str, n: int) -> list[Case]:
    """Return the cases that are measured in turns: each model and phase at one n."""
    sizes: dict[str, Any] = {"layers": options.layers, "embed_dim": options.embed_dim, "heads": options.heads}
    sizes |= {"vocabulary": options.vocab_size, "dropout": options.dropout, "length": n}
    k = n // 4 if n <= 512 else 256  # as in the recipes
    extra = [(name, yaml.safe_load(value)) for name, _, value in (word.partition("=") for word in options.set)]
    cases = []
    for model in options.models:
        local = options.device == "cuda" and model in LOCAL and options.dropout == 0
        flex = [("flex_attention", True)] if local else []
        shape = Sizes(**sizes, projected_length=k, options=(*extra, *flex), all_positions=options.all_positions)
        case = Case(model, scope, "", shape, max(1, options.tokens // n))
        for dtype in options.dtype:
            name = model if len(options.dtype) == 1 else f"{model}, {dtype}"
            cases += [replace(case, phase=phase, dtype=dtype, name=name) for phase in options.phases]
    return cases


def main(words: Sequence[str] | None = None) -> None:
    options = parse_arguments(words)
    groups = [cases_of(options, scope, n) for scope in options.scopes for n in sorted(options.lengths)]
    with program():
        for model, sizes in dict.fromkeys((case.model, case.sizes) for group in groups for case in group):
            if (model_options := MODELS[model].options) is not None:
                package_config(model_options, sizes)  # rejects options before anything is measured
        options.out.mkdir(parents=True, exist_ok=True)
        write_report(options.out, measure_groups(options, groups))


def measure_groups(options: argparse.Namespace, groups: Sequence[Sequence[Case]]) -> list[Row]:
    """Measure group after group; results.json is written after each."""
    runner = Runner(options.device, options.rounds, options.limit, options.compile)
    settings = {**vars(options), "out": str(options.out), "machine": machine_name(options.device)}
    settings |= {"torch": torch.__version__, "code": code_digest()}
    rows: list[Row] = []
    for cases in tqdm(groups, unit="group", disable=None):
        rows += runner.measure(cases)
        free_memory(options.device)
        content = json.dumps({"settings": settings, "rows": rows}, indent=1)
        write_whole(options.out / "results.json", f"{content}\n")
    return rows


def write_report(out: Path, rows: Sequence[Row]) -> None:
    """Print the tables, and write them and the picture."""
    reasons = dict.fromkeys(f"- {row['model']}, {row['scope']}: {row['reason']}" for row in rows if "reason" in row)
    text = markdown(rows) + ("\n\nNot measured:\n\n" + "\n".join(reasons)) * bool(reasons)
    print(text)
    write_whole(out / "results.md", f"{text}\n")
    if any("seconds" in row for row in rows):
        plot(rows, out / "benchmark.png")


if __name__ == "__main__":
    main()
