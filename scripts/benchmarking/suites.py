"""What the benchmark measures: suites of groups of cases. The cases of a group run in turns."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fairseq_linformer.errors import check
from fairseq_linformer.model.architecture import architecture_defaults

from .baselines import FIRST_TOKEN, KERNELS, Sizes
from .measuring import PHASES, Case
from .variants import BEST, preset_options

COMPARED = ("linformer", "fairseq-example", "softmax", "fairseq-roberta", "hf-modernbert")
SETTINGS = {512: 128, 4096: 256, 16384: 256}  # k by n, for single layers and models
LONGEST = 4096  # n of whole models: the n x n weights that some of them build still fit in memory
OVERVIEW = ("linformer", "fairseq-example", "softmax", "fairseq-roberta")
OVERVIEW_LONGEST = 16384
PROJECTED_LENGTHS = (128, 256, 512, 1024, 2048)  # k in the paper's table 3
# What the suite efficiency compares beside the preset BEST, full attention first; all drop some attention weights.
EFFICIENCY = ("softmax", "linformer", "efficient", "nystrom", "long-short")
EFFICIENCY_LENGTHS = tuple(2**power for power in range(7, 13))  # 128 to 4,096
WIDTHS = {name: architecture_defaults(f"linformer_roberta_{name}") for name in ("tiny", "base", "large")}


@dataclass(frozen=True)
class Group:
    """Cases that run in turns, and what is measured besides their time.

    Args:
        memory: the peak of a call.
        gemm_fraction: the fraction of the measured GEMM peak.
    """

    name: str
    cases: tuple[Case, ...]
    memory: bool = True
    gemm_fraction: bool = False


@dataclass(frozen=True)
class Plan:
    """How large the benchmark is."""

    sizes: Sizes  # n and k aside
    tokens: int  # per batch, which has at least one row
    lengths: tuple[int, ...]  # n, ascending; of SETTINGS those among them are measured
    device: str
    models: tuple[str, ...]  # what the suite `models` compares

    def validate(self) -> None:
        """Checks that the plan can be measured.

        Raises:
            UserError: a number is out of its range.
        """
        check("tokens", self.tokens, self.tokens >= 1, "at least 1")
        check("vocab-size", self.sizes.vocabulary, self.sizes.vocabulary > FIRST_TOKEN, f"above {FIRST_TOKEN}")
        check("lengths", self.lengths[0], self.lengths[0] >= 256, "at least 256")

    def describe(self) -> dict[str, Any]:
        """The options that results of one benchmark share."""
        sizes = {name: getattr(self.sizes, name) for name in ("layers", "embed_dim", "heads", "vocabulary", "dropout")}
        return {**sizes, "tokens": self.tokens, "lengths": list(self.lengths), "models": list(self.models)}

    def settings(self, longest: int) -> dict[int, int]:
        """k by n, for single layers and models, up to n = `longest`.

        Raises:
            UserError: the plan has none of these lengths.
        """
        found = {n: k for n, k in SETTINGS.items() if n <= longest and n in self.lengths}
        allowed = ", ".join(str(n) for n in SETTINGS if n <= longest)
        check("lengths", list(self.lengths), bool(found), f"one of {allowed}, or have it among others")
        return found

    def case(self, model: str, n: int, k: int, phase: str, sharing: str = "layerwise", rows: int | None = None) -> Case:
        sizes = replace(self.sizes, length=n, projected_length=k, sharing=sharing)
        return Case(model, sizes, phase, rows or max(1, self.tokens // n))


def attention(plan: Plan) -> Iterator[Group]:
    """One layer's attention alone, with one E = F, beside that of fairseq's examples/linformer."""
    for n, k in plan.settings(max(SETTINGS)).items():
        for phase in ("inference", "forward + backward"):
            cases = [plan.case(model, n, k, phase, "key-value") for model in ("linformer", "fairseq-example")]
            alone = tuple(replace(case, layer_alone=True) for case in cases)
            yield Group(f"n={n}, k={k}, {phase}", alone, gemm_fraction=True)


def _with_options(case: Case, note: str, options: Mapping[str, Any]) -> Case:
    return replace(case, sizes=replace(case.sizes, options=tuple(options.items())), note=note)


def models(plan: Plan) -> Iterator[Group]:
    """Whole models of equal width and depth. Linformers have one E = F per layer.

    Inference computes the features of all positions. In the other phases the last feed-forward network of our models
    works on masked positions only; that of the baselines works on all. The more layers, the less this saves.
    With two layers or more, the preset ``near_and_far`` is among them.
    `softmax-flash`, `softmax-efficient` and `softmax-math` are `softmax` with that kernel of PyTorch and never with
    a padding mask: flash attention allows none, and in inference on a GPU `softmax` has one, as users have it.
    """
    for n, k in plan.settings(LONGEST).items():
        for phase in PHASES:
            cases = []
            for model in plan.models:
                case = plan.case(model, n, k, phase, "key-value")
                cases.append(case)
                if model == "linformer":
                    cases.append(_with_options(case, "compiled", {"compile_layers": True}))
                    if case.sizes.layers > 1:  # a value residual needs two
                        cases.append(_with_options(case, BEST, preset_options(BEST)))
                # On the CPU, attention with dropout has an implementation of its own, without PyTorch's kernels.
                if model == "softmax" and (plan.device == "cuda" or phase in ("inference", "evaluation")):
                    cases += [replace(case, model=f"softmax-{kernel}") for kernel in KERNELS]
            memory = phase in ("inference", "forward + backward")
            yield Group(f"n={n}, k={k}, {phase}", tuple(dict.fromkeys(cases)), memory, gemm_fraction=True)


def table3(plan: Plan) -> Iterator[Group]:
    """The paper's table 3 and figure 2: inference at a fixed number of tokens, one E = F for all layers."""
    for n in plan.lengths:
        cases = [plan.case("softmax", n, 128, "inference")]
        for k in PROJECTED_LENGTHS:
            if k < n:
                cases.append(replace(plan.case("linformer", n, k, "inference"), note=f"k={k}"))
        yield Group(f"n={n}", tuple(cases))


