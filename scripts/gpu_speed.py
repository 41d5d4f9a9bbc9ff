"""Time, memory and share of the peak of whole models and of one layer's attention; what scripts/gpu.py measures.

Ours are the models of transformers, which need no fairseq and have the same layers. No model has dropout; weights,
gradients and Adam's moments are in bfloat16. The LM head and our last feed-forward network see masked positions alone.

Dimensions: B batch, n sequence length, d embedding, V vocabulary.
"""

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Row = dict[str, Any]
Rows = Iterator[tuple[str, Row]]  # what a part measures: figures by the name of a case
Call = Callable[[], Any]

PRESETS = Path(__file__).resolve().parents[1] / "configs/pretrain/preset"
PEAKS = {"H100 80GB HBM3": 989e12, "H200": 989e12, "A100": 312e12}  # bf16, by NVIDIA's data sheets
KERNELS = {"softmax-flash": SDPBackend.FLASH_ATTENTION, "softmax-cudnn": SDPBackend.CUDNN_ATTENTION}
NAMES = {"softmax-flash": "pytorch_flash", "softmax-cudnn": "cudnn"}  # a part of the kernel's name
WINDOWED = ("near_and_far", "fetch")  # with model.flex_attention
OURS = (*WINDOWED, "linformer", *KERNELS)
ANCHOR = OURS[0]  # whose time others are multiples of
PEERS = ("hf-roberta", "hf-modernbert")
OTHERS = (*PEERS, "fairseq-example")
TRAINING, INFERENCE = "training step", "inference"
MASKED = 0.15
WARM_UPS, LEAST_ROUNDS = 3, 3
PATIENCE = 25  # seconds, after which no further round begins


@dataclass(frozen=True)
class Sizes:
    """What the models of a comparison share; tokens are those of a batch, `product` is n of the GEMM n^3."""

    device: str = "cuda"
    layers: int = 12
    width: int = 768
    heads: int = 12
    pieces: int = 50265
    tokens: int = 65536
    rounds: int = 10
    product: int = 8192
    compiler: str = "inductor"


def rows_of(n: int) -> int:
    """k, as our recipes have it."""
    return n // 4 if n <= 512 else 256


@dataclass(frozen=True)
class Built:
    """A model and its layers, features (B, n, d) of tokens (B, n), and the loss of these.

    It is asked for by tokens, masks (B, n) and the numbers of what is masked (N,).
    """

    module: nn.Module
    layers: Sequence[nn.Module]
    features: Callable[[Tensor], Tensor]
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]


def build(name: str, sizes: Sizes, n: int, **options: Any) -> Built:
    """A model by its name; options are further ones of ours.

    Raises:
        ImportError: its package is not installed.
    """
    if name == "fairseq-example":
        from benchmarking import baselines

        own = baselines.Sizes(sizes.layers, sizes.width, sizes.heads, sizes.pieces, n, rows_of(n), dropout=0.0)
        model = baselines.MODELS[name](own)
        loss = lambda tokens, masked, places: model.loss(tokens, masked)  # noqa: E731
        return Built(getattr(model, "module", model), (), lambda tokens: model.features(tokens, None), loss)
    import transformers

    shared = {"vocab_size": sizes.pieces, "hidden_size": sizes.width, "intermediate_size": 4 * sizes.width}
    shared |= {"num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads, "max_position_embeddings": n + 2}
    shared |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "bos_token_id": 0, "eos_token_id": 2}
    shared |= {"pad_token_id": 1, "cls_token_id": 0, "sep_token_id": 2}
    if name == "hf-roberta":
        model = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**shared))
        layers = model.roberta.encoder.layer
        return _of_parts(model, layers, lambda tokens: model.roberta(tokens)[0], model.lm_head)
    if name == "hf-modernbert":
        gated = {**shared, "intermediate_size": 3 * sizes.width // 2}
        model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**gated))
        head = nn.Sequential(model.head, model.decoder)
        return _of_parts(model, model.model.layers, lambda tokens: model.model(tokens)[0], head)
    recipe = {"max_position_embeddings": n, "projected_length": rows_of(n), "sharing": "layerwise"}
    return _of_ours(name, sizes.device, {**shared, **recipe, **options})


