"""Criteria with a teacher, compared with sums over single tokens, and on the command line."""

import copy
import json
import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.logging import metrics

from fairseq_linformer.checkpoint_files import LAST
from fairseq_linformer.convert import convert
from fairseq_linformer.errors import UserError
from fairseq_linformer.sentence_modules import pooling_of
from fairseq_linformer.training.distillation import (
    EncoderDistillation,
    EncoderDistillationConfig,
    MaskedLmDistillation,
    MaskedLmDistillationConfig,
    pool,
)
from fairseq_linformer.training.freezing import freeze_but_positions
from tests.helpers.checkpoints import assert_same_weights
from tests.helpers.commands import continuing, run
from tests.helpers.exports import write_pretrained
from tests.helpers.models import small, tokens
from tests.helpers.teachers import task_of, write_teacher

PAD = 1
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    """Return a function that writes a teacher of given options once."""
    return cache(lambda **options: write_teacher(tmp_path_factory.mktemp("teacher") / "teacher", **options))


def masked_batch():
    """Two rows, the second padded, with masks; <mask> is token 4."""
    ids = tokens(2, 12)
    ids[1, 9:] = PAD
    targets = torch.full_like(ids, PAD)
    for position in ((0, 1), (0, 7), (1, 8)):
        targets[position], ids[position] = ids[position], 4
    return {"net_input": {"src_tokens": ids}, "target": targets, "ntokens": 21, "nsentences": 2}


def text_batch(*lengths):
    """Texts between <s> and </s>, padded on the right."""
    ids = tokens(len(lengths), max(lengths))
    for row, length in enumerate(lengths):
        ids[row, 0], ids[row, length - 1], ids[row, length:] = 0, 2, PAD
    return {"net_input": {"src_tokens": ids}, "ntokens": sum(lengths), "nsentences": len(lengths)}


def masked_lm(tmp_path, teacher, **options):
    config = MaskedLmDistillationConfig(tpu=False, teacher=str(teacher), **options)
    return MaskedLmDistillation(config, task_of(tmp_path))


def encoder(tmp_path, teacher, **options):
    return EncoderDistillation(EncoderDistillationConfig(teacher=str(teacher), **options), task_of(tmp_path))


def logged(criterion, *logs):
    metrics.reset()
    with metrics.aggregate() as values:
        criterion.reduce_metrics(list(logs))
    return values.get_smoothed_values()


def naive_masked_lm(model, teacher, batch):
    """Loss, divergence and error, token by token in float64."""
    ids, targets = batch["net_input"]["src_tokens"], batch["target"]
    with torch.no_grad():
        outputs = [network(ids, return_all_hiddens=True) for network in (model, teacher)]
    loss = divergence = 0.0
    for row, position in targets.ne(PAD).nonzero().tolist():
        q, p = (logits[row, position].double().softmax(-1) for logits, _ in outputs)
        loss -= math.log(q[targets[row, position]])
        divergence += sum(float(a * (a / b).log()) for a, b in zip(p, q, strict=True))
    errors = []
    for pair in zip(*(extra["inner_states"][1:] for _, extra in outputs), strict=True):
        x, t = (state.transpose(0, 1)[ids.ne(PAD)].double() for state in pair)
        errors.append(float(((x - t) ** 2).sum() / (t**2).sum()))
    return loss, divergence, sum(errors) / len(errors)


@pytest.mark.parametrize("weights", [(0.5, 2.0), (1.0, 0.0), (0.0, 1.0)])
def test_masked_lm_is_the_sum_over_tokens_and_layers(tmp_path, teachers, weights):
    logits, layers = weights
    criterion = masked_lm(tmp_path, teachers(), logits_weight=logits, layers_weight=layers)
    model = small(**NO_DROPOUT).train()
    total, size, log = criterion(model, masked_batch())
    loss, divergence, error = naive_masked_lm(model.eval(), criterion.teacher, masked_batch())
    assert size == 3 and log["loss"].item() == pytest.approx(loss, rel=1e-5)  # without the teacher's terms
    assert total.item() == pytest.approx(loss + logits * divergence + layers * 3 * error, rel=1e-5)
    values = logged(criterion, log, log)
    assert values["loss"] == pytest.approx(loss / 3 / math.log(2), abs=1e-3)
    assert values["divergence"] == pytest.approx(divergence / 3 / math.log(2), abs=1e-3)
    assert not layers or values["layer_error"] == pytest.approx(error, abs=1e-3)
    total.backward()
    assert all(parameter.grad is None for parameter in criterion.teacher.parameters())
    assert list(criterion.parameters()) == list(criterion.state_dict()) == [] and not criterion.teacher.training


