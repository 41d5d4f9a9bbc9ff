"""Tasks on small prepared folders: rows, batches, masks and crops of each epoch, and options that are rejected."""

import copy
import gc
import random
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data.data_utils import load_indexed_dataset
from fairseq.tasks import setup_task
from omegaconf import OmegaConf

from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.targets import NO_WORD, TRUNCATED, UNKNOWN
from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.data.truncation import METHODS, kept_tokens
from fairseq_linformer.errors import UserError
from fairseq_linformer.training.masked_lm import DynamicMaskedLMTask
from fairseq_linformer.training.masked_lm_options import DynamicMaskedLMConfig
from fairseq_linformer.training.text_prediction import TextPredictionConfig
from tests.helpers.configs import composed
from tests.helpers.inputs import Numbers
from tests.helpers.models import SIZES

BOS, PAD, EOS = 0, 1, 2
LENGTH = 12


def write(folder, pairs):
    """80 training rows and 30 validation rows of texts of 1 to 40 tokens."""
    chance = random.Random(1)

    def text():
        return " ".join(str(chance.randrange(90)) for _ in range(chance.randint(1, 40)))

    splits = {
        split: [Example(text(), str(row % 2), text() if pairs else None) for row in range(rows)]
        for split, rows in (("train", 80), ("valid", 30))
    }
    write_labelled(folder, own_task("own", "single-label"), splits, Numbers())
    return folder


@pytest.fixture(scope="module")
def base(corpus):
    """Configuration of a pretraining on the corpus."""
    return composed("pretrain", "tiny_512", f"task.data={corpus}", "common.cpu=true")


@pytest.fixture
def pretraining(base):
    """Return a function that sets up the task of a pretraining with changed options."""

    def set_up(**options):
        cfg = copy.deepcopy(base)
        for name, value in options.items():
            OmegaConf.update(cfg, name.replace("__", "."), value, merge=False)
        return setup_task(cfg.task)

    return set_up


def masked_lm(data, **options):
    return DynamicMaskedLMTask.setup_task(DynamicMaskedLMConfig(data=str(data), **{"seed": 1, **options}))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write(tmp_path_factory.mktemp("texts") / "out", pairs=False)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write(tmp_path_factory.mktemp("pairs") / "out", pairs=True)


def task_of(folder, splits=("train", "valid"), **options):
    """The task of fairseq-hydra-train, with some of its splits."""
    defaults = {"data": str(folder), "num_classes": 2, "init_token": BOS, "separator_token": EOS, "max_positions": 64}
    defaults |= {"regression_target": False, "classification_head_name": "head", "seed": 1, "_name": "text_prediction"}
    task = setup_task(OmegaConf.create({**vars(TextPredictionConfig()), **defaults, **options}))
    for split in splits:
        task.load_dataset(split)
    return task


def rows(task, split, epoch=1):
    dataset = task.dataset(split)
    dataset.set_epoch(epoch)
    return [dataset[row]["net_input.src_tokens"].tolist() for row in range(len(dataset))]


def batches(task, split, epoch=1, shuffle=True, **options):
    """The trainer's batches of an epoch."""
    iterator = task.get_batch_iterator(task.dataset(split), max_sentences=8, max_positions=64, epoch=epoch, **options)
    return list(iterator.next_epoch_itr(shuffle=shuffle))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("folder", ["texts", "pairs"])
def test_rows_and_batches_are_truncated(folder, method, request):
    """In validation always in the same way."""
    data = request.getfixturevalue(folder)
    task, whole = task_of(data, truncation=method, truncate_to=LENGTH), task_of(data, max_positions=100)
    for split, used in (("train", method), ("valid", "head" if method == "random-crop" else method)):
        dataset, truncated = task.dataset(split), rows(task, split)
        items = [torch.tensor(row) for row in rows(whole, split)]
        assert [len(row) for row in truncated] == [min(LENGTH, len(item)) for item in items] == dataset.sizes.tolist()
        assert all(dataset.num_tokens(i) == dataset.size(i) == len(row) for i, row in enumerate(truncated))
        if used != "random-crop":
            expected = [item[kept_tokens(item, LENGTH, used, BOS, EOS)].tolist() for item in items]
            assert truncated == rows(task, split, epoch=2) == expected
        for batch in batches(task, split):
            tokens, lengths = batch["net_input"]["src_tokens"], batch["net_input"]["src_lengths"]
            assert tokens.shape[1] == lengths.max() <= LENGTH and batch["ntokens"] == lengths.sum()
            for row, index, label in zip(tokens, batch["id"].tolist(), batch["target"], strict=True):
                assert row[row.ne(PAD)].tolist() == truncated[index] and label == index % 2


