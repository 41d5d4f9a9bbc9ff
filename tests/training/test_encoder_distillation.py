"""The criterion ``encoder_distillation`` beside sums over single tokens, on the command line, and what it refuses."""

import copy
import json
import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics

from fairseq_linformer.checkpoint_files import LAST
from fairseq_linformer.errors import UserError
from fairseq_linformer.sentence_modules import pooling_of
from fairseq_linformer.training.encoder_distillation import EncoderDistillation, EncoderDistillationConfig, pooled
from fairseq_linformer.training.masked_lm import DynamicMaskedLMConfig, DynamicMaskedLMTask, freeze_but_positions
from tests.helpers import ROOT
from tests.helpers.checkpoints import assert_same_weights
from tests.helpers.commands import last_line, run
from tests.helpers.exports import write_pretrained
from tests.helpers.models import small, tokens
from tests.helpers.teachers import task_of, write_teacher

PAD = 1
STILL = {"dropout": 0.0, "attention_dropout": 0.0}


def batch(*lengths):
    """Texts between <s> and </s>, padded on the right."""
    given = tokens(len(lengths), max(lengths))
    for row, length in enumerate(lengths):
        given[row, 0], given[row, length - 1], given[row, length:] = 0, 2, PAD
    return {"net_input": {"src_tokens": given}, "ntokens": sum(lengths), "nsentences": len(lengths)}


def criterion_of(tmp_path, teacher, **options):
    return EncoderDistillation(EncoderDistillationConfig(teacher=str(teacher), **options), task_of(tmp_path))


def chunks_of(text, longest):
    """As the documentation says it: as few as can be, of one length but for the last."""
    inner = text[1:-1]
    count = math.ceil(len(inner) / (longest - 2))
    size = math.ceil(len(inner) / count)
    return [torch.cat([text[:1], part, text[-1:]]) for part in inner.split(size)]


def asked(model, text):
    """Features and outputs of layers of one text, (n, d) each."""
    with torch.no_grad():
        features, extra = model(text.unsqueeze(0), features_only=True, return_all_hiddens=True)
    return [features[0], *(state[:, 0] for state in extra["inner_states"][1:])]


def taught(teacher, text):
    """What the teacher says of one text, chunk by chunk."""
    said = [asked(teacher, chunk) for chunk in chunks_of(text, teacher.args.max_positions)]
    joined = []
    for parts in zip(*said, strict=True):
        first, last = (sum(part[place] for part in parts) / len(parts) for place in (0, -1))
        joined.append(torch.cat([first[None], *(part[1:-1] for part in parts), last[None]]))
    return joined


def expected(model, teacher, given):
    """Cosines of texts, error of each layer, error of similarities."""
    rows = [row[row.ne(PAD)] for row in given["net_input"]["src_tokens"]]
    own, wanted = [asked(model, row) for row in rows], [taught(teacher, row) for row in rows]
    u, v = (torch.stack([of[0].mean(0) / of[0].mean(0).norm() for of in said]) for said in (own, wanted))
    layers = []
    for layer in range(1, len(own[0])):
        x, t = (torch.cat([of[layer] for of in said]) for said in (own, wanted))
        layers.append(float(((x - t) ** 2).sum() / (t**2).sum()))
    pairs = [(i, j) for i in range(len(rows)) for j in range(len(rows)) if i != j]
    similarities = [float(u[i] @ u[j] - v[i] @ v[j]) ** 2 for i, j in pairs]
    return (u * v).sum(1).tolist(), layers, sum(similarities) / max(1, len(pairs))