def test_masked_lm_in_validation_without_masks_and_in_16_bits(tmp_path, teachers):
    criterion, model = masked_lm(tmp_path, tmp_path / "none.pt"), small().eval()  # validation reads no teacher
    plain = MaskedLmLoss(MaskedLmConfig(tpu=False), task_of(tmp_path))(model, masked_batch())
    loss, size, log = criterion(model, masked_batch())
    assert torch.equal(loss, plain[0]) and size == plain[1] and log.keys() == plain[2].keys()
    criterion, batch = masked_lm(tmp_path, teachers()), masked_batch()
    batch["target"].fill_(PAD)
    loss, size, _ = criterion(model.train(), batch)
    assert size == 0 and loss.item() == 0
    loss, _, _ = criterion(small().bfloat16().train(), masked_batch())
    assert loss.isfinite() and next(criterion.teacher.parameters()).dtype == torch.bfloat16


def outputs_of(model, text):
    """Features and outputs of layers of one text, (n, d) each."""
    with torch.no_grad():
        features, extra = model(text.unsqueeze(0), features_only=True, return_all_hiddens=True)
    return [features[0], *(state[:, 0] for state in extra["inner_states"][1:])]


def chunked_outputs(teacher, text):
    """``outputs_of`` a teacher by chunk: as few as possible, of one length except the last."""
    inner, longest = text[1:-1], teacher.args.max_positions - 2
    size = math.ceil(len(inner) / math.ceil(len(inner) / longest))
    chunks = [outputs_of(teacher, torch.cat([text[:1], part, text[-1:]])) for part in inner.split(size)]
    joined = []
    for parts in zip(*chunks, strict=True):
        first, last = (sum(part[position] for part in parts) / len(parts) for position in (0, -1))
        joined.append(torch.cat([first[None], *(part[1:-1] for part in parts), last[None]]))
    return joined


def naive_encoder(model, teacher, batch):
    """Cosines of texts, error of each layer, and error of similarities."""
    rows = [row[row.ne(PAD)] for row in batch["net_input"]["src_tokens"]]
    outputs = [outputs_of(model, row) for row in rows], [chunked_outputs(teacher, row) for row in rows]
    u, v = (torch.stack([text[0].mean(0) / text[0].mean(0).norm() for text in texts]) for texts in outputs)
    layers = []
    for layer in range(1, len(outputs[0][0])):
        x, t = (torch.cat([text[layer] for text in texts]) for texts in outputs)
        layers.append(float(((x - t) ** 2).sum() / (t**2).sum()))
    pairs = [(i, j) for i in range(len(rows)) for j in range(len(rows)) if i != j]
    similarities = [float(u[i] @ u[j] - v[i] @ v[j]) ** 2 for i, j in pairs]
    return (u * v).sum(1).tolist(), layers, sum(similarities) / max(1, len(pairs))


@pytest.mark.parametrize(
    ("longest", "lengths"), [(64, (40, 7, 33)), (16, (40, 7, 33)), (16, (15, 16, 17)), (9, (15, 16, 17)), (9, (3,))]
)
def test_encoder_is_the_sum_over_texts_layers_and_tokens(tmp_path, teachers, longest, lengths):
    weights = {"layers_weight": 0.7, "pooled_weight": 2.0, "similarities_weight": 3.0}
    criterion = encoder(tmp_path, teachers(max_positions=longest), **weights)
    model, batch = small(**NO_DROPOUT, projection="mean-pool").double(), text_batch(*lengths)
    total, size, log = criterion(model.train(), batch)
    cosines, layers, similarities = naive_encoder(model.eval(), criterion.teacher, batch)
    loss = 0.7 * sum(layers) / 2 + 2 * (1 - sum(cosines) / len(cosines)) + 3 * similarities
    assert size == batch["ntokens"] and total.item() == pytest.approx(size * loss, rel=1e-9)
    values = logged(criterion, log, log)
    assert values["cosine"] == pytest.approx(sum(cosines) / len(cosines), abs=1e-4)
    assert [values[f"layer_{number}"] for number in (1, 2)] == pytest.approx(layers, abs=1e-4)
    assert values["layer_error"] == pytest.approx(sum(layers) / 2, abs=1e-4)
    validation = criterion(model, text_batch(40))[2]  # without a pair of texts
    assert validation.keys() == log.keys()
    assert logged(criterion, log, validation)["similarity_error"] == pytest.approx(similarities, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, [3.0, 4.0]),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, [2.0, 2.0]),
        ({"pooling_mode": "max"}, [3.0, 4.0]),
    ],
)
def test_pooling(settings, expected):
    files = {"modules.json": json.dumps([{"path": "1", "type": "sentence_transformers.models.Pooling"}])}
    files["1/config.json"] = json.dumps({"word_embedding_dimension": 2, **settings})
    features = torch.tensor([[[3.0, 4.0], [1.0, 0.0], [9.0, 9.0]]])
    vector = pool(features, torch.tensor([[True, True, False]]), pooling_of(files))
    torch.testing.assert_close(vector, torch.nn.functional.normalize(torch.tensor([expected]).float()))
    assert pooling_of({}) == "mean"
    with pytest.raises(UserError, match="pooling"):
        pooling_of({**files, "1/config.json": '{"pooling_mode": ["max", "cls"]}'})


