"""The metrics compared with their definitions."""

import math
from collections import Counter

import pytest

from fairseq_linformer.data.task_record import KINDS, own_task
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.finetune.metrics import METRICS, score

TARGETS = ["1", "0", "1", "1", "0", "0", "1", "0", "1"]
PREDICTIONS = ["1", "1", "1", "0", "0", "0", "1", "0", "0"]


def correlation(a, b):
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    covariance = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return covariance / math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))


def test_accuracy_f1_and_matthews():
    counts = Counter(zip(TARGETS, PREDICTIONS, strict=True))
    true_1, true_0, false_1, false_0 = (counts[pair] for pair in (("1", "1"), ("0", "0"), ("0", "1"), ("1", "0")))
    f1 = 2 * true_1 / (2 * true_1 + false_1 + false_0)
    expected = {"accuracy": 100 * (true_1 + true_0) / len(TARGETS), "f1": 100 * f1}
    assert score(TASKS["MRPC"], TARGETS, PREDICTIONS) == pytest.approx(expected)
    root = math.sqrt((true_1 + false_1) * (true_1 + false_0) * (true_0 + false_1) * (true_0 + false_0))
    expected = 100 * (true_1 * true_0 - false_1 * false_0) / root
    assert score(TASKS["CoLA"], TARGETS, PREDICTIONS) == pytest.approx({"mcc": expected})


def test_correlations():
    targets, predictions = [5.0, 1.0, 3.0, 0.0, 4.0], [4.0, 2.0, 5.0, 1.0, 3.0]
    ranks = [[sorted(values).index(value) for value in values] for values in (targets, predictions)]
    expected = {"pearson": 100 * correlation(targets, predictions), "spearman": 100 * correlation(*ranks)}
    for scale in (1.0, 1e-3):  # a narrow range is not constant
        scaled = ([scale * value for value in values] for values in (targets, predictions))
        assert score(TASKS["STS-B"], *scaled) == pytest.approx(expected)


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


def test_several_labels():
    """Micro F1 counts over all classes, macro F1 averages theirs; accuracy is the share of rows without any error."""
    task = own_task("own", "multi-label", ("a", "b", "c"))
    targets, predictions = [("a", "b"), ("b",), (), ("c",)], [("a",), ("b", "c"), (), ("c",)]
    micro, macro = 2 * 3 / (2 * 3 + 1 + 1), (1 + 2 / 3 + 2 / 3) / 3
    expected = {"micro_f1": 100 * micro, "macro_f1": 100 * macro, "accuracy": 50.0}
    assert score(task, targets, predictions) == pytest.approx(expected)


@pytest.mark.filterwarnings("error")
def test_several_labels_of_which_one_or_none_occurs():
    task = own_task("own", "multi-label", ("a", "b"))
    one = score(task, [("a",), (), ("a",), ()], [("a",), ("a",), (), ()])
    assert one == pytest.approx({"micro_f1": 50.0, "macro_f1": 50.0, "accuracy": 50.0})
    assert score(task, [(), ()], [(), ()]) == {"micro_f1": 0.0, "macro_f1": 0.0, "accuracy": 100.0}


def test_tags_of_words():
    """Each word has the same weight: a long row counts more than a short one."""
    task = own_task("own", "token-label", ("NOUN", "VERB"))
    targets, predictions = [("NOUN", "VERB", "NOUN"), ("VERB",)], [("NOUN", "VERB", "VERB"), ("VERB",)]
    noun, verb = 2 * 1 / (2 * 1 + 1), 2 * 2 / (2 * 2 + 1)
    assert score(task, targets, predictions) == pytest.approx({"accuracy": 75.0, "macro_f1": 50 * (noun + verb)})


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