@pytest.mark.parametrize("longest", [64, 16, 9])
@pytest.mark.parametrize("lengths", [(40, 7, 33), (3,), (15, 16, 17)])
def test_it_is_the_sum_over_texts_layers_and_tokens(tmp_path, longest, lengths):
    weights = {"layers_weight": 0.7, "pooled_weight": 2.0, "similarities_weight": 3.0}
    criterion = criterion_of(tmp_path, write_teacher(tmp_path / "t", max_positions=longest), **weights)
    model, given = small(**STILL, projection="mean-pool").double(), batch(*lengths)
    found, size, log = criterion(model.train(), given)
    cosines, layers, similarities = expected(model.eval(), criterion.teacher, given)
    loss = 0.7 * sum(layers) / 2 + 2 * (1 - sum(cosines) / len(cosines)) + 3 * similarities
    assert size == given["ntokens"] and found.item() == pytest.approx(size * loss, rel=1e-9)
    metrics.reset()
    with metrics.aggregate() as logged:
        criterion.reduce_metrics([log, log])
    values = logged.get_smoothed_values()
    assert values["cosine"] == pytest.approx(sum(cosines) / len(cosines), abs=1e-4)
    assert [values[f"layer_{number}"] for number in (1, 2)] == pytest.approx(layers, abs=1e-4)
    assert values["layer_error"] == pytest.approx(sum(layers) / 2, abs=1e-4)
    alone = criterion(model, batch(40))[2]
    assert alone.keys() == log.keys()  # in validation too
    with metrics.aggregate() as logged:
        criterion.reduce_metrics([log, alone])  # which has no pair of texts
    assert logged.get_smoothed_values()["similarity_error"] == pytest.approx(similarities, abs=1e-4)


def test_the_language_model_head_has_no_gradient(tmp_path):
    criterion, model = criterion_of(tmp_path, write_teacher(tmp_path / "t", max_positions=16)), small().train()
    criterion(model, batch(40, 7))[0].backward()
    missing = {name for name, value in model.named_parameters() if value.grad is None}
    assert missing and all(name.startswith("encoder.lm_head.") for name in missing)
    assert list(criterion.parameters()) == []


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, [3.0, 4.0]),
        ({"pooling_mode_mean_tokens": True}, [2.0, 2.0]),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, [2.0, 2.0]),
        ({"pooling_mode_max_tokens": True}, [3.0, 4.0]),
        ({"pooling_mode": "cls"}, [3.0, 4.0]),
    ],
)
def test_texts_are_pooled_as_the_modules_say(mode, expected):
    files = {"modules.json": json.dumps([{"path": "1", "type": "sentence_transformers.models.Pooling"}])}
    files["1/config.json"] = json.dumps({"word_embedding_dimension": 2, **mode})
    features = torch.tensor([[[3.0, 4.0], [1.0, 0.0], [9.0, 9.0]]])
    vector = pooled(features, torch.tensor([[True, True, False]]), pooling_of(files))
    torch.testing.assert_close(vector, torch.nn.functional.normalize(torch.tensor([expected]).float()))
    assert pooling_of({}) == "mean"
    several = {**files, "1/config.json": '{"pooling_mode_max_tokens": true, "pooling_mode_cls_token": true}'}
    with pytest.raises(UserError, match="pooling=max_tokens, cls_token is not allowed: it must be one of cls_token"):
        pooling_of(several)


def test_another_width_or_number_of_layers_is_refused(tmp_path):
    wider = write_teacher(tmp_path / "wide", encoder_embed_dim=30)
    with pytest.raises(UserError, match=r"criterion\.teacher=.* is not allowed: it must be of d=24, .*; it has d=30"):
        criterion_of(tmp_path, wider)(small(), batch(9))
    deeper = write_teacher(tmp_path / "deep", encoder_layers=3)
    with pytest.raises(UserError, match=r"layers_weight must be 0: the model has 2 layers of d=24, the teacher 3"):
        criterion_of(tmp_path, deeper)(small(), batch(9))
    assert "layer_1" not in criterion_of(tmp_path, deeper, layers_weight=0.0)(small(), batch(9))[2]


def test_rows_that_are_no_texts_are_refused_before_the_training(tmp_path):
    def begin(**task_options):
        task = task_of(tmp_path)
        task.to_train = SimpleNamespace()
        vars(task.cfg).update(task_options)
        return EncoderDistillation(EncoderDistillationConfig(teacher=str(tmp_path / "t")), task)

    write_teacher(tmp_path / "t")
    with pytest.raises(UserError, match=r"task\.shortest_text=None is not allowed: it must be a number"):
        begin(shortest_text=None, skip_masking=True)
    with pytest.raises(UserError, match=r"task\.skip_masking=False is not allowed: it must be true"):
        begin(shortest_text=8, skip_masking=False)
    assert begin(shortest_text=8, skip_masking=True, only_positions_from=64).pooling == "mean"
    with pytest.raises(UserError, match=r"only_positions_from=32 is not allowed: it must be null, or 64, what "):
        begin(shortest_text=8, skip_masking=True, only_positions_from=32)


