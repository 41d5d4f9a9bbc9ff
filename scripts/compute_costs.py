#!/usr/bin/env python3
"""Prints what pretraining, converting and fine-tuning cost, computed from the operations of the models: docs/costs.md.

    python scripts/compute_costs.py

Nothing is measured: hours are operations over 40 % of a GPU's peak in bfloat16, without dropout, recomputation,
communication and reading of data.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from benchmarking.tables import table
from benchmarking.variants import with_preset
from fairseq.data import Dictionary
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

from fairseq_linformer.cli.program import program
from fairseq_linformer.finetune.tuning import read_recipe
from fairseq_linformer.model.roberta import LinformerRobertaModel
from fairseq_linformer.training.commands import recipe_name
from fairseq_linformer.training.configuration import compose_configuration
from fairseq_linformer.training.untrained import untrained_model
from linformer_cli.arguments import make_parser

LENGTHS = (512, 1024, 2048, 4096)
SIZES = {"base": "base_{}", "large": "large_4096"}  # the configurations in configs/pretrain
VARIANTS: dict[str, list[str]] = {
    "Linformer": [],
    "near_and_far": with_preset(["preset=near_and_far"]),
    "full attention": ["model.attention=softmax"],
}
PEAKS = {"A100": 312e12, "H100": 989e12}  # FLOP/s of dense products in bfloat16, by NVIDIA's data sheets (SXM)
UTILISATION = 0.4
TRAINING = 3  # forward passes that a training step is worth: backward has two products for each of forward
VOCABULARY = 50_265  # RoBERTa's
GPUS = 8  # that the batch files count
HEAD = "classes"
Ask = Callable[[LinformerRobertaModel, Tensor, Tensor], None]  # a model, tokens (1, n), masked positions (N,)

# Tokens of a row, pads included: above the mean length of the task's texts, and for IMDB what the model reads at most.
FINE_TUNING = {"SST-2": 64, "QNLI": 128, "MNLI": 128, "IMDB": 512}


@dataclass(frozen=True)
class Cost:
    """A training: what it is, n, its attention, the operations per token, and the number of tokens."""

    what: str
    n: int
    variant: str
    per_token: float
    tokens: int

    @property
    def operations(self) -> float:
        return self.per_token * self.tokens

    def hours(self, device: str, number: int) -> float:
        """On so many devices at UTILISATION of their peak."""
        return self.operations / (PEAKS[device] * UTILISATION * number) / 3600


@cache
def configuration(size: str, n: int, *overrides: str) -> dict:
    """A pretraining of configs/pretrain; of large at another n than its own, with n and k of base."""
    name = SIZES[size].format(n)
    if not name.endswith(f"_{n}"):
        model = configuration("base", n)["model"]
        lengths = [f"model.{option}={model[option]}" for option in ("max_positions", "projected_length")]
        overrides = (f"batch=n{n}", *lengths, *overrides)
    return compose_configuration(f"pretrain/{name}", ["task.data=DATA", *overrides])


def costs(sizes: Sequence[str], lengths: Sequence[int]) -> Iterator[Cost]:
    """Of pretraining with each variant; then of base, converting to `near_and_far` at each length and fine-tuning."""
    for size in sizes:
        for n in lengths:
            for name, overrides in VARIANTS.items():
                own = TRAINING * per_token(size, n, name, masked_lm)
                yield Cost(size, n, name, own, _tokens(configuration(size, n, *overrides), n))
    if "base" not in sizes:
        return
    going_on = compose_configuration("pretrain/continue", ["task.data=DATA"])
    for n in lengths:
        own = TRAINING * per_token("base", n, "near_and_far", masked_lm)
        yield Cost("converting", n, "near_and_far", own, _tokens(going_on, n))
        own = TRAINING * per_token("base", n, "near_and_far", distillation)
        teacher = per_token("base", n, "full attention", distillation)
        yield Cost("converting, with a teacher", n, "near_and_far", own + teacher, _tokens(going_on, n))
    for task, length in FINE_TUNING.items():
        recipe = read_recipe(recipe_name(task))
        rows = recipe["optimization"]["max_update"] * recipe["dataset"]["batch_size"]
        n = min(lengths)
        own = TRAINING * per_token("base", n, "Linformer", classification, length)
        yield Cost(f"fine-tuning, {task}", n, "Linformer", own, rows * length)


def _tokens(options: dict, n: int) -> int:
    """That a training of configs/pretrain sees, with rows of n tokens."""
    rows = GPUS * options["dataset"]["batch_size"] * options["optimization"]["update_freq"][0]
    return options["optimization"]["max_update"] * rows * n


def masked_lm(built: LinformerRobertaModel, tokens: Tensor, masked: Tensor) -> None:
    """As the criterion of pretraining asks: the last feed-forward network sees masked positions alone."""
    built(tokens, masked_tokens=tokens, masked_positions=masked, masked_targets=masked, padded=False)


def distillation(built: LinformerRobertaModel, tokens: Tensor, masked: Tensor) -> None:
    """As a criterion with a teacher asks both models: for the outputs of all layers at all positions."""
    features = built(tokens, features_only=True, padded=False)[0]
    built.encoder.lm_head(features[0, masked])


def classification(built: LinformerRobertaModel, tokens: Tensor, masked: Tensor) -> None:
    """As fine-tuning asks: the last feed-forward network sees ``<s>`` alone, and there is no LM head."""
    built(tokens, features_only=True, classification_head_name=HEAD, padded=False)


@cache
def per_token(size: str, n: int, variant: str, ask: Ask, length: int | None = None) -> float:
    """Operations of a forward pass of a model that reads n tokens, over a row of that length (None: n)."""
    built, length = _model(size, n, variant), length or n
    return forward_operations(built, configuration(size, n)["task"]["mask_prob"], length, ask) / length


@cache
def _model(size: str, n: int, variant: str) -> LinformerRobertaModel:
    return without_weights(configuration(size, n, *VARIANTS[variant])["model"])


def without_weights(model: dict) -> LinformerRobertaModel:
    """A model on PyTorch's meta device, which computes nothing; without dropout, as masks are drawn on others."""
    dictionary = Dictionary()
    for number in range(VOCABULARY - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    still = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    built = untrained_model({**model, **still}, dictionary).eval()
    built.register_classification_head(HEAD, num_classes=2)
    return built.to("meta")


@torch.no_grad()  # else the loss has its gradients, and their operations, in the forward pass
def forward_operations(built: LinformerRobertaModel, mask_prob: float, n: int, ask: Ask) -> int:
    """Floating-point operations of a forward pass over a row of n tokens.

    A multiplication with an addition counts twice. Matrix products alone are counted.
    """
    tokens = torch.zeros(1, n, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        ask(built, tokens, torch.arange(round(mask_prob * n), device="meta"))
    return int(counter.get_total_flops())


def as_table(found: Sequence[Cost]) -> str:
    """In Markdown: GFLOP per token, EFLOP in all, and hours on one and eight of each device."""
    columns: dict[str, Callable[[Cost], str]] = {
        "": lambda cost: cost.what,
        "n": lambda cost: f"{cost.n:,}",
        "attention": lambda cost: cost.variant,
        "GFLOP per token": lambda cost: f"{cost.per_token / 1e9:.2f}",
        "10^9 tokens": lambda cost: _short(cost.tokens / 1e9),
        "EFLOP": lambda cost: _short(cost.operations / 1e18),
    }
    for device in PEAKS:
        for number in (1, GPUS):
            hours = partial(Cost.hours, device=device, number=number)
            columns[f"{number} {device}, hours"] = lambda cost, hours=hours: _short(hours(cost))
    return table(columns, found)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--sizes", nargs="+", choices=SIZES, default=[*SIZES], help="of the model")
    add("--lengths", metavar="N", nargs="+", type=int, choices=LENGTHS, default=LENGTHS, help="n (default: all)")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        print(as_table([*tqdm(costs(arguments.sizes, arguments.lengths), unit="training")]))
