"""The criterion ``masked_lm`` of our task beside fairseq's own: the same loss and gradients, without whole logits."""

import pytest
import torch
from fairseq.criterions import masked_lm
from fairseq.logging import metrics
from fairseq.tasks import setup_task
from omegaconf import OmegaConf
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_linformer.model import lm_head as head
from fairseq_linformer.training.distillation import MaskedLmDistillation
from fairseq_linformer.training.masked_lm import DynamicMaskedLMConfig
from fairseq_linformer.training.masked_lm_loss import MaskedLmLoss
from tests.helpers.models import RECOMPUTED, VOCABULARY, small, tokens
from tests.helpers.teachers import task_of

PAD = 1
PART = 3  # tokens of a part here


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    monkeypatch.setattr(head, "LOGITS_ON_CPU", PART * VOCABULARY + 1)


def sample(masked=0.2, described=True):
    """Three rows, the second padded, of which this share is masked, and what our batches say of themselves."""
    given = tokens(3, 30)
    given[1, 20:] = PAD
    chosen = (torch.rand(given.shape, generator=torch.Generator().manual_seed(2)) < masked) & given.ne(PAD)
    inputs = {"src_tokens": given.masked_fill(chosen, 4), "src_lengths": given.ne(PAD).sum(1)}
    if described:
        inputs |= {"padded": True, "masked_positions": chosen.flatten().nonzero()[:, 0]}
    return {"net_input": inputs, "target": given.where(chosen, PAD), "ntokens": 80, "nsentences": 3}


def both(folder):
    """The criterion and fairseq's."""
    return [
        kind(masked_lm.MaskedLmConfig(tpu=False), task_of(folder)) for kind in (MaskedLmLoss, masked_lm.MaskedLmLoss)
    ]


def test_a_run_that_began_with_fairseqs_criterion_goes_on_with_ours(tmp_path):
    """fairseq compares the names of the classes before it takes an optimizer's state from a checkpoint."""
    ours, fairseqs = both(tmp_path)
    assert type(ours) is not type(fairseqs) and type(ours).__name__ == type(fairseqs).__name__


def built(**options):
    """A model whose logits are not all about 0."""
    model = small(dropout=0.0, attention_dropout=0.0, **options).train()
    with torch.no_grad():
        model.encoder.lm_head.weight.mul_(10)
        model.encoder.lm_head.bias.uniform_(-1, 1)
    return model


def step(criterion, model, batch, scale=1.0):
    """Loss, sample size, log, and gradients of `scale` times the loss."""
    model.zero_grad()
    loss, size, log = criterion(model, batch)
    (scale * loss).backward()
    gradients = {name: value.grad for name, value in model.named_parameters()}
    return loss.detach(), size, log, {name: None if of is None else of.clone() for name, of in gradients.items()}


def furthest(found, expected):
    """The largest difference of a gradient, as a fraction of its largest value; not of what is rounding alone."""
    of_all = max(float(value.abs().max()) for value in expected.values())
    return max(
        float((found[name] - value).abs().max()) / max(float(value.abs().max()), 1e-3 * of_all)
        for name, value in expected.items()
    )


@pytest.mark.parametrize("options", [{}, {"untie_weights_roberta": True}, RECOMPUTED], ids=str)
@pytest.mark.parametrize("described", [True, False])
def test_loss_and_gradients_are_those_of_fairseq(tmp_path, options, described):
    model, scale = built(**options), 0.37
    found, expected = (step(of, model, sample(described=described), scale) for of in both(tmp_path))
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-6) and found[1] == expected[1] > 3 * PART
    assert found[2].keys() == expected[2].keys() and found[2]["loss"] == found[0]
    assert furthest(found[3], expected[3]) < 2e-6


def test_frozen_parameters_get_no_gradient(tmp_path):
    """Nor do they change those of the others."""
    model = built(untie_weights_roberta=True)
    for frozen in (model.encoder.lm_head.weight, model.encoder.lm_head.bias):
        frozen.requires_grad_(False)
    found, expected = (step(of, model, sample())[3] for of in both(tmp_path))
    assert [name for name, value in found.items() if value is None] == [
        name for name, value in expected.items() if value is None
    ]
    trained = {name: value for name, value in expected.items() if value is not None}
    assert trained and furthest(found, trained) < 2e-6


def test_validation_computes_no_gradients(tmp_path, monkeypatch):
    model, (ours, theirs) = built().eval(), both(tmp_path)
    with torch.no_grad():
        expected = theirs(model, sample())[0]
        monkeypatch.setattr(torch, "mm", None)
        loss, _, _ = ours(model, sample())
    assert float(loss) == pytest.approx(float(expected), rel=1e-6) and not loss.requires_grad


