"""Variants of one small model on rows of long documents: what they find, and cost (scripts/long_documents.py)."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import torch

import fairseq_linformer
from fairseq_linformer.config import ResolvedConfig
from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.finetune import baseline
from fairseq_linformer.system.files import write_whole
from fairseq_linformer.system.state import read_state

from . import long_documents, small_model
from .long_documents import Trainer
from .long_plots import draw_lengths
from .long_tasks import TASKS
from .lra import OF_VARIANT, published
from .measuring import Machine
from .presets import BEST, preset_overrides
from .rows_of_text import TaskData
from .runner import code_digest
from .small_model import configure_model
from .trials import Result, Trials, once, timed_once
from .variants import with_deviation

MODEL = ["_name=linformer_roberta_tiny", "encoder_layers=2", "encoder_embed_dim=64", "encoder_ffn_embed_dim=64"]
MODEL += ["encoder_attention_heads=2", "encoder_normalize_before=true", "local_conv=3", "sharing=layerwise"]
MODEL += ["dropout=0", "attention_dropout=0"]
CODE = (Path(fairseq_linformer.__file__).parent, Path(long_documents.__file__), Path(small_model.__file__))  # of a run
BASELINE = "TF-IDF + linear SVM"
RESULTS_FILE = "results.json"


class Found(TypedDict):
    """A variant at the learning rate that was best for it.

    ``tried`` are the accuracies of valid by learning rate, with the first seed; ``accuracies`` those of test by seed;
    ``cost`` the seconds of an update, the median and the quartiles ("seconds", "low", "high").
    """

    name: str
    tried: dict[str, float]
    learning_rate: float
    accuracies: dict[str, float]
    cost: dict[str, float]


class Results(TypedDict):
    """What results.json holds."""

    task: str
    length: int
    rows: dict[str, int]
    updates: int
    tokens: int
    machine: dict[str, Any]
    majority: float
    baseline: float
    variants: list[Found]


def default_variants(length: int) -> dict[str, list[str]]:
    """What is compared unless the user says otherwise, as overrides of the model."""
    k = min(128, max(1, length // 4))
    window = min(128, length)
    best = [*preset_overrides(BEST), f"model.projected_length={k}", f"model.linformer_window={window}"]
    return {
        "softmax": ["model.attention=softmax"],
        "softmax-residual": ["model.attention=softmax", "model.value_residual=true"],
        "control": ["model.projection=mean-pool", "model.projected_length=1"],
        "linformer": [f"model.projected_length={k}"],
        BEST: best,
        f"{BEST}-class-token": [*best, "model.linformer_class_token=true"],  # <s> sees everything, as in longformer
        "longformer": ["model.attention=longformer", f"model.longformer_window={2 * (window // 2)}"],
        "performer": ["model.attention=performer"],
        "none": ["model.attention=none"],
        "nystrom": ["model.attention=nystrom"],
    }


def configure(overrides: Sequence[str], length: int) -> ResolvedConfig:
    """The model's configuration from Hydra-style overrides of ``MODEL``, as ``configure_model`` takes them."""
    return configure_model(MODEL, overrides, length)


@dataclass(frozen=True)
class LongComparison:
    """Variants that are trained on one task at one length.

    Args:
        task: its name.
        length: n.
        data: its rows.
        out: folder of the runs, ``NAME/lrRATE/seedN-DIGEST.json``; complete ones are not repeated. The digest is that
            of all that a run depends on.
        variants: by name, overrides of the model.
        learning_rates: tried with the first seed, for each variant; the other seeds have the best on valid.
        seeds: one or more.
        updates: of every run.
        tokens: of an update, at least one row.
        rounds: times that an update of each variant is measured, in turns.
        device: what trains them, "cpu" or "cuda".

    Raises:
        UserError: an override is not allowed.
    """

    task: str
    length: int
    data: TaskData
    out: Path
    variants: Mapping[str, Sequence[str]]
    learning_rates: Sequence[float]
    seeds: Sequence[int]
    updates: int
    tokens: int
    rounds: int
    device: str = "cpu"

    @cached_property
    def configs(self) -> dict[str, ResolvedConfig]:
        """The models, by variant."""
        return {name: configure(overrides, self.length) for name, overrides in self.variants.items()}

    @cached_property
    def _digest(self) -> str:
        return self.data.digest()

    def run(self) -> Results:
        """Trains and measures what is not complete; prints a line for each run."""
        names = list(self.configs)
        trials = Trials(names, self.learning_rates, self.seeds, self._train, lambda own: own["valid"], _in_words)
        trained = trials.run(f"{self.task}, n={self.length}")
        costs = timed_once(self.out, self._origin(names), names, self._steps, self.rounds, self.device)
        variants = [
            Found(
                name=name,
                tried={f"{rate:g}": score for rate, score in runs.tried.items()},
                learning_rate=runs.learning_rate,
                accuracies={str(seed): own["test"] for seed, own in runs.results.items()},
                cost=costs[name],
            )
            for name, runs in trained.items()
        ]
        parts = ("train", "valid", "test")
        return Results(
            task=self.task,
            length=self.length,
            rows={part: len(getattr(self.data, part)) for part in parts},
            updates=self.updates,
            tokens=self.tokens,
            machine=Machine(self.device, "float32").describe(),
            majority=self.data.majority(),
            baseline=self._baseline(),
            variants=variants,
        )

    def _train(self, name: str, rate: float, seed: int) -> Result:
        def result() -> Result:
            trainer = Trainer(self.data, self.configs[name], rate, seed, self.updates, self.tokens, self.device)
            trainer.train()
            return {part: trainer.accuracy(getattr(self.data, part)) for part in ("valid", "test")}

        made_of = {**self._origin([name]), "learning_rate": rate, "seed": seed, "updates": self.updates}
        return once(self.out / name / f"lr{rate:g}", f"seed{seed}", made_of, result)

    def _steps(self) -> dict[str, Callable[[], None]]:
        sizes = (10**6, self.tokens, self.device)
        return {name: Trainer(self.data, own, 1e-4, 1, *sizes).step for name, own in self.configs.items()}

    def _origin(self, names: Sequence[str]) -> dict[str, Any]:
        """What runs of these variants depend on, training aside."""
        models = {name: asdict(self.configs[name]) for name in names}  # with what belongs to the recipe: dropout
        about = {"code": code_digest(CODE), "torch": torch.__version__, "device": self.device, "data": self._digest}
        return {**about, "models": models, "tokens": self.tokens}

    def _baseline(self) -> float:
        """The share of the test rows whose label TF-IDF and a linear SVM find, learned from the same rows."""
        train, test = self.data.train, self.data.test

        def result() -> Result:
            task = own_task(self.task, "single-label", [str(number) for number in range(self.data.classes)])
            labels = [str(label) for label in train.labels.tolist()]
            asked = {"test": [[text] for text in test.texts]}
            said = baseline.learn_and_predict(task, [[text] for text in train.texts], labels, asked)["test"]
            right = [int(own) == label for own, label in zip(said, test.labels.tolist(), strict=True)]
            return {"accuracy": sum(right) / len(right)}

        about = {"code": code_digest((Path(baseline.__file__),)), "data": self._digest}
        return once(self.out, "baseline", {**about, "texts": self.data.digest_of_texts()}, result)["accuracy"]


