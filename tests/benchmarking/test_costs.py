"""What trainings cost: the operations are those of the formula, and docs/costs.md has what the command prints."""

import sys

import compute_costs as module
import pytest
from compute_costs import (
    Cost,
    as_table,
    classification,
    configuration,
    costs,
    distillation,
    forward_operations,
    masked_lm,
    without_weights,
)

from tests.helpers import ROOT


@pytest.mark.parametrize(("ask", "last"), [(masked_lm, 0.25), (distillation, 1), (classification, 1 / 64)])
def test_operations_of_full_attention_are_those_of_the_formula(ask, last, monkeypatch):
    """Per layer and token 8 d^2 for four maps, 4 d f for two, 4 n d for scores and sums; then the head.

    The last layer's 4 d f are of masked tokens alone, of all with a teacher, of one in fine-tuning.
    """
    monkeypatch.setattr(module, "VOCABULARY", 100)
    n, d, f, layers, vocabulary = 64, 32, 48, 2, 101  # with <mask>
    sizes = {"encoder_layers": layers, "encoder_embed_dim": d, "encoder_ffn_embed_dim": f, "encoder_attention_heads": 4}
    model = {**configuration("base", 512)["model"], **sizes, "attention": "softmax", "max_positions": n}
    encoder = layers * n * (8 * d * d + 4 * n * d) + (layers - 1 + last) * n * 4 * d * f
    found = forward_operations(without_weights(model), 0.25, n, ask) - encoder
    if ask is classification:
        assert found == 2 * d * (d + 2)
    else:
        assert found in [2 * 0.25 * n * d * (d + size) for size in (vocabulary - 1, vocabulary)]


def test_a_linformer_costs_the_same_per_token_at_every_length(monkeypatch):
    monkeypatch.setattr(module, "VOCABULARY", 100)
    model = {
        **configuration("base", 512)["model"],
        "encoder_layers": 1,
        "encoder_embed_dim": 48,
        "projected_length": 16,
    }
    short, long = (
        forward_operations(without_weights({**model, "max_positions": n}), 0.15, n, masked_lm) / n for n in (512, 2048)
    )
    assert 0.9 < long / short < 1.1


def test_hours_are_operations_over_two_fifths_of_the_peak():
    cost = Cost("base", 512, "Linformer", 1e9, 10**12)
    assert round(cost.hours("H100", 8), 1) == round(1e21 / (0.4 * 989e12 * 8) / 3600, 1) == 87.8


def test_large_at_another_length_has_its_own_layers_and_the_batch_and_k_of_base():
    options = configuration("large", 512)
    assert options["model"]["_name"] == "linformer_roberta_large"
    assert (options["model"]["max_positions"], options["model"]["projected_length"]) == (512, 128)
    assert options["dataset"]["batch_size"] == configuration("base", 512)["dataset"]["batch_size"]


def test_help_says_a_default_once(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compute_costs.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        module.parse_arguments()
    printed = " ".join(capsys.readouterr().out.split())
    assert "of the model (default: base large)" in printed and "n (default: all)" in printed


def test_the_page_has_what_the_command_prints():
    first = next(costs(["base"], [512]))
    assert as_table([first]).splitlines()[2] in (ROOT / "docs/costs.md").read_text().splitlines()