def test_only_later_positions_are_trained():
    """Shorter texts are read as before, to the last bit, also where Adam has seen gradients."""
    model = small(**STILL, projection="mean-pool", adaptive_length=True, projected_length=16)
    freeze_but_positions(model, 16)
    before, table = copy.deepcopy(model.state_dict()), model.encoder.sentence_encoder.embed_positions.weight
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert trained == [table]
    optimizer = torch.optim.Adam(trained, lr=0.1)
    short, long = (batch(length)["net_input"]["src_tokens"] for length in (16, 30))
    read = asked(model.eval(), short[0])
    for _ in range(2):
        optimizer.zero_grad()
        model(long, features_only=True)[0][..., 0].sum().backward()
        optimizer.step()
    assert all(map(torch.equal, read, asked(model, short[0])))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"encoder.sentence_encoder.embed_positions.weight"}
    old = before["encoder.sentence_encoder.embed_positions.weight"]
    assert table.ne(old).any(1).nonzero().flatten().tolist() == list(range(PAD + 1 + 16, PAD + 1 + 30))


@pytest.mark.parametrize(("first", "options", "count"), [(64, {}, 64), (0, {}, 64), (8, {"positions": "alibi"}, 0)])
def test_positions_that_are_not_there_are_refused(first, options, count):
    model = small(**options, projection="split-pool", linformer_window=4)
    with pytest.raises(UserError, match=rf"task.only_positions_from={first} .* {count} learned positions"):
        freeze_but_positions(model, first)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shortest_text": 31}, "shortest_text=31 is not allowed: it must be from 3 to tokens_per_sample=30"),
        ({"shortest_text": 2}, "shortest_text=2 is not allowed: it must be from 3"),
        ({"shortest_text": 8, "shorten_method": "truncate"}, "shorten_method=truncate is not .* none with shortest"),
        ({"shortest_text": 8, "lengths": "15:0.5,30:0.5"}, "lengths=15:0.5,30:0.5 is not allowed: .* left out with"),
    ],
)
def test_options_of_the_task_that_cannot_be_together(tmp_path, options, said):
    (tmp_path / "dict.txt").write_text("a 1\n")
    with pytest.raises(UserError, match=said):
        DynamicMaskedLMTask.setup_task(DynamicMaskedLMConfig(data=str(tmp_path), tokens_per_sample=30, **options))


@pytest.mark.slow
def test_the_commands_of_the_documentation(corpus, tmp_path):
    """A converted encoder learns from its source, resumes to the last bit, and knows its best checkpoint."""
    write_pretrained(tmp_path / "source", corpus, attention="softmax")
    longer = ["model.attention=linformer", "model.projection=mean-pool", "model.projected_length=5"]
    source = tmp_path / "source"
    run("linformer", "convert", source, "--out", "start", *longer, "model.max_positions=30", cwd=tmp_path)
    words = ["fairseq-hydra-train", "--config-dir", ROOT / "configs/pretrain", "--config-name", "continue"]
    words += ["recipe=encoder", f"task.data={corpus}", f"criterion.teacher={source}"]
    words += ["checkpoint.finetune_from_model=start/checkpoint.pt", "common.cpu=true", "dataset.num_workers=0"]
    words += ["optimization.lr=[0.01]", "lr_scheduler.warmup_updates=2", "lr_scheduler.total_num_update=12"]
    words += ["dataset.max_tokens=300", "checkpoint.save_interval_updates=6", "common.log_interval=1"]
    printed = run(*words, "optimization.max_update=12", "checkpoint.save_dir=whole", cwd=tmp_path)
    assert "best checkpoint: whole/checkpoint_best.pt, cosine 0." in printed
    assert last_line(printed) == "next: linformer export whole --out exported"
    for updates in (5, 12):
        run(*words, f"optimization.max_update={updates}", "checkpoint.save_dir=parts", cwd=tmp_path)
    assert_same_weights(tmp_path / "whole" / LAST, tmp_path / "parts" / LAST)
    printed = run(*words, "optimizer.weight_decay=0.01", "checkpoint.save_dir=decayed", cwd=tmp_path, status=1)
    assert "optimizer.weight_decay=0.01 is not allowed: it must be 0 with task.only_positions_from" in printed
