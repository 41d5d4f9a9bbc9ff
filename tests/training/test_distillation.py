"""The criterion ``masked_lm_distillation`` beside sums over tokens one by one, and what it refuses."""

import math

import pytest
import torch
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.logging import metrics

from fairseq_linformer.errors import UserError
from fairseq_linformer.training.distillation import MaskedLmDistillation, MaskedLmDistillationConfig
from tests.helpers.models import small, tokens
from tests.helpers.teachers import task_of, write_teacher

PAD = 1


def sample():
    """Two rows, the second padded, with masks; <mask> is 4 here."""
    given = tokens(2, 12)
    given[1, 9:] = PAD
    targets = torch.full_like(given, PAD)
    for place in ((0, 1), (0, 7), (1, 8)):
        targets[place], given[place] = given[place], 4
    return {"net_input": {"src_tokens": given}, "target": targets, "ntokens": 21, "nsentences": 2}


def criterion_of(tmp_path, teacher, length=64, **options):
    config = MaskedLmDistillationConfig(tpu=False, teacher=str(teacher), **options)
    return MaskedLmDistillation(config, task_of(tmp_path, length))


def expected(model, teacher, batch):
    """Loss, divergence and error, token by token in float64."""
    given, targets = batch["net_input"]["src_tokens"], batch["target"]
    with torch.no_grad():
        (own, mine), (other, theirs) = (of(given, return_all_hiddens=True) for of in (model, teacher))
    loss = divergence = 0.0
    for row, place in targets.ne(PAD).nonzero().tolist():
        p, q = (of[row, place].double().softmax(-1) for of in (other, own))
        loss -= math.log(q[targets[row, place]])
        divergence += sum(float(a * (a / b).log()) for a, b in zip(p, q, strict=True))
    real, errors = given.ne(PAD), []
    for x, t in zip(mine["inner_states"][1:], theirs["inner_states"][1:], strict=True):
        own, wanted = (state.transpose(0, 1)[real].double() for state in (x, t))
        errors.append(float(((own - wanted) ** 2).sum() / (wanted**2).sum()))
    return loss, divergence, sum(errors) / len(errors)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.5, 2.0), (1.0, 0.0), (0.0, 1.0)])
def test_it_is_the_sum_over_tokens_and_layers(tmp_path, weights):
    logits, layers = weights
    criterion = criterion_of(tmp_path, write_teacher(tmp_path / "t"), logits_weight=logits, layers_weight=layers)
    model = small(dropout=0.0, attention_dropout=0.0).train()
    found, size, log = criterion(model, sample())
    loss, divergence, error = expected(model.eval(), criterion.teacher, sample())
    assert size == 3
    assert log["loss"].item() == pytest.approx(loss, rel=1e-5)  # of the masked language model alone
    assert found.item() == pytest.approx(loss + logits * divergence + layers * 3 * error, rel=1e-5)
    metrics.reset()
    with metrics.aggregate() as logged:
        criterion.reduce_metrics([log, log])
    values = logged.get_smoothed_values()
    assert values["loss"] == pytest.approx(loss / 3 / math.log(2), abs=1e-3)
    assert values["divergence"] == pytest.approx(divergence / 3 / math.log(2), abs=1e-3)
    if layers:
        assert values["layer_error"] == pytest.approx(error, abs=1e-3)


def test_a_student_comes_nearer_and_the_teacher_stays(tmp_path):
    criterion = criterion_of(tmp_path, write_teacher(tmp_path / "t"), logits_weight=50.0, layers_weight=50.0)
    model = small(dropout=0.0, attention_dropout=0.0).train()
    before = {name: value.clone() for name, value in criterion.teacher.state_dict().items()}
    optimizer, logs = torch.optim.Adam(model.parameters(), 0.01), []
    for _ in range(30):
        optimizer.zero_grad()
        loss, _, log = criterion(model, sample())
        loss.backward()
        optimizer.step()
        logs.append(log)
    for name in ("divergence", "layer_error"):
        assert logs[-1][name] < 0.5 * logs[0][name]
    assert all(torch.equal(value, before[name]) for name, value in criterion.teacher.state_dict().items())
    assert not criterion.teacher.training


def test_the_trainer_neither_trains_nor_saves_the_teacher(tmp_path):
    criterion = criterion_of(tmp_path, write_teacher(tmp_path / "t"))
    assert criterion.teacher is criterion.teacher
    assert list(criterion.parameters()) == list(criterion.state_dict()) == []


def test_validation_is_that_of_masked_lm(tmp_path):
    criterion = criterion_of(tmp_path, tmp_path / "none.pt")  # which is not read
    model = small().eval()
    plain = MaskedLmLoss(MaskedLmConfig(tpu=False), task_of(tmp_path))(model, sample())
    loss, size, log = criterion(model, sample())
    assert torch.equal(loss, plain[0]) and size == plain[1] and log.keys() == plain[2].keys()


def test_a_batch_without_masks_counts_nothing(tmp_path):
    criterion = criterion_of(tmp_path, write_teacher(tmp_path / "t"))
    batch = sample()
    batch["target"].fill_(PAD)
    loss, size, _ = criterion(small().train(), batch)
    assert size == 0 and loss.item() == 0


def test_the_teacher_takes_the_type_of_the_model(tmp_path):
    criterion = criterion_of(tmp_path, write_teacher(tmp_path / "t"))
    loss, _, _ = criterion(small().bfloat16().train(), sample())
    assert loss.isfinite() and next(criterion.teacher.parameters()).dtype == torch.bfloat16


def test_other_layers_are_refused_where_they_are_compared(tmp_path):
    teacher = write_teacher(tmp_path / "t", encoder_layers=3)
    said = r"layers_weight must be 0: the model has 2 layers of d=24, the teacher 3 layers of d=24"
    with pytest.raises(UserError, match=said):
        criterion_of(tmp_path, teacher)(small().train(), sample())
    assert criterion_of(tmp_path, teacher, layers_weight=0.0)(small().train(), sample())[0] > 0


def test_a_teacher_that_cannot_work_is_refused_before_the_training(tmp_path):
    def begin(teacher, length=64, vocabulary=None, **options):
        config = MaskedLmDistillationConfig(tpu=False, teacher=str(teacher), **options)
        task = task_of(tmp_path, length)
        task.to_train, task.vocabulary = object(), vocabulary or {}
        return MaskedLmDistillation(config, task)

    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        begin(tmp_path / "none.pt")
    teacher = write_teacher(tmp_path / "t")
    assert begin(teacher.parent / "checkpoint.pt").teacher.args.attention == "softmax"
    with pytest.raises(UserError, match=r"reads 64 tokens, the task's rows have 128: give one for longer texts"):
        begin(teacher, length=128)
    with pytest.raises(UserError, match="has another dictionary than"):
        begin(teacher, vocabulary={"dictionary": "another"})
    for weight in (-1.0, math.inf, math.nan):
        with pytest.raises(UserError, match=f"layers_weight={weight} is not allowed: it must be at least 0"):
            begin(teacher, layers_weight=weight)
