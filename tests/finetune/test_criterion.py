"""The criterion: losses, and metrics over the whole set for any batches and ranks."""

import itertools
import multiprocessing
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions import sentence_prediction as fairseqs
from fairseq.data import Dictionary
from fairseq.logging import metrics
from omegaconf import OmegaConf
from sklearn.metrics import accuracy_score, f1_score
from torch import nn

from fairseq_linformer.data.targets import NO_WORD, TRUNCATED
from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.errors import UserError
from fairseq_linformer.finetune import criterion as criterion_module
from fairseq_linformer.finetune.criterion import TextPredictionCriterion, TextPredictionCriterionConfig
from fairseq_linformer.finetune.metrics import score

CORRELATIONS = ("pearson", "spearman", "score")


class Identity(nn.Module):
    """A model that returns the logits of the batch."""

    def forward(self, logits, **options):
        return logits, {}


def criterion_of(kind="single-label", classes=("0", "1"), metrics=(), headline=(), counts=None, root=None, **options):
    """The criterion of a task, by default with the metrics of its kind."""
    dictionary = Dictionary()
    for name, count in zip(classes, counts or itertools.repeat(1), strict=False):
        dictionary.add_symbol(name, n=count)
    dictionary.add_symbol("<mask>", n=100)  # as the task does
    record = own_task("own", kind, classes)
    record = replace(record, metrics=metrics or record.metrics, headline=headline or metrics or record.headline)
    task = SimpleNamespace(record=record, label_dictionary=dictionary, to_train=root)
    config = TextPredictionCriterionConfig(classification_head_name="head", **options)
    return TextPredictionCriterion(config, task).eval()


def batch(targets, predictions, classes):
    """A batch of numbers, of classes by their position where there are any."""
    logits = torch.tensor(predictions)
    logits = nn.functional.one_hot(logits, classes).float() if classes else logits[:, None]
    return {"net_input": {"logits": logits}, "target": torch.tensor(targets)[:, None], "ntokens": 3 * len(targets)}


def logged_of(criterion, batches, together=False):
    """Values logged by a validation; `together`: all at its end, as fairseq-validate does."""
    model = Identity().eval()
    logs = [criterion(model, sample)[2] for sample in batches]
    with metrics.aggregate(new_root=True) as whole:
        for step in [logs] if together else [[log] for log in logs]:
            with metrics.aggregate() as part:
                criterion.reduce_metrics(step)
                criterion.log_metrics(step)
                part.get_smoothed_values()  # the trainer's, after each batch
    return whole.get_smoothed_values()


def report(criterion, targets, predictions, classes=0, size=5, together=False):
    starts = range(0, len(targets), size)
    batches = (batch(targets[row : row + size], predictions[row : row + size], classes) for row in starts)
    return logged_of(criterion, batches, together)


CHANCE = random.Random(1)
CLASSES = [[CHANCE.randrange(2) for _ in range(31)] for _ in range(2)]
SCORES = [[CHANCE.randrange(26) / 5 for _ in range(31)] for _ in range(2)]


@pytest.mark.parametrize(("size", "together"), [(1, False), (5, True), (31, False)])
def test_metrics_are_those_of_the_whole_set(size, together):
    """As computed by fairseq's own functions on all rows at once."""
    targets, predictions = map(torch.tensor, CLASSES)
    expected = fairseqs.acc_and_f1(predictions.numpy(), targets.numpy())
    expected["mcc"] = fairseqs.matthews_corrcoef(predictions.numpy(), targets.numpy())
    criterion = criterion_of(metrics=("mcc", "accuracy", "f1"), headline=("accuracy", "f1"))
    logged = report(criterion, *CLASSES, classes=2, size=size, together=together)
    names = {"score": "acc_and_f1", "accuracy": "acc", "f1": "f1", "mcc": "mcc"}
    for name, fairseqs_name in names.items():
        assert logged[name] == pytest.approx(100 * expected[fairseqs_name], abs=0.0501)
    targets, predictions = map(torch.tensor, SCORES)
    expected = fairseqs.pearson_and_spearman(predictions.numpy(), targets.numpy())
    logged = report(criterion_of("regression", ()), *SCORES, size=size, together=together)
    assert [logged[name] for name in CORRELATIONS] == [
        pytest.approx(100 * expected[name], abs=0.0501) for name in ("pearson", "spearmanr", "corr")
    ]
    assert "accuracy" not in logged


def test_the_best_checkpoint_is_of_a_metric_of_the_task():
    """Checked before the first update: fairseq would end at the first validation."""
    best = {"best_checkpoint_metric": "f1", "maximize_best_checkpoint_metric": True}
    root = OmegaConf.create({"checkpoint": best, "dataset": {"disable_validation": False}})
    with pytest.raises(UserError, match=r"best_checkpoint_metric=f1"):
        criterion_of("regression", (), root=root)


