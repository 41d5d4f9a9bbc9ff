"""Criterion ``masked_lm`` of our task, compared with fairseq's: the same loss and gradients without whole logits."""

import pytest
import torch
from fairseq.criterions import masked_lm
from fairseq.logging import metrics
from omegaconf import OmegaConf

from fairseq_linformer.model import lm_head as head
from fairseq_linformer.training.distillation import MaskedLmDistillation
from fairseq_linformer.training.masked_lm import DynamicMaskedLMTask
from fairseq_linformer.training.masked_lm_loss import MaskedLmLoss
from fairseq_linformer.training.masked_lm_options import DynamicMaskedLMConfig
from tests.helpers.layers import LargestTensor
from tests.helpers.models import RECOMPUTED, VOCABULARY, small, tokens
from tests.helpers.teachers import task_of

PAD = 1
PART = 3  # tokens of a part in these tests


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    monkeypatch.setattr(head, "LOGITS_ON_CPU", PART * VOCABULARY + 1)


def sample(masked=0.2, described=True):
    """Three rows, the second padded, with this share of masked tokens, and the description of our batches."""
    ids = tokens(3, 30)
    ids[1, 20:] = PAD
    selected = (torch.rand(ids.shape, generator=torch.Generator().manual_seed(2)) < masked) & ids.ne(PAD)
    inputs = {"src_tokens": ids.masked_fill(selected, 4), "src_lengths": ids.ne(PAD).sum(1)}
    if described:
        inputs |= {"padded": True, "masked_positions": selected.flatten().nonzero()[:, 0]}
    return {"net_input": inputs, "target": ids.where(selected, PAD), "ntokens": 80, "nsentences": 3}


def both(folder):
    """The criterion and fairseq's."""
    return [
        kind(masked_lm.MaskedLmConfig(tpu=False), task_of(folder)) for kind in (MaskedLmLoss, masked_lm.MaskedLmLoss)
    ]


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


def largest_error(gradients, expected):
    """The largest relative difference of a gradient; gradients of rounding errors are compared with the largest one."""
    largest = max(float(value.abs().max()) for value in expected.values())
    return max(
        float((gradients[name] - value).abs().max()) / max(float(value.abs().max()), 1e-3 * largest)
        for name, value in expected.items()
    )


@pytest.mark.parametrize("options", [{}, {"untie_weights_roberta": True}, RECOMPUTED], ids=str)
@pytest.mark.parametrize("described", [True, False])
def test_loss_and_gradients_are_those_of_fairseq(tmp_path, options, described):
    model, scale = built(**options), 0.37
    ours, fairseqs = both(tmp_path)
    assert type(ours).__name__ == type(fairseqs).__name__  # fairseq compares names before it resumes
    result, expected = (step(of, model, sample(described=described), scale) for of in (ours, fairseqs))
    assert float(result[0]) == pytest.approx(float(expected[0]), rel=1e-6) and result[1] == expected[1] > 3 * PART
    assert result[2].keys() == expected[2].keys() and result[2]["loss"] == result[0]
    assert largest_error(result[3], expected[3]) < 2e-6


def test_frozen_parameters_get_no_gradient_and_change_no_other(tmp_path):
    model = built(untie_weights_roberta=True)
    for frozen in (model.encoder.lm_head.weight, model.encoder.lm_head.bias):
        frozen.requires_grad_(False)
    gradients, expected = (step(of, model, sample())[3] for of in both(tmp_path))
    trained = {name: value for name, value in expected.items() if value is not None}
    assert trained.keys() == {name for name, value in gradients.items() if value is not None} != expected.keys()
    assert largest_error(gradients, trained) < 2e-6


def test_validation_computes_no_gradients(tmp_path, monkeypatch):
    model, (ours, theirs) = built().eval(), both(tmp_path)
    with torch.no_grad():
        expected = theirs(model, sample())[0]
        monkeypatch.setattr(torch, "mm", None)
        loss, _, _ = ours(model, sample())
    assert float(loss) == pytest.approx(float(expected), rel=1e-6) and not loss.requires_grad