def test_crops_differ_between_epochs_and_agree_between_runs(texts):
    options = {"truncation": "random-crop", "truncate_to": LENGTH, "splits": ("train",)}
    task, again, other = task_of(texts, **options), task_of(texts, **options), task_of(texts, **options, seed=2)
    first, second = rows(task, "train", 1), rows(task, "train", 2)
    assert rows(again, "train", 2) == second and rows(again, "train", 1) == first
    items = rows(task_of(texts), "train")
    long = [index for index, item in enumerate(items) if len(item) > LENGTH + 10]
    for crops in (second, rows(other, "train", 1)):
        assert sum(first[index] != crops[index] for index in long) > len(long) / 2
    for row, item in zip(first, items, strict=True):
        assert row[1:-1] in [item[1:-1][start : start + len(row) - 2] for start in range(len(item))]


def test_masks_of_every_epoch_reach_the_worker_processes(corpus, monkeypatch):
    """fairseq's masked_lm fails this: its workers repeat the masks of the first epoch."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)  # to wait for the end of workers
    task = masked_lm(corpus, tokens_per_sample=32)
    task.load_dataset("valid")
    masked = []
    for epoch in (1, 2, 3):
        iterator = task.get_batch_iterator(task.dataset("valid"), max_sentences=4, epoch=epoch, num_workers=2)
        batch, *_ = iterator.next_epoch_itr(shuffle=False)
        task.dataset("valid").set_epoch(epoch)
        expected = [task.dataset("valid")[int(row)]["net_input.src_tokens"].tolist() for row in batch["id"]]
        masked.append([row[row.ne(PAD)].tolist() for row in batch["net_input"]["src_tokens"]])
        assert masked[-1] == expected
    assert masked[0] != masked[1] != masked[2] != masked[0]
    del task, iterator
    gc.collect()


def test_batches_of_similar_lengths_are_shuffled(texts):
    options = {"truncation": "tail", "truncate_to": 30}
    task, unsorted = task_of(texts, **options), task_of(texts, **options, no_shuffle=True)
    dataset = task.dataset("train")
    order = dataset.ordered_indices()
    assert sorted(order) == list(range(80)) and (np.diff(dataset.sizes[order]) >= 0).all()
    full = [index for index in order if dataset.sizes[index] == 30]
    assert full != sorted(full)  # fairseq shuffles rows of equal length
    assert unsorted.dataset("train").ordered_indices().tolist() == list(range(80))
    epochs = [[tuple(batch["id"].tolist()) for batch in batches(task, "train", epoch)] for epoch in (1, 2)]
    cut_in_order = [tuple(order[start : start + 8]) for start in range(0, 80, 8)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(cut_in_order)
    assert epochs[0] != epochs[1] and cut_in_order not in epochs
    in_order = [tuple(batch["id"].tolist()) for batch in batches(task_of(texts, **options), "train", shuffle=False)]
    assert in_order == cut_in_order


def test_no_row_is_dropped(texts):
    """For its length; in validation fairseq drops those beyond a multiple of 8, its default, of which 30 is none."""
    assert sum(len(batch["id"]) for batch in batches(task_of(texts, max_positions=20), "train")) == 80
    task = task_of(texts)
    iterator = task.get_batch_iterator(task.dataset("valid"), max_sentences=32, required_batch_size_multiple=8)
    assert sorted(row for batch in iterator.frozen_batches for row in batch) == [*range(30)]
    sizes = [batch["net_input"]["src_tokens"].numel() for batch in batches(task, "train", max_tokens=128)]
    assert max(sizes) <= 128


@pytest.mark.parametrize(
    "options",
    [
        {"truncate_to": 65},
        {"truncate_to": 2},
        {"shorten_method": "truncate"},
        {"num_classes": 3},
        {"regression_target": True},
        {"kind": "multi-label"},
        {"init_token": 5},
        {"separator_token": 5},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_rejected_by_name(texts, options):
    ((name, value),) = options.items()
    with pytest.raises(UserError, match=f"^{name}={value}"):
        task_of(texts, **options)


NOT_SET = {"kind": None, "num_classes": -1, "regression_target": None}


@pytest.mark.parametrize(
    ("labels", "kind", "classes"),
    [
        (["b", "a", "c"], "single-label", 3),
        ([("b", "a"), (), ("c",)], "multi-label", 3),
        (["1", "2.5", "0"], "regression", 1),
        ([("x", "y"), ("y", "y"), ("x", "x")], "token-label", 2),
    ],
)
def test_the_data_determines_options_that_are_not_set(tmp_path, labels, kind, classes):
    """Also in the configuration of the whole run, which the criterion reads and checkpoints contain."""
    texts, is_regression = [("1", "2")] * 3 if kind == "token-label" else ["1 2"] * 3, kind == "regression"
    examples = list(map(Example, texts, labels))
    write_labelled(tmp_path / "out", own_task("own", kind), {"train": examples}, Numbers())
    options = {**vars(TextPredictionConfig()), **NOT_SET, "data": str(tmp_path / "out"), "seed": 1}
    options |= {"_name": "text_prediction", "classification_head_name": "head"}
    groups = {"criterion": {"regression_target": None}, "model": None, "checkpoint": {}, "optimization": {}}
    whole = OmegaConf.create({"task": options, **groups}, flags={"allow_objects": True})  # of a checkpoint
    task = setup_task(whole.task)
    expected = {"kind": kind, "num_classes": classes, "regression_target": is_regression}
    for cfg in (task.cfg, whole.task):
        assert {name: cfg[name] for name in expected} == expected
    assert whole.criterion.regression_target == is_regression
    assert task.record.kind == kind and len(task.record.classes) == (0 if is_regression else classes)


def test_regression_target_determines_the_record_of_data_of_fairseq_preprocess(texts, tmp_path):
    for name in ("input0", "label"):
        (tmp_path / name).symlink_to(texts / name)
    record = task_of(tmp_path, **NOT_SET).record
    assert (record.kind, record.classes, record.headline) == ("single-label", ("0", "1"), ("accuracy",))
    record = task_of(tmp_path, **{**NOT_SET, "regression_target": True}, splits=()).record
    assert (record.kind, record.classes, record.headline) == ("regression", (), ("pearson", "spearman"))


def test_a_dictionary_of_other_labels_than_the_record_is_rejected(texts, tmp_path):
    copy = tmp_path / "out"
    shutil.copytree(texts, copy)
    (copy / "label/dict.txt").write_text("1 40\n0 40\n")
    with pytest.raises(UserError, match="classes"):
        task_of(copy)


def word_rows():
    """Rows of 1 to 12 words of 1 to 3 pieces; the class of a word is the number of its pieces."""
    chance, examples = random.Random(1), []
    for _ in range(40):
        sizes = [chance.randint(1, 3) for _ in range(chance.randint(1, 12))]
        text = tuple(" ".join(str(chance.randrange(90)) for _ in range(size)) for size in sizes)
        examples.append(Example(text, tuple(map(str, sizes))))
    return examples


@pytest.mark.parametrize("init_token", [BOS, None])
@pytest.mark.parametrize("method", METHODS)
def test_classes_of_words_stay_with_their_first_pieces(tmp_path, method, init_token):
    """Word starts are compared with those of the whole row, or are TRUNCATED."""
    examples = word_rows()
    splits = {"train": examples, "valid": examples, "test": [replace(row, label=None) for row in examples]}
    write_labelled(tmp_path / "out", own_task("own", "token-label"), splits, Numbers())
    options = {**NOT_SET, "init_token": init_token, "splits": tuple(splits)}
    whole = task_of(tmp_path / "out", **options)
    task = task_of(tmp_path / "out", **options, truncation=method, truncate_to=LENGTH)
    cut = 0
    for split in splits:
        for batch in batches(task, split):
            assert batch["target"].dtype == torch.int64
            rows = zip(*(batch[name].tolist() for name in ("id", "target", "word_starts")), strict=True)
            for row, (index, targets, starts) in enumerate(rows):
                example, item = examples[index], whole.dataset(split)[index]
                tokens, words = batch["net_input"]["src_tokens"][row], len(example.text)
                assert starts[words:] == [TRUNCATED] * (len(starts) - words)
                expected = [UNKNOWN if split == "test" else int(label) - 1 for label in example.label]
                assert targets == expected + [NO_WORD] * (len(targets) - words)
                used = "head" if method == "random-crop" and split != "train" else method
                kept = indices_kept(item["net_input.src_tokens"], tokens[tokens.ne(PAD)], used, int(init_token == BOS))
                whole_starts = item["word_starts"].tolist()
                assert starts[:words] == [kept.index(at) if at in kept else TRUNCATED for at in whole_starts]
                cut += starts[:words].count(TRUNCATED)
    assert cut > 20


def indices_kept(item, tokens, method, start):
    """Indices in a whole row of the tokens of its truncated row; a crop is searched."""
    if method != "random-crop":
        return kept_tokens(item, LENGTH, method, BOS, EOS).nonzero().flatten().tolist()
    whole, crop = item.tolist()[start:-1], tokens.tolist()[start:-1]
    offset = start + next(at for at in range(len(whole)) if whole[at : at + len(crop)] == crop)
    return [*range(start), *range(offset, offset + len(crop)), len(item) - 1]


@pytest.mark.parametrize(("separator", "minimum"), [(EOS, 5), (None, 4)])
def test_the_minimum_length_of_pairs(pairs, separator, minimum):
    with pytest.raises(UserError, match=f"truncate_to={minimum - 1} .*{minimum}"):
        task_of(pairs, truncate_to=minimum - 1, separator_token=separator)
    assert max(map(len, rows(task_of(pairs, truncate_to=minimum, separator_token=separator), "train"))) == minimum


def test_a_folder_that_is_no_prepared_task_is_rejected(texts, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data=.*/gone"):
        task_of(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"data=.* input0/dict\.txt"):
        task_of(tmp_path)
    (tmp_path / "input0").symlink_to(texts / "input0")
    with pytest.raises(FileNotFoundError, match=r"data=.* label/dict\.txt"):
        task_of(tmp_path)


def test_the_tokens_of_a_word_are_masked_together_or_not_at_all(corpus):
    options = {"sample_break_mode": "none", "tokens_per_sample": 64}
    task = masked_lm(corpus, mask_prob=0.4, mask_whole_words=True, **options)
    task.load_dataset("train")
    dataset, symbols = task.datasets["train"], task.source_dictionary.symbols
    begins = torch.tensor([token < 4 or symbol.startswith("▁") for token, symbol in enumerate(symbols)])
    whole = dataset.collater([dataset[index] for index in range(len(dataset))])
    targets = whole["target"]
    masked = targets.ne(PAD)
    words = begins[torch.where(masked, targets, whole["net_input"]["src_tokens"])].cumsum(1)
    masks_of_words = [masked[row][words[row] == word] for row in range(len(words)) for word in words[row].unique()]
    assert all(masks.all() or not masks.any() for masks in masks_of_words)
    assert sum(len(masks) > 1 for masks in masks_of_words) > 50
    assert float(masked.float().mean()) == pytest.approx(0.4, abs=0.05)


def test_options_that_the_data_does_not_allow_are_rejected(corpus, tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n")
    with pytest.raises(UserError, match="mask_whole_words=True"):
        masked_lm(tmp_path, mask_whole_words=True).load_dataset("valid")
    with pytest.raises(UserError, match=r"^shortest_text=9000"):
        masked_lm(corpus, shortest_text=9000, tokens_per_sample=10_000).load_dataset("valid")


def test_rows_are_cut_in_training(corpus, caplog):
    """Parts of a row have the masks of the whole row."""
    task = masked_lm(corpus, mask_prob=0.4, sample_break_mode="none", tokens_per_sample=64)
    task.load_dataset("train")
    dataset = task.datasets["train"]
    sample = dataset.collater([dataset[index] for index in range(8)])
    assert task.before_update(sample, 59) is sample
    task.stages = [(16, 60), (64, 100)]
    with caplog.at_level("INFO"):
        cut = {update: task.before_update(sample, update) for update in (58, 59, 60, 61)}
    messages = [message.partition(" tokens")[0] for message in caplog.messages if "rows of" in message]
    assert messages == ["after update 58: rows of 16", "after update 60: rows of 64"]
    inputs, targets = cut[59]["net_input"], sample["target"].view(-1, 16).clone()
    later = inputs["first_positions"] > 0
    assert inputs["src_tokens"][:, 1:].equal(sample["net_input"]["src_tokens"].view(-1, 16)[:, 1:])
    targets[later, 0] = PAD  # the parts after the first begin with <s>
    assert cut[59]["target"].equal(targets) and later.tolist() == [False, True, True, True] * 8
    assert cut[60]["target"].equal(sample["target"]) and "first_positions" not in cut[60]["net_input"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lengths", {"task__lengths": ["16:0.5", "64:0.5"]}),  # the last is not tokens_per_sample
        ("lengths", {"task__lengths": ["512:1"], "optimization__max_update": 0}),
        ("lengths", {"task__lengths": ["512:1"], "model": {"_name": "roberta", "max_positions": 512}}),
        ("lengths", {"task__lengths": ["512:1"], "task__shortest_text": 8}),
        ("shorten_method", {"task__shorten_method": "truncate", "task__shortest_text": 8}),
        ("shortest_text", {"task__shortest_text": 2}),
        ("lr_scheduler.total_num_update", {"optimization__max_update": 0}),
        ("optimizer.weight_decay", {"task__only_positions_from": 16}),
        ("sample_break_mode", {"task__sample_break_mode": "eos"}),  # fairseq's code for it fails with NumPy 2
    ],
)
def test_options_of_a_pretraining_that_cannot_work_are_rejected_by_name(pretraining, name, options):
    with pytest.raises(UserError, match=f"^{name}="):
        pretraining(**options)


def test_fairseqs_other_criteria_are_rejected_for_pretraining(pretraining):
    """They count all tokens, of which most are not masked."""
    with pytest.raises(UserError, match=r"^criterion=cross_entropy"):
        pretraining().build_criterion(OmegaConf.create({"_name": "cross_entropy", "sentence_avg": False}))


@pytest.mark.parametrize("mode", ["complete", "complete_doc"])
def test_rows_of_whole_lines_lose_no_line_that_is_longer(corpus, mode):
    """fairseq drops such lines: nearly all of a corpus with a document per line."""
    rows = masked_lm(corpus, sample_break_mode=mode, tokens_per_sample=8)._load_dataset_split("valid", 1, False)
    lines = [line.tolist() for line in load_indexed_dataset(str(corpus / "valid"))]
    assert max(map(len, lines)) > 7 >= max(rows.sizes) - 1
    tokens = [token for number in range(len(rows)) for token in rows[number].tolist()[1:]]
    end = [EOS] if mode == "complete_doc" else []  # the line at the end of a document, which is dropped
    assert tokens == [token for line in lines if line != end for token in line]


def test_a_run_that_ends_within_its_warm_up_logs_a_warning(pretraining, caplog):
    pretraining(optimization__max_update=121)
    assert "warmup_updates=120" not in caplog.text
    pretraining(optimization__max_update=120)
    assert "lr_scheduler.warmup_updates=120" in caplog.text


def test_a_frozen_encoder_leaves_the_head_to_train(texts):
    model = task_of(texts, freeze_encoder=True).build_model(OmegaConf.create({"_name": "linformer_roberta", **SIZES}))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained and all(name.startswith("classification_heads.head.") for name in trained)


def test_the_mark_of_a_random_lm_head_is_kept_until_it_is_trained(corpus):
    for options, kept in (({}, False), ({"skip_masking": True}, True), ({"only_positions_from": 16}, True)):
        task = masked_lm(corpus, tokens_per_sample=32, **options)
        task.run = SimpleNamespace(task_state=lambda: {"drawn_lm_head": True})
        assert ("drawn_lm_head" in task.state_dict()) == kept