def test_f1_is_of_the_class_named_1():
    """fairseq numbers classes by frequency, so it may be either. Matthews' correlation prefers none."""
    targets, predictions = [0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]
    first, second = (
        report(criterion_of(classes=classes, metrics=("mcc", "f1")), targets, predictions, classes=2)
        for classes in (("1", "0"), ("0", "1"))
    )
    assert (first["f1"], second["f1"]) == (50.0, 75.0)
    assert first["mcc"] == second["mcc"] == 44.7


@pytest.mark.parametrize("regression", [False, True])
def test_losses_of_one_class_and_of_scores_are_fairseqs_to_the_bit(regression):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(7, 1 if regression else 3, generator=generator)
    targets = torch.randn(7, 1, generator=generator) if regression else torch.arange(7)[:, None] % 3
    sample = {"net_input": {"logits": logits}, "target": targets, "ntokens": 30}
    options = fairseqs.SentencePredictionConfig(classification_head_name="head", regression_target=regression)
    theirs = fairseqs.SentencePredictionCriterion(options, SimpleNamespace(label_dictionary=None))
    ours = criterion_of("regression", ()) if regression else criterion_of(classes=("a", "b", "c"))
    model = Identity()
    model.classification_heads, model.get_targets = ("head",), lambda sample, output: sample["target"]
    (loss, size, log), expected = ours(model, sample), theirs(model, sample)
    assert torch.equal(loss, expected[0]) and size == expected[1]
    assert {name: log[name] for name in expected[2]} == expected[2]
    with metrics.aggregate(new_root=True) as first:
        theirs.reduce_metrics([expected[2]])
    with metrics.aggregate(new_root=True) as second:
        ours.reduce_metrics([log])
    assert second.get_smoothed_values() == first.get_smoothed_values()


@pytest.mark.parametrize(("option", "expected"), [("balanced", [10 / 18, 5.0]), ([1, 0.5], [1.0, 0.5])])
def test_classes_weigh_in_the_loss_as_asked(option, expected):
    """Classes of rows and of words; balanced, a class of nine of ten rows weighs 10 / (2 * 9)."""
    logits, targets = torch.randn(3, 2, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 0])
    losses = nn.functional.cross_entropy(logits, targets, torch.tensor(expected), reduction="sum")
    sample = {"net_input": {"logits": logits}, "target": targets[:, None], "ntokens": 30}
    words = {**sample, "net_input": {"logits": logits[:, None]}, "word_starts": torch.zeros(3, 1, dtype=torch.int64)}
    for kind, batch in (("single-label", sample), ("token-label", words)):
        loss, size, _ = criterion_of(kind, counts=[9, 1], class_weights=option)(Identity(), batch)
        assert (loss.item(), size) == (pytest.approx(losses.item()), 3)
        for weights in ([1, 2, 3], [1, -1], "balance", 3):
            with pytest.raises(UserError, match=r"criterion\.class_weights="):
                criterion_of(kind, class_weights=weights)