def overview(plan: Plan) -> Iterator[Group]:
    """A training step on one row of growing length: ours, fairseq's example and full attention. One E = F per layer."""
    for n in plan.lengths:
        if 512 <= n <= OVERVIEW_LONGEST:
            models = [model for model in OVERVIEW if n <= LONGEST or model != "fairseq-roberta"]
            cases = tuple(plan.case(model, n, 256, "training step", "key-value", rows=1) for model in models)
            yield Group(f"n={n}", cases)


def growth(plan: Plan) -> Iterator[Group]:
    """One row of growing length, k = 256, one E = F for all layers."""
    for phase in ("inference", "forward + backward"):
        for n in plan.lengths:
            if n >= 1024:
                cases = tuple(plan.case(model, n, 256, phase, rows=1) for model in ("linformer", "softmax"))
                yield Group(f"{phase}, n={n}", cases)


def efficiency(plan: Plan) -> Iterator[Group]:
    """One layer with the widths of tiny, base and large: from which n a mechanism beats full attention.

    n is 128 to 4,096, one E = F, k = 128 (64 at n = 128); the preset ``near_and_far`` has the same k, the other
    mechanisms their defaults. ``--layers``, ``--embed-dim`` and ``--heads`` do not count here.
    """
    preset = {**preset_options(BEST), "value_residual": False}  # which needs two layers
    for width, architecture in WIDTHS.items():
        dim, heads = int(architecture["encoder_embed_dim"]), int(architecture["encoder_attention_heads"])
        one = replace(plan, sizes=replace(plan.sizes, layers=1, embed_dim=dim, heads=heads))
        for phase in ("inference", "training step"):
            for n in EFFICIENCY_LENGTHS:
                if n <= plan.lengths[-1]:
                    k = min(128, n // 2)
                    cases = [one.case(model, n, k, phase, "key-value") for model in EFFICIENCY]
                    cases.append(_with_options(one.case("linformer", n, k, phase, "key-value"), BEST, preset))
                    yield Group(f"{width}, {phase}, n={n}", tuple(cases))


def memory(plan: Plan) -> Iterator[Group]:
    """Activation checkpointing, and on a GPU also offload to the host's memory. Forward + backward."""
    n, k = max(plan.settings(LONGEST).items())
    kinds: list[dict[str, Any]] = [{}, {"checkpoint_activations": True}]
    if plan.device == "cuda":
        kinds.append({"checkpoint_activations": True, "offload_activations": True})
    plain = plan.case("linformer", n, k, "forward + backward")
    cases = [_with_options(plain, " + ".join(options), options) for options in kinds]
    yield Group(f"n={n}", tuple(cases))


def long(plan: Plan) -> Iterator[Group]:
    """The tiny model on one very long row: a training step at n = 65,536, inference at 262,144 with mean pooling."""
    tiny = replace(plan, sizes=replace(plan.sizes, layers=4, embed_dim=256, heads=4))
    yield Group("n=65536", (tiny.case("linformer", 65_536, 256, "training step", rows=1),))
    pooled = tiny.case("linformer", 262_144, 256, "inference", rows=1)
    yield Group("n=262144", (_with_options(pooled, "mean-pool", {"projection": "mean-pool"}),))


SUITES: dict[str, Callable[[Plan], Iterator[Group]]] = {
    suite.__name__: suite for suite in (overview, attention, models, table3, growth, efficiency, memory, long)
}
