"""The attention mechanisms in one small model: perplexity at equal updates, and cost (scripts/compare_attention.py)."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from tqdm import tqdm

from fairseq_linformer.config import ARCHITECTURES
from fairseq_linformer.data.tokenizer import DICTIONARY_FILE, load_dictionary
from fairseq_linformer.errors import UserError
from fairseq_linformer.system.files import write_whole
from fairseq_linformer.training.configuration import CONFIGS
from fairseq_linformer.training.jobs import job_device

from .baselines import Sizes
from .measuring import Case, Machine, in_turns, spread
from .plots import Cost, Curve, draw_mechanisms
from .runner import code_digest
from .variants import EMBED_DIM, LAYERS, Comparison, Tuned, as_table

# Beside the mechanisms, every one at its defaults: attention that can choose nothing, as all positions are one mean.
CONTROL, ONE_MEAN = "one-mean", ["model.projection=mean-pool", "model.projected_length=1"]
LENGTHS = {512: 128, 4096: 256}  # n, and Linformer's k as our configurations have it
TOKENS = 2048  # per batch, which has at least one row
PHASE = "forward + backward"
COST_FILE = "cost.json"


def compare_mechanisms(
    data: Path,
    out: Path,
    attentions: Sequence[str],
    learning_rates: Sequence[float],
    seeds: Sequence[int],
    updates: int,
    jobs: int,
    rounds: int,
) -> str:
    """Trains and measures the mechanisms and the control, unless that is done, and returns the tables.

    `out` gets results.json, results.md, perplexity.png and cost.png.

    Args:
        data: a prepared corpus.
        attentions: their names; the others are compared with the first.
        learning_rates, seeds, updates, jobs: as in ``Comparison``.
        rounds: times that the cost of each mechanism is measured.

    Raises:
        UserError: a path is not allowed, or a folder or file in `out` is of something else.
        OSError: the data does not exist, or a training failed.
    """
    own = {attention: [f"model.attention={attention}"] for attention in attentions}
    validations = _validating(updates)
    variants = {name: [*overrides, *validations] for name, overrides in {**own, CONTROL: ONE_MEAN}.items()}
    comparison = Comparison(data, out, variants, learning_rates, seeds, updates, jobs)
    out.mkdir(parents=True, exist_ok=True)
    read_costs(out / COST_FILE)  # a damaged file is refused before the trainings
    tuned = sorted(comparison.run(), key=lambda variant: statistics.mean(variant.perplexities.values()))
    curves = {variant.name: _curve(comparison, variant) for variant in tuned}
    machine = Machine(job_device(), "float32")
    cost = CostMeter(tiny_sizes(comparison.corpus), machine, rounds, LENGTHS).measure_once(attentions, out / COST_FILE)
    reference = next(variant for variant in tuned if variant.name == attentions[0])
    tables = f"{as_table(tuned, reference, updates)}\n\n{cost_table(cost)}"
    about = machine.describe()
    content = {"updates": updates, "machine": about, "perplexity": [asdict(variant) for variant in tuned]}
    write_whole(out / "results.json", json.dumps({**content, "curves": curves, "cost": cost}, indent=1))
    write_whole(out / "results.md", f"{tables}\n")
    draw_mechanisms(curves, cost, out)
    return f"{tables}\n\n{', '.join(f'{name} {value}' for name, value in about.items())}"


def _validating(updates: int) -> list[str]:
    """Hydra's overrides that validate a run ten times, for its curve."""
    interval = max(1, updates // 10)
    intervals = [f"dataset.validate_interval_updates={interval}", f"checkpoint.save_interval_updates={interval}"]
    return ["dataset.disable_validation=false", "dataset.max_valid_steps=50", *intervals]


def _curve(comparison: Comparison, variant: Tuned) -> Curve:
    """Perplexity against updates of the run with the first seed."""
    rows = comparison.training(variant.name, variant.learning_rate, comparison.seeds[0])()
    return sorted({row["valid_num_updates"]: row["valid_ppl"] for row in rows if "valid_ppl" in row}.items())


def tiny_sizes(data: Path) -> Sizes:
    """The sizes of the model that is trained, with the vocabulary of `data`, n and k aside."""
    tiny: Any = OmegaConf.load(CONFIGS / "model" / "tiny_512.yaml")
    architecture = ARCHITECTURES[tiny._name]
    return Sizes(
        layers=LAYERS,
        embed_dim=EMBED_DIM,
        heads=architecture["encoder_attention_heads"],
        vocabulary=len(load_dictionary(data / DICTIONARY_FILE)) + 1,  # the task adds <mask>
        dropout=OmegaConf.load(CONFIGS / "pretrain/recipe/tiny.yaml").model.dropout,
        sharing=tiny.sharing,
        options=tuple((name, tiny[name]) for name in ("local_conv", "encoder_normalize_before")),
    )


@dataclass(frozen=True)
class CostMeter:
    """Measures forward + backward of one model with any mechanism, on a batch of ``TOKENS``, at least one row.

    Args:
        sizes: of the model, n and k aside.
        rounds: times that each mechanism runs, in turns.
        lengths: k by n.
    """

    sizes: Sizes
    machine: Machine
    rounds: int
    lengths: Mapping[int, int]

    def measure_once(self, attentions: Sequence[str], file: Path) -> dict[str, Cost]:
        """The costs by mechanism, from `file` if they were measured before.

        The file keeps all costs ever measured, each beside the code, machine and options that it belongs to.

        Raises:
            UserError: the file is of another kind.
        """
        about = {"code": code_digest(), **self.machine.describe(), "rounds": self.rounds, "sizes": repr(self.sizes)}
        about |= {"attentions": sorted(attentions), "lengths": repr(self.lengths), "tokens": TOKENS, "phase": PHASE}
        measured = read_costs(file)
        known = [entry["cost"] for entry in measured if entry["about"] == about]
        if known:
            return known[0]
        cost = self.measure(attentions)
        write_whole(file, json.dumps([*measured, {"about": about, "cost": cost}], indent=1))
        return cost

    def measure(self, attentions: Sequence[str]) -> dict[str, Cost]:
        """By mechanism: parameters, and by length the median seconds and the peak MiB."""
        cost: dict[str, Cost] = {attention: {"seconds": {}, "MiB": {}} for attention in attentions}
        for n, k in tqdm(self.lengths.items(), desc="cost", unit="length", disable=None):
            sizes, batches = replace(self.sizes, length=n, projected_length=k), ((n,) * (batch_tokens(n) // n),)
            cases = {attention: Case(attention, sizes, PHASE, batches) for attention in attentions}
            calls = {attention: self.machine.prepare(case) for attention, case in cases.items()}
            in_turns(calls, rounds=1)  # to warm up
            for attention, seconds in in_turns(calls, self.rounds).items():
                cost[attention]["seconds"][str(n)] = spread(seconds)["seconds"]
                cost[attention]["MiB"][str(n)] = self.machine.peak_memory(calls[attention])
            if n == min(self.lengths):
                for attention, case in cases.items():
                    cost[attention]["parameters"] = sum(parameter.numel() for parameter in case.build().parameters())
        return cost


def read_costs(file: Path) -> list[dict[str, Any]]:
    """All costs that a file keeps, each beside what it belongs to; none where there is no file.

    Raises:
        UserError: the file is of another kind.
    """
    try:
        measured = json.loads(file.read_text()) if file.is_file() else []
        return [{"about": entry["about"], "cost": entry["cost"]} for entry in measured]
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{file} holds no costs of attentions: move it away") from None


def batch_tokens(n: int) -> int:
    """Tokens of the batch that is measured at a length."""
    return max(1, TOKENS // n) * n


def cost_table(cost: Mapping[str, Cost]) -> str:
    """The cost of the mechanisms in Markdown."""
    lengths = [int(n) for n in next(iter(cost.values()))["seconds"]]
    columns = [f"{name}, n={n}" for n in lengths for name in ("tokens/s", "MiB")]
    lines = [f"| attention | parameters | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for attention, own in cost.items():
        cells = [f"`{attention}`", f"{own['parameters'] / 1e6:.2f} M"]
        for n in lengths:
            cells += [f"{batch_tokens(n) / own['seconds'][str(n)]:,.0f}", f"{own['MiB'][str(n)]:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