def test_where_nothing_is_masked_the_loss_and_all_gradients_are_zero(tmp_path):
    model = built()
    for described in (True, False):
        batch = sample(masked=0.0, described=described)
        loss, size, log, gradients = step(both(tmp_path)[0], model, batch)
        assert loss == 0 and size == 0
        for kind in (MaskedLmLoss, MaskedLmDistillation):
            with metrics.aggregate(new_root=True) as logged:
                kind.reduce_metrics([{**log, "divergence": loss}])
            assert {float(value) for name, value in logged.get_smoothed_values().items() if name != "ppl"} == {0.0}
        assert all(value is not None and not value.any() for value in gradients.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_16_bits_it_is_no_less_exact(tmp_path, dtype):
    """The loss is in 32 bits; gradients are no further from those in 64 bits than fairseq's."""
    model, scale = built(), 4.0
    expected = step(both(tmp_path)[1], model.double(), sample(), scale)[3]
    ours, theirs = (step(of, model.to(dtype), sample(), scale) for of in both(tmp_path))
    assert ours[0].dtype == torch.float32
    assert float(ours[0]) == pytest.approx(float(theirs[0]), rel=1e-2 if dtype == torch.bfloat16 else 1e-3)
    errors = [furthest({name: value.double() for name, value in of[3].items()}, expected) for of in (ours, theirs)]
    assert 0 < errors[0] < 1.5 * errors[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pieces_that_no_token_is_change_neither_loss_nor_gradients(dtype):
    """As on a GPU, where the LM head's products are in multiples of eight."""
    given = [
        torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype) for shape in ((9, 4), (13, 4), (13,))
    ]
    x, weight, bias = (one.requires_grad_() for one in given)
    targets = torch.arange(9)
    padded = head.pad_vocab(weight, bias)
    assert len(padded[0]) == len(padded[1]) == 16
    losses = [head.linear_cross_entropy(x, *own, targets) for own in ((weight, bias), padded)]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, (x, weight, bias)) for loss in losses))


def test_under_autocast_it_is_fairseq_s(tmp_path):
    model = built()
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = (step(of, model, sample()) for of in both(tmp_path))
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-2)
    assert furthest(found[3], expected[3]) < 0.05


class _Largest(TorchDispatchMode):
    """Watches how many values the largest tensor has that a computation makes."""

    values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.values = max(self.values, tensor.numel())
        return made


def test_logits_are_never_whole(tmp_path):
    model, batch = built(), sample(masked=0.9)
    sizes = []
    for criterion in both(tmp_path):
        with _Largest() as largest:
            step(criterion, model, batch)
        sizes.append(largest.values)
    whole = int(batch["target"].ne(PAD).sum()) * VOCABULARY
    assert sizes[1] == whole and sizes[0] < whole / 2


def test_the_task_replaces_fairseq_s_criterion_alone(corpus, tmp_path):
    config = DynamicMaskedLMConfig(data=str(corpus), tokens_per_sample=32)
    config._name = "dynamic_masked_lm"
    task = setup_task(OmegaConf.structured(config))
    kinds = {"masked_lm": MaskedLmLoss, "masked_lm_distillation": MaskedLmDistillation}
    for name, kind in kinds.items():
        options = {"_name": name, "tpu": False} | ({"teacher": "none.pt"} if "distillation" in name else {})
        assert type(task.build_criterion(OmegaConf.create(options))) is kind


def test_another_model_gets_fairseq_s_loss(tmp_path):
    class Other(torch.nn.Module):
        def __init__(self, of):
            super().__init__()
            self.get_targets, self._of = of.get_targets, of

        def forward(self, src_tokens, src_lengths, masked_tokens):
            return self._of(src_tokens, masked_tokens=masked_tokens)

    ours, theirs = both(tmp_path)
    model = built()
    assert ours(Other(model), sample(described=False))[0] == theirs(model, sample())[0]


def test_in_bfloat16_many_parts_add_up_to_the_bias_s_gradient():
    """Added up in bfloat16, 1,000 parts are off by 8 % here."""
    torch.manual_seed(0)
    x, weight = torch.randn(3000, 8), torch.randn(VOCABULARY, 8)
    targets = torch.randint(VOCABULARY, (3000,))
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        own = torch.zeros(VOCABULARY, dtype=dtype, requires_grad=True)
        head.linear_cross_entropy(x.to(dtype), weight.to(dtype), own, targets).backward()
        gradients.append(own.grad.float())
    assert (gradients[1] - gradients[0]).norm() < 0.01 * gradients[0].norm()