def _of_parts(
    model: nn.Module, layers: Sequence[nn.Module], features: Callable[[Tensor], Tensor], head: nn.Module
) -> Built:
    def loss(tokens: Tensor, masked: Tensor, places: Tensor) -> Tensor:
        return F.cross_entropy(head(features(tokens).flatten(0, 1)[places]).float(), tokens.flatten()[places])

    return Built(model, layers, features, loss)


def _of_ours(name: str, device: str, options: dict[str, Any]) -> Built:
    """With the loss of our criteria, and without a padding mask, as our tasks' batches without padding have none.

    Full attention has the presets' value residual, too.
    """
    from fairseq_linformer.hf.configuration_linformer_roberta import LinformerRobertaConfig
    from fairseq_linformer.hf.modeling_linformer_roberta import LinformerRobertaForMaskedLM
    from fairseq_linformer.model.flex import attach
    from fairseq_linformer.model.head import linear_cross_entropy

    own = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())["model"] if name in WINDOWED else {}
    own |= {"attention": "softmax", "value_residual": True} if name in KERNELS else {}
    model = LinformerRobertaForMaskedLM(LinformerRobertaConfig(**{**own, **options}))
    base = model.linformer_roberta
    if device == "cuda" and name in WINDOWED and not all(attach(layer.self_attn) for layer in base.layers):
        raise RuntimeError(f"{name}: a layer attends without the kernel")

    def features(tokens: Tensor, wanted: Tensor | None = None) -> Tensor:
        with kernel_of(name):
            return base.encode(base.embed(base.embed_tokens(tokens), None), None, wanted)[0]

    def loss(tokens: Tensor, masked: Tensor, places: Tensor) -> Tensor:
        head, targets = model.lm_head, tokens.flatten()[places]
        x = head.layer_norm(head.activation_fn(head.dense(features(tokens, places))))
        return linear_cross_entropy(x, head.decoder.weight, head.decoder.bias, targets) / len(targets)

    return Built(model, base.layers, features, loss)


def kernel_of(name: str) -> Any:
    """What selects the kernel of a model, PyTorch's choice by default."""
    return sdpa_kernel(KERNELS[name]) if name in KERNELS else contextlib.nullcontext()


def measure_models(sizes: Sizes, n: int, names: Sequence[str] = (*OURS, *OTHERS), compiled: bool = False) -> Rows:
    """Training steps and inference of whole models; with `compiled` layers the training step alone."""
    batch = batch_of(sizes, n)
    shape = {"n": n, "rows": len(batch[0]), "k": rows_of(n), "compiled": compiled}
    prepare = partial(calls_of, sizes, n, batch, compiled)
    yield from _measure(sizes, names, prepare, partial(flops, sizes, n, len(batch[0])), shape)