def test_without_masks_the_loss_and_all_gradients_are_zero(tmp_path):
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
def test_in_16_bits_it_is_as_exact_as_fairseqs(tmp_path, dtype):
    """The loss is in 32 bits; gradients are compared with those in 64 bits."""
    model, scale = built(), 4.0
    expected = step(both(tmp_path)[1], model.double(), sample(), scale)[3]
    ours, theirs = (step(of, model.to(dtype), sample(), scale) for of in both(tmp_path))
    assert ours[0].dtype == torch.float32
    assert float(ours[0]) == pytest.approx(float(theirs[0]), rel=1e-2 if dtype == torch.bfloat16 else 1e-3)
    errors = [largest_error({name: value.double() for name, value in of[3].items()}, expected) for of in (ours, theirs)]
    assert 0 < errors[0] < 1.5 * errors[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_padded_vocabulary_changes_neither_loss_nor_gradients(dtype):
    """As on a GPU, where the LM head's products are in multiples of eight."""
    shapes, generator = ((9, 4), (13, 4), (13,)), torch.Generator().manual_seed(1)
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes)
    targets = torch.arange(9)
    padded = head.pad_vocab(weight, bias)
    assert len(padded[0]) == len(padded[1]) == 16
    losses = [head.linear_cross_entropy(x, *parameters, targets) for parameters in ((weight, bias), padded)]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, (x, weight, bias)) for loss in losses))


def test_under_autocast_it_is_fairseqs(tmp_path):
    model = built()
    with torch.autocast("cpu", torch.bfloat16):
        result, expected = (step(of, model, sample()) for of in both(tmp_path))
    assert float(result[0]) == pytest.approx(float(expected[0]), rel=1e-2)
    assert largest_error(result[3], expected[3]) < 0.05


def test_logits_are_never_whole(tmp_path):
    model, batch = built(), sample(masked=0.9)
    sizes = []
    for criterion in both(tmp_path):
        with LargestTensor() as largest:
            step(criterion, model, batch)
        sizes.append(largest.elements)
    whole = int(batch["target"].ne(PAD).sum()) * VOCABULARY
    assert sizes[1] == whole and sizes[0] < whole / 2


def test_the_task_replaces_only_fairseqs_criterion(tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n")
    task = DynamicMaskedLMTask.setup_task(DynamicMaskedLMConfig(data=str(tmp_path), tokens_per_sample=32))
    for kind, options in ((MaskedLmLoss, {}), (MaskedLmDistillation, {"teacher": "none.pt"})):
        name = "masked_lm_distillation" if options else "masked_lm"
        assert type(task.build_criterion(OmegaConf.create({"_name": name, "tpu": False, **options}))) is kind


def test_other_models_have_fairseqs_loss(tmp_path):
    model, batch, (ours, fairseqs) = built(), sample(described=False), both(tmp_path)

    def other(src_tokens, src_lengths, masked_tokens):
        return model(src_tokens, masked_tokens=masked_tokens)

    other.get_targets = model.get_targets
    assert ours(other, batch)[0] == fairseqs(model, batch)[0]


def test_the_gradient_of_the_bias_is_summed_in_32_bits():
    """In bfloat16 the sum over 1,000 parts would be wrong by 8 %."""
    torch.manual_seed(0)
    x, weight = torch.randn(3000, 8), torch.randn(VOCABULARY, 8)
    targets = torch.randint(VOCABULARY, (3000,))
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        bias = torch.zeros(VOCABULARY, dtype=dtype, requires_grad=True)
        head.linear_cross_entropy(x.to(dtype), weight.to(dtype), bias, targets).backward()
        gradients.append(bias.grad.float())
    assert (gradients[1] - gradients[0]).norm() < 0.01 * gradients[0].norm()
