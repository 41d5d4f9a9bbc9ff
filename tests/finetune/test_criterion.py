"""The criterion: metrics over the whole set, whatever the batches and the ranks are."""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions import sentence_prediction as fairseqs
from fairseq.criterions.sentence_prediction import SentencePredictionConfig
from fairseq.data import Dictionary
from fairseq.logging import metrics
from torch import nn

from fairseq_linformer.data.prepare.labelled import Example, write_labelled
from fairseq_linformer.data.tasks import own_task
from fairseq_linformer.data.tokenizer import load_tokenizer
from fairseq_linformer.finetune.criterion import REPORTS, TextPredictionCriterion
from tests.helpers import ROOT
from tests.helpers.commands import SIZES, run

CORRELATIONS = ("pearson", "spearman", "pearson_and_spearman")
CPU_RANKS = {
    "distributed_init_method": "env://",
    "distributed_rank": "${oc.env:RANK}",
    "device_id": "${oc.env:RANK}",
    "distributed_no_spawn": "true",
    "distributed_backend": "gloo",
    "ddp_backend": "legacy_ddp",
}


@pytest.fixture(scope="module")
def pairs(corpus, tmp_path_factory) -> Path:
    """A regression with nine rows to validate on, which are 4, 4 and 1 in batches of four."""
    folder = tmp_path_factory.mktemp("scores") / "STS-B"
    words = ("dog", "cat", "bird", "fish")
    rows = [Example(f"the {words[row % 4]} today", str(row % 5), f"the {words[row % 3]}") for row in range(9)]
    write_labelled(
        folder, own_task("own", "regression", scale=5.0), {"train": rows, "valid": rows}, load_tokenizer(corpus)
    )
    return folder


def validated(data: Path, folder: Path, ranks: int = 1) -> dict[str, str]:
    """What is logged of the split valid after an update that changes nothing, by the command that users type."""
    words = [f"task.data={data}", "model=tiny_512", "checkpoint.finetune_from_model=null", "common.cpu=true"]
    words += [f"model.{option}={value}" for option, value in SIZES.items()]
    words += ["optimization.max_update=1", "optimization.lr=[0]", "lr_scheduler.warmup_updates=0"]
    words += ["dataset.batch_size=4", "dataset.num_workers=0", "common.log_format=json"]
    launcher: list = ["fairseq-hydra-train"]
    if ranks > 1:
        launcher = ["torchrun", "--standalone", "--nproc-per-node", ranks, "--no-python"]
        launcher += [Path(sys.executable).with_name("fairseq-hydra-train")]
        words += [f"distributed_training.{key}={value}" for key, value in CPU_RANKS.items()]
    hydra = ["--config-dir", ROOT / "configs/finetune", "--config-name", "sts_b"]
    output = run(*launcher, *hydra, *words, cwd=folder)
    rows = [json.loads(line[line.index("{") :]) for line in output.splitlines() if '"valid_loss"' in line]
    assert len(rows) == 1, output
    return rows[0]


@pytest.fixture(scope="module")
def logged(pairs, tmp_path_factory) -> dict[str, str]:
    return validated(pairs, tmp_path_factory.mktemp("one"))


def test_a_last_batch_of_one_row(logged):
    """Of which there is no correlation."""
    assert all(0 < abs(float(logged[f"valid_{name}"])) <= 100 for name in CORRELATIONS)
    assert "valid_pred" not in logged


def test_two_ranks_log_what_one_logs(logged, pairs, tmp_path):
    """The ranks have batches of 4 and 1 rows, and of 4 and none."""
    two = validated(pairs, tmp_path, ranks=2)
    names = [f"valid_{name}" for name in ("loss", *CORRELATIONS)]
    assert [two[name] for name in names] == [logged[name] for name in names]


class Given(nn.Module):
    """A model that answers what stands in the batch."""

    classification_heads = ("head",)

    def forward(self, logits, **options):
        return logits, {}

    def get_targets(self, sample, output):
        return sample["target"]


def criterion_of(*reports, labels=("0", "1"), regression=False):
    dictionary = Dictionary()
    for name in (*labels, "<mask>"):  # which the task adds
        dictionary.add_symbol(name)
    task = SimpleNamespace(label_dictionary=dictionary, cfg=SimpleNamespace(num_classes=len(labels)))
    options = {f"report_{report}": report in reports for report in REPORTS}
    cfg = SentencePredictionConfig(classification_head_name="head", regression_target=regression, **options)
    return TextPredictionCriterion(cfg, task).eval()


def batch(targets, predictions, classes):
    """A batch of numbers, of classes by their position where there are any."""
    logits = torch.tensor(predictions)
    logits = nn.functional.one_hot(logits, classes).float() if classes else logits[:, None]
    return {"net_input": {"logits": logits}, "target": torch.tensor(targets), "ntokens": 3 * len(targets)}


