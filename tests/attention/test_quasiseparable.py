"""The initial state of the quasiseparable mixer; test_contract.py has the rest."""

import torch

from tests.helpers.models import small


def test_initial_steps_are_a_thousandth_to_a_tenth_and_the_diagonal_is_1():
    """In a model, whose linear maps RoBERTa draws again after it has built them."""
    for layer in small(attention="quasiseparable", attention_dropout=0.0).encoder.sentence_encoder.layers:
        steps = torch.nn.functional.softplus(layer.self_attn.step_proj.bias)
        torch.testing.assert_close(steps, torch.tensor([0.001, 0.01, 0.1] * 2), rtol=1e-3, atol=0)
        assert layer.self_attn.diagonal_proj.bias.eq(1).all()
