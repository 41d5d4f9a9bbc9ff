"""What the quasiseparable mixer alone promises; test_contract.py has the rest."""

import torch

from tests.helpers.layers import D, build
from tests.helpers.models import small


def test_it_is_two_shifted_state_spaces_and_a_diagonal():
    """S_i = e^(-A D_i) S_(i-1) + D_i b_i v_i^T, which c reads one position later, from each side: Hydra's form."""
    layer = build("quasiseparable", quasiseparable_chunk=4, heads=1)[0].double()
    c, b, v = torch.randn(3, 11, D, dtype=torch.float64)
    steps = torch.rand(11, 2, dtype=torch.float64)

    def shifted_state_space(c, b, v, steps):
        state, out = torch.zeros(D, D, dtype=torch.float64), []
        for i in range(len(c)):
            out.append(c[i] @ state)
            state = (-layer.log_rate.exp() * steps[i]).exp() * state + steps[i] * torch.outer(b[i], v[i])
        return torch.stack(out)

    left = shifted_state_space(c, b, v, steps[:, 0])
    right = shifted_state_space(*(part.flip(0) for part in (c, b, v, steps[:, 1]))).flip(0)
    mixed = layer._mix(*(part.unsqueeze(0) for part in (c, b, v, steps)), None)
    torch.testing.assert_close(mixed[0, 0], left + right)


def test_steps_begin_from_a_thousandth_to_a_tenth_and_the_diagonal_at_1():
    """In a model, too, where RoBERTa draws all linear maps anew once they are built."""
    for layer in small(attention="quasiseparable", attention_dropout=0.0).encoder.sentence_encoder.layers:
        steps = torch.nn.functional.softplus(layer.self_attn.step_proj.bias)
        torch.testing.assert_close(steps, torch.tensor([0.001, 0.01, 0.1] * 2), rtol=1e-3, atol=0)
        assert layer.self_attn.diagonal_proj.bias.eq(1).all()