def batch_of(sizes: Sizes, n: int) -> list[Tensor]:
    """Tokens and masks (B, n), and the numbers of what is masked (N,)."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, sizes.pieces, (max(1, sizes.tokens // n), n), generator=generator)
    masked = torch.rand(tokens.shape, generator=generator) < MASKED
    return [own.to(sizes.device) for own in (tokens, masked, masked.flatten().nonzero()[:, 0])]


def calls_of(sizes: Sizes, n: int, batch: Sequence[Tensor], compiled: bool, name: str) -> dict[str, Call]:
    """What is measured of a new model."""
    with torch.device(sizes.device):  # where random weights are drawn at once
        built = build(name, sizes, n)
    built.module.to(sizes.device, torch.bfloat16)
    if compiled:
        compile_alone(built.layers, sizes.compiler)
    optimizer = torch.optim.AdamW(built.module.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        built.module.train()
        built.loss(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    def infer() -> None:
        built.module.eval()
        with torch.no_grad():
            built.features(batch[0])

    return {TRAINING: step} if compiled else {TRAINING: step, INFERENCE: infer}


def compile_alone(layers: Iterable[nn.Module], compiler: str) -> None:
    """Compiles the layers of a model, none of whose graphs another model has.

    PyTorch shares them between modules of one class, in its caches too, whichever attention kernel is selected: cuDNN's
    would run as the flash kernel. So there are no caches, and each model has a backend of its own.
    """
    torch.compiler.config.force_disable_caches = True

    def backend(graph: Any, inputs: Any) -> Any:
        return torch._dynamo.lookup_backend(compiler)(graph, inputs)

    for layer in layers:
        layer.compile(dynamic=False, backend=backend)


def measure_attention(sizes: Sizes, n: int, names: Sequence[str] = OURS) -> Rows:
    """Forward and backward of one layer's attention, without a value residual."""
    rows = max(1, sizes.tokens // n)

    def prepare(name: str) -> dict[str, Call]:
        with torch.device(sizes.device):
            attention = (
                build(name, replace(sizes, layers=1), n, value_residual=False)
                .module.linformer_roberta.layers[0]
                .self_attn
            )
            x = torch.randn(rows, n, sizes.width, dtype=torch.bfloat16, requires_grad=True)
        attention.to(sizes.device, torch.bfloat16)

        def both() -> None:
            with kernel_of(name):
                attention(x, None).sum().backward()
            for tensor in (x, *attention.parameters()):
                tensor.grad = None

        return {"attention": both}

    operations = partial(flops, sizes, n, rows)
    yield from _measure(sizes, names, prepare, operations, {"n": n, "rows": rows, "k": rows_of(n)})


def _measure(
    sizes: Sizes,
    names: Sequence[str],
    prepare: Callable[[str], dict[str, Call]],
    operations: Callable[[str, str], float],
    shape: Row,
) -> Rows:
    """All cases in turns; one that fails, for lack of memory say, has its reason instead of figures."""
    calls: dict[tuple[str, str], Call] = {}
    failed: dict[tuple[str, str], str] = {}
    for name in names:
        try:
            calls |= {(name, phase): call for phase, call in prepare(name).items()}
        except Exception as error:
            failed[name, "all phases"] = reason(error)
    seconds, peak = _in_turns(calls, sizes, failed), peak_rate(sizes)
    for (name, phase), own in seconds.items():
        row = {"model": name, "phase": phase, **shape}
        try:
            row |= _figures(name, calls[name, phase], sizes, own)
            share = operations(name, phase) / row["seconds"] / peak[0]
            row |= {"share": share, "peak": f"{peak[0] / 1e12:.3g} TFLOP/s, {peak[1]}"}
        except Exception as error:
            row["reason"] = reason(error)
        yield f"{name}, {phase}", row
    for (name, phase), said in failed.items():
        yield f"{name}, {phase}", {"model": name, "phase": phase, **shape, "reason": said}


def _figures(name: str, call: Call, sizes: Sizes, seconds: list[float]) -> Row:
    """Of a call.

    Raises:
        RuntimeError: full attention has another kernel than the one that was selected.
    """
    found = kernels(call, sizes)
    wanted = NAMES.get(name)
    if wanted and found and not any(wanted in kernel for kernel in found):
        raise RuntimeError(f"not by a kernel named {wanted}, but by {', '.join(found)}")
    low, middle, high = statistics.quantiles([*seconds, *seconds], n=4, method="inclusive")
    return {"seconds": middle, "low": low, "high": high, "MiB": peak_memory(call, sizes), "kernels": found}


def _in_turns(
    calls: dict[tuple[str, str], Call], sizes: Sizes, failed: dict[tuple[str, str], str]
) -> dict[tuple[str, str], list[float]]:
    """Seconds of each call, round after round, after those to warm up; what fails leaves `calls` for `failed`."""
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    start = time.perf_counter()
    for number in range(-WARM_UPS, sizes.rounds):
        if number >= LEAST_ROUNDS and time.perf_counter() - start > PATIENCE:
            break
        for key in [*seconds]:
            try:
                own = timed(calls[key], sizes)
                seconds[key] += [own] if number >= 0 else []
            except Exception as error:
                failed[key] = reason(error)
            if key in failed:
                del seconds[key], calls[key]
                gc.collect()
                _ = sizes.device == "cuda" and torch.cuda.empty_cache()
    return seconds


def timed(call: Call, sizes: Sizes) -> float:
    """Seconds of a call, until the device has done it."""
    if sizes.device != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1000


def peak_memory(call: Call, sizes: Sizes) -> float | None:
    """MiB that a call adds at its peak to what was held before, as PyTorch's allocator counts; None on the CPU."""
    if sizes.device != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - held) / 2**20