def test_several_classes_per_row():
    """The mean over classes of torch's binary cross-entropy, and scikit-learn's metrics of probabilities above 0.5."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(9, 4, generator=generator, dtype=torch.double)
    targets = (torch.rand(9, 4, generator=generator) > 0.6).float()
    targets[3] = 0.0  # a row without any
    criterion = criterion_of("multi-label", ("a", "b", "c", "d"))

    def part(rows):
        return {"net_input": {"logits": logits[rows].float()}, "target": targets[rows], "ntokens": 30}

    loss, size, _ = criterion(Identity().train(), part(slice(None)))
    expected = nn.functional.binary_cross_entropy(logits.sigmoid(), targets.double(), reduction="none")
    assert size == 9 and loss.item() / size == pytest.approx(expected.mean().item(), rel=1e-6)
    logged = logged_of(criterion, [part(slice(0, 4)), part(slice(4, 8)), part(slice(8, 9))])
    predictions = (logits > 0).int()
    for average in ("micro", "macro"):
        value = f1_score(targets.int(), predictions, average=average, zero_division=0)
        assert logged[f"{average}_f1"] == pytest.approx(100 * value, abs=0.0501)
    assert logged["accuracy"] == pytest.approx(100 * (targets == predictions).all(1).float().mean().item(), abs=0.0501)
    assert logged["score"] == logged["micro_f1"]


TAGS = ("B", "I", "O")
ROWS = [  # targets, positions in 6 tokens, of which 0 is <s>
    ([2, 0, 1, 2], [1, 2, 4, TRUNCATED]),
    ([0], [3]),
    ([2, 2, 0], [TRUNCATED, 1, 2]),
    ([1, 1], [TRUNCATED, TRUNCATED]),
]


def words(rows, logits):
    """A batch as ``WordTargetDataset`` collates it."""
    targets, positions = (
        nn.utils.rnn.pad_sequence(list(map(torch.tensor, column)), True, -1) for column in zip(*rows, strict=True)
    )
    targets[torch.arange(targets.shape[1]) >= torch.tensor([len(row[0]) for row in rows])[:, None]] = NO_WORD
    return {"net_input": {"logits": logits}, "target": targets, "word_starts": positions, "ntokens": 20}


def by_hand(rows, logits, majority=2):
    """The loss, its number of words, and targets and predictions by row, one word after another in float64."""
    loss, size, pairs_of_rows = 0.0, 0, []
    for (targets, positions), row in zip(rows, logits.double(), strict=True):
        pairs = []
        for target, position in zip(targets, positions, strict=True):
            if position != TRUNCATED:
                loss -= row[position].log_softmax(0)[target].item()
                size += 1
            pairs.append((target, majority if position == TRUNCATED else int(row[position].argmax())))
        pairs_of_rows.append(pairs)
    return loss, size, pairs_of_rows


def test_classes_of_words(monkeypatch):
    """The loss omits truncated words; in the metrics they have the majority class."""
    logits = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(3), requires_grad=True)
    criterion = criterion_of("token-label", TAGS, counts=[5, 5, 9])
    loss, size, _ = criterion(Identity().train(), words(ROWS, logits))
    expected, expected_size, pairs = by_hand(ROWS, logits.detach())
    assert (loss.item(), size) == (pytest.approx(expected, rel=1e-6), expected_size)
    loss.backward()
    uncut = {(row, position) for row, (_, starts) in enumerate(ROWS) for position in starts if position != TRUNCATED}
    assert {tuple(index) for index in logits.grad.abs().sum(-1).nonzero().tolist()} == uncut
    targets, predictions = zip(*(pair for row in pairs for pair in row), strict=True)
    names = [[tuple(TAGS[pair[side]] for pair in row) for row in pairs] for side in (0, 1)]
    scored = []
    monkeypatch.setattr(criterion_module, "score", lambda task, *rows: scored.append(rows) or score(task, *rows))
    for size in (1, 3, 4):
        starts = range(0, 4, size)
        parts = [words(ROWS[row : row + size], logits.detach()[row : row + size]) for row in starts]
        logged = logged_of(criterion, parts)
        assert list(scored[-1]) == names, "row by row in any batches"
        assert logged["accuracy"] == pytest.approx(100 * accuracy_score(targets, predictions), abs=0.0501)
        macro = f1_score(targets, predictions, average="macro", zero_division=0)
        assert logged["macro_f1"] == pytest.approx(100 * macro, abs=0.0501)
        assert logged["words_cut"] == 40.0 and logged["score"] == logged["accuracy"]


def test_a_batch_of_truncated_words_alone_changes_nothing():
    logits = torch.zeros(1, 6, 3, requires_grad=True)
    batch = words([([0, 1], [TRUNCATED, TRUNCATED])], logits)
    loss, size, _ = criterion_of("token-label", TAGS)(Identity().train(), batch)
    loss.backward()
    assert (loss.item(), int(size)) == (0.0, 0) and not logits.grad.any()


def validate_part(rank, logits, folder):
    """Validate the rows of one of two ranks, which are one and three, and save the sum of what both log."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    part = slice(0, 1) if rank == 0 else slice(1, 4)
    log = criterion_of("token-label", TAGS)(Identity().eval(), words(ROWS[part], logits[part]))[2]
    log = {name: torch.as_tensor(value) for name, value in log.items()}
    for value in log.values():
        torch.distributed.all_reduce(value)
    torch.save(log, folder / f"{rank}.pt")


def test_two_ranks_log_what_one_logs(tmp_path):
    """With different numbers of words on each rank."""
    logits = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(3))
    criterion = criterion_of("token-label", TAGS)
    alone = logged_of(criterion, [words(ROWS, logits)])
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=validate_part, args=(rank, logits, tmp_path)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    log = torch.load(tmp_path / "1.pt")
    with metrics.aggregate(new_root=True) as whole:
        criterion.reduce_metrics([log])
        criterion.log_metrics([log])
    logged = whole.get_smoothed_values()
    names = ("loss", "accuracy", "macro_f1", "words_cut", "score")
    assert [logged[name] for name in names] == [alone[name] for name in names]


def test_an_unknown_metric_and_another_task_are_rejected():
    with pytest.raises(UserError, match="metric=bleu"):
        criterion_of(metrics=("bleu",))
    with pytest.raises(UserError, match="criterion=text_prediction"):
        TextPredictionCriterion(TextPredictionCriterionConfig(), SimpleNamespace())
