"""The studies that compare the perplexities of variants after equal updates: perplexity, mechanisms, multipliers."""

import re
import statistics
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from fairseq_linformer.data.tokenizer import DICTIONARY_FILE, load_dictionary
from fairseq_linformer.model.architecture import ARCHITECTURES
from fairseq_linformer.training.configuration import CONFIGS
from fairseq_linformer.training.jobs import job_device

from .baselines import Sizes
from .distance import DISTANCE, distance_tables, measure_distances
from .engine import Columns, Comparison, Experiment, Trial, Tuned, cost_column, time_updates
from .flags import chosen_variants
from .measuring import Case, Machine, in_turns, spread
from .plots import Panel, draw, draw_dots
from .pretraining import EMBED_DIM, LAYERS, Pretraining, at_length, perplexity_columns
from .store import Figures, Store, code_digest
from .variants import variants_of

TOKENS = 2048  # per update, or batch that is measured: at least one row
COST_LENGTHS = {512: 128, 4096: 256}  # n, and Linformer's k as our configurations have it
PHASE = "forward + backward"
K, BESIDE = 128, ("mean-pool", "control")  # of the study multipliers: k, and what has no multiplier


def draw_perplexities(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """Perplexity by variant."""
    values = {own.variant: own.each("perplexity") for own in tuned}
    draw_dots(values, f"perplexity after {options.updates:,} updates", path)


def perplexity_experiments(options: Namespace, store: Store) -> list[Pretraining]:
    """One, with the n of all variants: 512, unless --all says otherwise."""
    n = 512
    for word in options.all:
        name, _, value = word.partition("=")
        n = int(value) if name == "task.tokens_per_sample" and value.isdigit() else n
    return [Pretraining.of(options, store, n, chosen_variants(options, {}), folder="")]


def with_cost(options: Namespace, tuned: Sequence[Tuned]) -> Columns:
    """Perplexity, and the time of an update in rows of n."""
    return {**perplexity_columns(options, tuned), **cost_column()}


PERPLEXITY = Comparison(
    experiments=perplexity_experiments,
    quantity="perplexity",
    form="{:.2f}".format,
    columns=with_cost,
    pictures={"perplexity.png": draw_perplexities, **DISTANCE},
    measures=(time_updates, measure_distances),
    notes=distance_tables,
)


@dataclass(frozen=True)
class Validated(Pretraining):
    """Runs that are validated ten times on the way: the curve of the first seed."""

    def details(self, trial: Trial) -> Figures:
        if trial.seed != self.seeds[0]:
            return {}
        rows = self.training(trial).run()  # complete by now: what fairseq logged
        return {"curve": {row["valid_num_updates"]: row["valid_ppl"] for row in rows if "valid_ppl" in row}}


def mechanism_experiments(options: Namespace, store: Store) -> list[Pretraining]:
    """One, in which the control is always."""
    interval = max(1, options.updates // 10)
    intervals = [f"dataset.validate_interval_updates={interval}", f"checkpoint.save_interval_updates={interval}"]
    validations = ["dataset.disable_validation=false", "dataset.max_valid_steps=50", *intervals]
    known = variants_of("mechanisms", 512)
    chosen = {**chosen_variants(options, known), "control": [*options.all, *known["control"]]}
    variants = {name: [*own, *validations] for name, own in chosen.items()}
    return [Validated.of(options, store, 512, variants, folder="")]


def tiny_sizes(corpus: Path) -> Sizes:
    """The sizes of the model that is trained, with the vocabulary of a corpus, n and k aside."""
    tiny: Any = OmegaConf.load(CONFIGS / "model" / "tiny_512.yaml")
    architecture = ARCHITECTURES[tiny._name]
    return Sizes(
        layers=LAYERS,
        embed_dim=EMBED_DIM,
        heads=architecture["encoder_attention_heads"],
        vocabulary=len(load_dictionary(corpus / DICTIONARY_FILE)) + 1,  # the task adds <mask>
        dropout=OmegaConf.load(CONFIGS / "pretrain/recipe/tiny.yaml").model.dropout,
        sharing=tiny.sharing,
        options=tuple((name, tiny[name]) for name in ("local_conv", "encoder_normalize_before")),
    )


def as_case(overrides: Sequence[str], sizes: Sizes) -> Case:
    """A variant's model on a batch of ``TOKENS``."""
    words = [word.removeprefix("model.") for word in overrides if word.startswith("model.")]
    own: dict[str, Any] = OmegaConf.to_container(OmegaConf.from_dotlist(words))  # type: ignore[assignment]
    model = own.pop("attention", "linformer")
    rows = max(1, TOKENS // sizes.length)
    return Case(model, replace(sizes, options=(*sizes.options, *own.items())), PHASE, ((sizes.length,) * rows,))


def mechanism_costs(options: Namespace, experiments: Sequence[Experiment], tuned: Sequence[Tuned]) -> None:
    """Gives each variant its parameters, and with each n median seconds and peak MiB, unless they were measured."""
    (experiment,) = cast(Sequence[Pretraining], experiments)
    machine, sizes = Machine(job_device(), "float32"), tiny_sizes(experiment.corpus)
    for n, k in COST_LENGTHS.items():
        sized = replace(sizes, length=n, projected_length=k)
        cases = {own.variant: as_case(experiment.variants[own.variant], sized) for own in tuned}
        about = {"code": code_digest(), **machine.describe(), "rounds": options.rounds, "cases": repr(cases)}
        kept = experiment.store.once(f"cost-n{n}", about, partial(measure_cases, machine, cases, options.rounds))
        for own in tuned:
            own.cost |= {f"{what} {n}": kept[f"{own.variant} {what}"] for what in ("parameters", "seconds", "MiB")}


def measure_cases(machine: Machine, cases: Mapping[str, Case], rounds: int) -> dict[str, float]:
    """Parameters, median seconds and peak MiB of each case, in turns."""
    calls = {name: machine.prepare(case) for name, case in cases.items()}
    in_turns(calls, rounds=1)  # to warm up
    found: dict[str, float] = {}
    for name, seconds in in_turns(calls, rounds).items():
        found[f"{name} seconds"] = spread(seconds)["seconds"]
        found[f"{name} MiB"] = machine.peak_memory(calls[name])
        found[f"{name} parameters"] = sum(parameter.numel() for parameter in cases[name].build().parameters())
    return found


def mechanism_columns(options: Namespace, tuned: Sequence[Tuned]) -> Columns:
    """Perplexity, and cost at each n."""
    shortest = min(COST_LENGTHS)
    costs: Columns = {"parameters": lambda own: f"{own.cost[f'parameters {shortest}'] / 1e6:.2f} M"}
    for n in COST_LENGTHS:
        costs[f"tokens/s, n={n}"] = partial(_speed, n)
        costs[f"MiB, n={n}"] = partial(_memory, n)
    return {**perplexity_columns(options, tuned), **costs}


def _speed(n: int, own: Tuned) -> str:
    return f"{max(1, TOKENS // n) * n / own.cost[f'seconds {n}']:,.0f}"


def _memory(n: int, own: Tuned) -> str:
    return f"{own.cost[f'MiB {n}']:.0f}"


def draw_curves(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """Perplexity of the first seed against updates, and against time, which is updates times the median of a step."""
    curves = {own.variant: own.results[options.seeds[0]]["curve"] for own in tuned}
    minutes = {own.variant: own.cost[f"seconds {min(COST_LENGTHS)}"] / 60 for own in tuned}
    by_updates = {name: {x: [y] for x, y in curve.items()} for name, curve in curves.items()}
    by_time = {name: {x * minutes[name]: [y] for x, y in curve.items()} for name, curve in curves.items()}
    y = "masked-LM perplexity, validation"
    time = f"minutes (updates x median {PHASE})"
    draw([[Panel(by_updates, x="updates", y=y, scale="linear"), Panel(by_time, x=time, y=y, scale="log")]], path)


def draw_costs(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """Time and memory against n."""

    def curves(what: str) -> dict[str, dict[float, list[float]]]:
        return {own.variant: {n: [own.cost[f"{what} {n}"]] for n in COST_LENGTHS} for own in tuned}

    draw([[Panel(curves(what), y=f"{what}, {PHASE}") for what in ("seconds", "MiB")]], path)


MECHANISMS = Comparison(
    experiments=mechanism_experiments,
    quantity="perplexity",
    form="{:.2f}".format,
    columns=mechanism_columns,
    pictures={"perplexity.png": draw_curves, "cost.png": draw_costs, **DISTANCE},
    measures=(mechanism_costs, measure_distances),
    notes=distance_tables,
    order=lambda own: statistics.mean(own.each("perplexity")),
)


def multiplier_experiments(options: Namespace, store: Store) -> list[Pretraining]:
    """One for each n, in which mean pooling and the control are always."""
    found = []
    for n in options.lengths:
        sizes = [*at_length(n, max(1, TOKENS // n)), f"model.projected_length={K}"]
        known = variants_of("multipliers", n)
        chosen = {**{name: known[name] for name in BESIDE}, **chosen_variants(options, known)}
        found.append(Pretraining.of(options, store, n, {name: [*sizes, *own] for name, own in chosen.items()}))
    return found


def draw_multipliers(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """Perplexity against c, a panel for each n; lines for what has no c."""
    panels = []
    for n in options.lengths:
        own = {one.variant: one.each("perplexity") for one in tuned if one.n == n}
        learned = {float(name[1:]): values for name, values in own.items() if re.fullmatch(r"c[\d.e-]+", name)}
        beside = {name: statistics.mean(values) for name, values in own.items() if name in BESIDE}
        curves = {"learned matrix, E = c W": learned}
        panels.append(Panel(curves, f"n = {n}", "c", "perplexity at masked tokens", scale="log", beside=beside))
    draw([panels], path)


MULTIPLIERS = Comparison(
    experiments=multiplier_experiments,
    quantity="perplexity",
    form="{:.2f}".format,
    columns=perplexity_columns,
    pictures={"multipliers.png": draw_multipliers, **DISTANCE},
    measures=(measure_distances,),
    notes=distance_tables,
)