def kernels(call: Call, sizes: Sizes) -> dict[str, float]:
    """The kernels that take longest, with their share of the time; none where the profiler does not run."""
    activity, what = ("CUDA", "device") if sizes.device == "cuda" else ("CPU", "cpu")
    try:
        with torch.profiler.profile(activities=[getattr(torch.profiler.ProfilerActivity, activity)]) as recorded:
            call()
            _ = sizes.device == "cuda" and torch.cuda.synchronize()
        times = {event.key: getattr(event, f"self_{what}_time_total") for event in recorded.key_averages()}
    except (RuntimeError, AttributeError):
        return {}
    whole = sum(times.values()) or 1
    longest = sorted(times, key=times.__getitem__, reverse=True)
    shown = [*longest[:6], *(name for name in longest[6:] if any(part in name for part in NAMES.values()))]
    return {name[:120]: round(times[name] / whole, 3) for name in shown}


def peak_rate(sizes: Sizes) -> tuple[float, str]:
    """Floating-point operations per second in bf16: by the data sheet, or of a product; and which it is."""
    if sizes.device == "cuda":
        for card, rate in PEAKS.items():
            if card in torch.cuda.get_device_name():
                return rate, "data sheet"
    left, right = torch.randn(2, sizes.product, sizes.product, device=sizes.device, dtype=torch.bfloat16)
    seconds = min(timed(lambda: left @ right, sizes) for _ in range(10))
    return 2 * sizes.product**3 / seconds, f"a product of {sizes.product}^3"


def flops(sizes: Sizes, n: int, rows: int, name: str, phase: str) -> float:
    """Floating-point operations of a call's matrix products by formula; a backward pass counts twice a forward.

    `keys` is how many keys a query meets, products along the sequence among them. The choice of segments has scores
    alone, and no backward pass.
    """
    from fairseq_linformer.attention.near import CANDIDATES

    d, k, window = sizes.width, rows_of(n), 2 * 128
    choice = 2 * d * (k + 8 * CANDIDATES * n / k) * (name == "fetch")
    keys = {"linformer": 1.5 * k, "fairseq-example": 1.5 * k, "near_and_far": k + window, "fetch": k + 161 + 8 * n / k}
    keys |= {"hf-modernbert": (n + 2 * 128) / 3}  # every third layer sees all
    maps = {"linformer": 2 + 2 * k / n, "fairseq-example": 2 + 2 * k / n}.get(name, 4)
    attention = 2 * maps * d**2 + 4 * min(n, keys.get(name, n)) * d
    if phase == "attention":
        return rows * n * (3 * attention + choice)
    trains = phase == TRAINING
    networks = sizes.layers - (1 - MASKED) * (trains and name in OURS)
    token = sizes.layers * attention + networks * 2 * d**2 * (4.5 if name == "hf-modernbert" else 8)
    head = 2 * MASKED * (d**2 + d * sizes.pieces)
    return rows * n * ((3 * (token + head) if trains else token) + sizes.layers * choice)


def reason(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