def report(criterion, targets, predictions, classes=0, size=5, together=False):
    """What a validation in batches of `size` rows logs; `together`: all of it at its end, as fairseq-validate does."""
    model, logs = Given().eval(), []
    for start in range(0, len(targets), size):
        rows = slice(start, start + size)
        logs.append(criterion(model, batch(targets[rows], predictions[rows], classes))[2])
    with metrics.aggregate(new_root=True) as whole:
        for step in [logs] if together else [[log] for log in logs]:
            with metrics.aggregate() as part:
                criterion.reduce_metrics(step)
                part.get_smoothed_values()  # the trainer's, after each batch
    return whole.get_smoothed_values()


CHANCE = random.Random(1)
CLASSES = [[CHANCE.randrange(2) for _ in range(31)] for _ in range(2)]
SCORES = [[CHANCE.randrange(26) / 5 for _ in range(31)] for _ in range(2)]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("size", [1, 5, 31])
def test_metrics_are_those_of_the_whole_set(size, together):
    """fairseq's own functions give what is expected, of all rows at once."""
    targets, predictions = map(torch.tensor, CLASSES)
    expected = fairseqs.acc_and_f1(predictions.numpy(), targets.numpy())
    expected["mcc"] = fairseqs.matthews_corrcoef(predictions.numpy(), targets.numpy())
    logged = report(criterion_of("mcc", "acc_and_f1"), *CLASSES, classes=2, size=size, together=together)
    assert {name: logged[name] for name in ("acc_and_f1", "f1", "mcc")} == {
        name: pytest.approx(100 * expected[name], abs=0.0501) for name in ("acc_and_f1", "f1", "mcc")
    }
    targets, predictions = map(torch.tensor, SCORES)
    expected = fairseqs.pearson_and_spearman(predictions.numpy(), targets.numpy())
    logged = report(criterion_of("pearson_and_spearman", regression=True), *SCORES, size=size, together=together)
    assert [logged[name] for name in CORRELATIONS] == [
        pytest.approx(100 * expected[name], abs=0.0501) for name in ("pearson", "spearmanr", "corr")
    ]
    assert "accuracy" not in logged


def test_f1_is_of_the_class_named_1():
    """fairseq numbers classes by frequency, so it may be either. Matthews' prefers none, nor needs numbers."""
    targets, predictions = [0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]
    first, second = (
        report(criterion_of("mcc", "acc_and_f1", labels=labels), targets, predictions, classes=2)
        for labels in (("1", "0"), ("0", "1"))
    )
    assert (first["f1"], second["f1"]) == (50.0, 75.0)
    assert first["mcc"] == second["mcc"] == 44.7
    assert report(criterion_of("mcc", labels=("ham", "spam")), targets, predictions, classes=2)["mcc"] == 44.7
    three = report(criterion_of("mcc", labels=("no", "maybe", "yes")), [0, 1, 2], [0, 1, 2], classes=3)
    assert three["mcc"] == three["accuracy"] == 100


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("targets", "predictions"), [([2.5], [1.0]), ([0.0, 5.0], [1.0, 1.0]), ([1.0, 1.0], [0.0, 5.0])]
)
def test_correlations_that_are_not_defined_are_zero(targets, predictions):
    logged = report(criterion_of("pearson_and_spearman", regression=True), targets, predictions)
    assert [logged[name] for name in CORRELATIONS] == [0, 0, 0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rows", [[0], [0, 0, 0], [1, 1]])
def test_one_class_alone_is_no_failure(rows):
    logged = report(criterion_of("mcc", "acc_and_f1"), rows, rows, classes=2)
    assert (logged["mcc"], logged["f1"], logged["accuracy"]) == (0, 100.0 * rows[0], 100)


def test_training_keeps_no_rows():
    """To log them, each update would wait for the device."""
    _, _, log = criterion_of("mcc", "acc_and_f1")(Given().train(), batch([0, 1], [1, 1], classes=2))
    assert sorted(log) == ["loss", "ncorrect", "nsentences", "ntokens", "sample_size"]


@pytest.mark.parametrize(
    ("reports", "options", "message"),
    [
        (["mcc"], {"regression": True}, "report_mcc=True is not allowed: it must be false with regression_target=true"),
        (["acc_and_f1"], {"regression": True}, "report_acc_and_f1=True is not allowed: it must be false with regr"),
        (["acc_and_f1"], {"labels": ("ham", "spam")}, "unless there are two classes, one of them named 1"),
        (["acc_and_f1"], {"labels": ("0", "1", "2")}, "unless there are two classes, one of them named 1"),
        (["pearson_and_spearman"], {}, "report_pearson_and_spearman=True is not allowed: it must be false for classes"),
    ],
)
def test_a_metric_that_cannot_be_computed_is_refused(reports, options, message):
    with pytest.raises(ValueError, match=message):
        criterion_of(*reports, **options)
