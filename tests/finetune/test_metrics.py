"""Metrics where they are not defined, and of entities; test_criterion.py compares the others with their definitions."""

import math

import pytest

from fairseq_linformer.data.task_record import KINDS, own_task
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.finetune.metrics import METRICS, score


def test_a_narrow_range_of_scores_is_not_constant():
    targets, predictions = [5.0, 1.0, 3.0, 0.0, 4.0], [4.0, 2.0, 5.0, 1.0, 3.0]
    expected = score(TASKS["STS-B"], targets, predictions)
    narrow = ([1e-3 * value for value in values] for values in (targets, predictions))
    assert min(expected.values()) > 0 and score(TASKS["STS-B"], *narrow) == pytest.approx(expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("targets", "predictions"),
    [
        ([3.0], [2.0]),
        ([3.0, 3.0], [1.0, 2.0]),
        ([1.0, 2.0, 3.0], [2.0, 2.0000001, 2.0]),
        ([1.0, 3.0], [math.nan, 2.0]),
    ],
)
def test_a_correlation_that_is_not_defined_is_zero(targets, predictions):
    """A mean over seeds of nan would be nan."""
    assert score(TASKS["STS-B"], targets, predictions) == {"pearson": 0.0, "spearman": 0.0}


@pytest.mark.filterwarnings("error")
def test_metrics_of_one_class_alone():
    for targets, predictions in ((["0", "1", "1"], ["1", "1", "1"]), (["0"], ["0"]), (["0", "0"], ["0", "0"])):
        assert score(TASKS["CoLA"], targets, predictions) == {"mcc": 0.0}
    for alike in (["0"], ["1", "1"]):
        f1 = 100.0 * ("1" in alike)
        assert score(TASKS["MRPC"], alike, alike) == {"accuracy": 100.0, "f1": f1}


def test_every_metric_of_a_record_is_known():
    records = [*TASKS.values(), *(own_task("own", kind) for kind in KINDS)]
    records.append(own_task("own", "token-label", ("B-A", "O")))
    assert {name for task in records for name in task.metrics} == METRICS.keys()
    assert all({*task.headline} <= {*task.metrics} for task in records)


@pytest.mark.filterwarnings("error")
def test_several_labels_of_which_one_or_none_occurs():
    task = own_task("own", "multi-label", ("a", "b"))
    one = score(task, [("a",), (), ("a",), ()], [("a",), ("a",), (), ()])
    assert one == pytest.approx({"micro_f1": 50.0, "macro_f1": 50.0, "accuracy": 50.0})
    assert score(task, [(), ()], [(), ()]) == {"micro_f1": 0.0, "macro_f1": 0.0, "accuracy": 100.0}


def test_entities():
    """An entity is correct if its type and both ends are; it ends with its row."""
    pytest.importorskip("seqeval")
    task = own_task("own", "token-label", ("B-LOC", "B-PER", "I-PER", "O"))
    assert task.headline == ("entity_f1",)
    targets = [("B-PER", "I-PER", "O", "B-LOC"), ("B-PER",)]
    predictions = [("B-PER", "I-PER", "O", "B-PER"), ("B-PER",)]
    f1 = 2 * 2 / (2 * 2 + 1 + 1)
    assert score(task, targets, predictions) == pytest.approx({"entity_f1": 100 * f1, "accuracy": 80.0})
    assert score(task, [("O",)], [("O",)]) == {"entity_f1": 0.0, "accuracy": 100.0}