def _in_words(result: Result) -> str:
    return f"{100 * result['valid']:.1f} % of valid, {100 * result['test']:.1f} % of test"


def compare_long(comparison: LongComparison) -> str:
    """Runs a comparison, writes results.json and results.md into its folder, and draws lengths.png in the one above.

    Returns:
        The tables, and which lengths of the folder above the picture leaves out.
    """
    results = comparison.run()
    tables = as_table(results)
    write_whole(comparison.out / RESULTS_FILE, json.dumps(results, indent=1) + "\n")
    write_whole(comparison.out / "results.md", tables + "\n")
    files = comparison.out.parent.glob(f"n*/{RESULTS_FILE}")
    done = sorted((read_state(file, Results) for file in files), key=lambda own: own["length"])
    drawn = [own for own in done if _conditions(own) == _conditions(results)]
    draw_lengths(drawn, comparison.out.parent / "lengths.png")
    left_out = ", ".join(f"{own['length']:,}" for own in done if own not in drawn)
    said = f"lengths.png leaves out n = {left_out}: of other updates, test rows or another machine"
    return f"{tables}\n\n{said}" if left_out else tables


def _conditions(results: Results) -> tuple[int, int, dict[str, Any]]:
    """What two lengths have in common where a picture compares them."""
    return results["updates"], results["rows"]["test"], results["machine"]


def as_table(results: Results) -> str:
    """Accuracies with their deviation over seeds in Markdown, costs and what was published; then what was tried."""
    first = results["variants"][0]
    column = TASKS[results["task"]].column
    theirs = published(column) if column else {}
    about = f"{results['task']}, n = {results['length']}: % of {results['rows']['test']} test rows"
    head = [
        f"{about} after {results['updates']} updates",
        "lr",
        f"seeds {', '.join(first['accuracies'])}",
        "ms per update",
    ]
    lines = [_row([*head, f"LRA, {column}"] if column else head)]
    lines.append("|---" * (len(head) + bool(column)) + "|")
    for own in results["variants"]:
        accuracies = with_deviation([100 * x for x in own["accuracies"].values()], ".1f")
        low, middle, high = (f"{1000 * own['cost'][what]:.0f}" for what in ("low", "seconds", "high"))
        cells = [own["name"], f"{own['learning_rate']:g}", accuracies, f"{middle} ({low} to {high})"]
        model = OF_VARIANT.get(own["name"], "")
        lines.append(_row([*cells, f"{theirs[model]:.2f}" if model in theirs else ""] if column else cells))
    for name, share in {BASELINE: results["baseline"], "most frequent label": results["majority"]}.items():
        lines.append(_row([name, "", f"{100 * share:.1f}", "", *([""] if column else [])]))
    rates = list(first["tried"])
    lines += ["", _row(["% of valid, first seed", *(f"lr {rate}" for rate in rates)]), "|---" * (1 + len(rates)) + "|"]
    for own in results["variants"]:
        lines.append(_row([own["name"], *(f"{100 * own['tried'][rate]:.1f}" for rate in rates)]))
    if theirs:
        listed = ", ".join(f"{model} {value:.2f}" for model, value in theirs.items())
        lines += ["", f"Published (Tay et al. 2020, arXiv 2011.04006, table 1, {column}): {listed}."]
        lines.append("Their models are larger and train longer; only the tasks lra-… have rows of the same archive.")
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