def test_teachers_that_do_not_fit_are_rejected(tmp_path, teachers):
    def begin(kind, config, length=64, vocabulary=None, **options):
        task = task_of(tmp_path, length)
        task.to_train, task.vocabulary = object(), vocabulary or {}
        vars(task.cfg).update(options)
        return kind(config, task)

    config = MaskedLmDistillationConfig(tpu=False, teacher=str(teachers()))
    for changed, task, name in (
        ({}, {"length": 128}, r"criterion\.teacher"),
        ({}, {"vocabulary": {"dictionary": "another"}}, "dictionary"),
        ({"layers_weight": math.nan}, {}, "layers_weight"),
    ):
        with pytest.raises(UserError, match=name):
            begin(MaskedLmDistillation, replace(config, **changed), **task)
    texts, config = {"shortest_text": 8, "skip_masking": True}, EncoderDistillationConfig(teacher=str(teachers()))
    assert begin(EncoderDistillation, config, **texts, only_positions_from=64).pooling == "mean"
    for changed in ({"shortest_text": None}, {"skip_masking": False}, {"only_positions_from": 32}):
        with pytest.raises(UserError, match=next(iter(changed))):
            begin(EncoderDistillation, config, **{**texts, **changed})
    deeper = teachers(encoder_layers=3)
    for criterion, batch in ((masked_lm, masked_batch()), (encoder, text_batch(9))):
        with pytest.raises(UserError, match="layers_weight"):
            criterion(tmp_path, deeper)(small().train(), batch)
        assert criterion(tmp_path, deeper, layers_weight=0.0)(small().train(), batch)[0] > 0
    with pytest.raises(UserError, match=r"criterion\.teacher"):
        encoder(tmp_path, teachers(encoder_embed_dim=30))(small(), text_batch(9))


def test_only_later_positions_are_trained():
    """Outputs of shorter texts stay the same to the last bit, also after a second update of Adam."""
    model = small(**NO_DROPOUT, projection="mean-pool", adaptive_length=True, projected_length=16)
    freeze_but_positions(model, 16)
    name = "encoder.sentence_encoder.embed_positions.weight"
    assert [key for key, parameter in model.named_parameters() if parameter.requires_grad] == [name]
    before, table = copy.deepcopy(model.state_dict()), model.encoder.sentence_encoder.embed_positions.weight
    optimizer = torch.optim.Adam([table], lr=0.1)
    short, long = (text_batch(length)["net_input"]["src_tokens"] for length in (16, 30))
    outputs = outputs_of(model.eval(), short[0])
    for _ in range(2):
        optimizer.zero_grad()
        model(long, features_only=True)[0][..., 0].sum().backward()
        optimizer.step()
    assert all(map(torch.equal, outputs, outputs_of(model, short[0])))
    assert {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])} == {name}
    changed = table.ne(before[name]).any(1).nonzero().flatten().tolist()
    assert changed == list(range(PAD + 1 + 16, PAD + 1 + 30))
    for first, options in ((64, {}), (0, {}), (8, {"positions": "alibi"})):
        with pytest.raises(UserError, match=f"only_positions_from={first}"):
            freeze_but_positions(small(**options, projection="split-pool", linformer_window=4), first)


@pytest.mark.slow
def test_encoder_on_the_command_line(corpus, tmp_path):
    """A converted encoder learns from its source, and resumes to the last bit."""
    source = write_pretrained(tmp_path / "source", corpus, attention="softmax")
    longer = ["model.attention=linformer", "model.projection=mean-pool", "model.projected_length=5"]
    convert(source, tmp_path / "start", [*longer, "model.max_positions=30"])
    words = continuing(corpus, "recipe=encoder", f"criterion.teacher={source.parent}")
    words += ["checkpoint.finetune_from_model=start/checkpoint.pt", "dataset.max_tokens=300"]
    words += ["optimization.lr=[0.01]", "lr_scheduler.warmup_updates=1", "lr_scheduler.total_num_update=4"]
    words += ["checkpoint.save_interval_updates=2", "common.log_interval=1"]
    for folder, updates in (("whole", 4), ("parts", 2), ("parts", 4)):
        printed = run(*words, f"optimization.max_update={updates}", f"checkpoint.save_dir={folder}", cwd=tmp_path)
        assert f"best checkpoint: {folder}/checkpoint_best.pt, cosine 0." in printed
    assert_same_weights(tmp_path / "whole" / LAST, tmp_path / "parts" / LAST)
