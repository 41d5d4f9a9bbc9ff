"""Exported folders compared with fairseq: logits, names, import, and heads of fine-tuned models."""

import copy
import json
import shutil
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="transformers is not installed")

from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from fairseq_linformer import hf
from fairseq_linformer.checkpoint import UNTRAINED
from fairseq_linformer.errors import UserError
from fairseq_linformer.finetune.prediction import Predictor
from fairseq_linformer.hf import exporting
from fairseq_linformer.hf.exporting import export
from fairseq_linformer.hf.importing import DRAWN, import_folder
from tests.helpers import ROOT
from tests.helpers.checkpoints import assert_same_weights
from tests.helpers.exports import (
    MECHANISMS,
    SIZES,
    VARIANTS,
    N,
    hub_of,
    rows,
    write_fine_tuned,
    write_pretrained,
    write_reference,
)
from tests.helpers.processes import no_space


def title(options):
    return "-".join(f"{name}={value}" for name, value in options.items() if name != "projected_length") or "linformer"


def is_superseded(number, options):
    """Return True if a later variant of the same mechanism sets the same options, and maybe more."""
    later = MECHANISMS[number + 1 :]
    return any(options["attention"] == other["attention"] and options.keys() <= other.keys() for other in later)


SUPERSEDED = [options for number, options in enumerate(MECHANISMS) if is_superseded(number, options)]


@pytest.mark.parametrize(
    "options",
    [pytest.param(case, marks=[pytest.mark.exhaustive] * (case in SUPERSEDED), id=title(case)) for case in VARIANTS],
)
def test_weights_come_back_bit_for_bit(options, vocabulary, tmp_path):
    """The export itself compares logits with fairseq's."""
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, **options)
    export(checkpoint, tmp_path / "out")
    is_stock = options.get("attention") == "softmax" and not options.keys() & {"value_residual", "positions"}
    assert bool(list((tmp_path / "out").glob("*.py"))) != is_stock
    import_folder(tmp_path / "out", tmp_path / "back")
    assert_same_weights(checkpoint, tmp_path / "back" / UNTRAINED)


@pytest.mark.parametrize("kind", ["single-label", "multi-label", "regression", "token-label"])
def test_fine_tuned_model_keeps_its_head_labels_and_length(kind, vocabulary, tmp_path):
    """The export itself compares logits with fairseq's."""
    scale = 5.0 if kind == "regression" else 1.0
    options = {"classifier_pooling": "mean"} if kind == "multi-label" else {"attention": "softmax"}
    checkpoint = write_fine_tuned(tmp_path / "run", vocabulary, kind, scale=scale, options=options, truncate_to=9)
    assert export(checkpoint, tmp_path / "out") == [exporting.WORDS_REMARK] * (kind == "token-label")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.get("problem_type") == exporting._CLASSES[kind].problem_type
    assert ("sentence_transformers" in config) == (kind == "regression"), "CrossEncoder would apply a sigmoid"
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_max_length"] == 9
    assert tuple(config["id2label"].values()) == (Predictor(checkpoint).labels or ("score",))
    assert import_folder(tmp_path / "out", tmp_path / "back") == []
    assert_same_weights(checkpoint, tmp_path / "back" / UNTRAINED)
    if kind == "multi-label":  # transformers saves a classifier without the LM head
        exporting._CLASSES[kind].model.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "again")
        (tmp_path / "out" / "fairseq").rename(tmp_path / "again" / "fairseq")
        assert import_folder(tmp_path / "again", tmp_path / "drawn") == [DRAWN]
        assert_same_weights(checkpoint, tmp_path / "drawn" / UNTRAINED, ignored="lm_head.d")


SMALL = {"vocab_size": 40, "encoder_layers": 2, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32}
SMALL |= {"encoder_attention_heads": 4, "max_positions": N, "projected_length": 5}


DRAWN_CASES = [*(case for case in VARIANTS if case not in SUPERSEDED), {"attention": "rfa", "value_residual": True}]


@pytest.mark.parametrize(("number", "options"), enumerate(DRAWN_CASES), ids=map(title, DRAWN_CASES))
def test_missing_parameters_are_initialized_as_in_a_new_model(number, options, tmp_path, monkeypatch, request):
    sizes = {"vocab_size": 40, "max_positions": N, "attention_dropout": 0.0, **SIZES}
    softmax = hf.LinformerRobertaConfig(attention="softmax", **sizes)
    hf.LinformerRobertaForMaskedLM(softmax).save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    config = hf.LinformerRobertaConfig(**{"attention": "linformer", **options, **sizes})
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    torch.use_deterministic_algorithms(True)  # memory that was not written holds NaN and the largest integer
    kind = (hf.LinformerRobertaForMaskedLM, hf.LinformerRobertaForTokenClassification)[number % 2]
    # Some versions of transformers skip modules of which everything was loaded, some do not.
    monkeypatch.setattr(kind, "is_custom_code", lambda self: number % 2 == 0, raising=False)
    keywords = {"config": config, "ignore_mismatched_sizes": True, "output_loading_info": True}
    model, report = kind.from_pretrained(tmp_path, **keywords)
    drawn = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    new, other = (kind(config).state_dict() for _ in range(2))
    for name, tensor in model.state_dict().items():
        assert tensor.double().abs().max() < 2**24, f"{name} was not drawn"
        if name in saved and name not in drawn:
            assert torch.equal(tensor, saved[name]), f"{name} was drawn again"
        elif torch.equal(new[name], other[name]):
            assert torch.equal(tensor, new[name]), f"{name} has other initial values"
        elif "_global." in name:  # longformer's
            assert torch.equal(tensor, saved[name.replace("_global", "")])


def test_frozen_projections_stay_frozen_after_loading(tmp_path):
    """transformers makes all loaded weights trainable."""
    for options in ({"projection": "random"}, {"freeze_projection": True}, {}):
        hf.LinformerRobertaForMaskedLM(hf.LinformerRobertaConfig(**SMALL, **options)).save_pretrained(tmp_path)
        loaded = hf.LinformerRobertaForSequenceClassification.from_pretrained(tmp_path)
        for name, parameter in loaded.named_parameters():
            assert parameter.requires_grad == (not options or "_projection" not in name)


@pytest.fixture(scope="module")
def checkpoint(vocabulary, tmp_path_factory):
    """A pretrained Linformer without dropout."""
    options = {"projected_length": 5, "adaptive_length": True, "dropout": 0.0, "attention_dropout": 0.0}
    return write_pretrained(tmp_path_factory.mktemp("pretrained") / "run", vocabulary, **options)


@pytest.fixture(scope="module")
def exported(checkpoint):
    export(checkpoint, checkpoint.parents[1] / "out")
    return checkpoint.parents[1] / "out"


@torch.no_grad()
def test_logits_at_every_length(checkpoint, exported):
    hub, model = hub_of(checkpoint), AutoModelForMaskedLM.from_pretrained(exported).eval()
    for tokens in (rows(), rows()[:1, :1], rows()[:1, :7]):
        expected, real = hub.model(tokens)[0], tokens.ne(1)
        for mask in (real.long(), None):
            logits = model(tokens, attention_mask=mask).logits
            torch.testing.assert_close(logits[real], expected[real], rtol=1e-5, atol=1e-5)


def test_saved_again_by_the_package(exported, tmp_path):
    """The code is saved with the configuration. Options that are None in the checkpoint can be set."""
    model = AutoModelForMaskedLM.from_pretrained(exported)
    model.save_pretrained(tmp_path / "model")
    model.config.save_pretrained(tmp_path / "configuration")
    codes = [
        {path.name: path.read_text() for path in folder.glob("*.py")}
        for folder in (exported, tmp_path / "model", tmp_path / "configuration")
    ]
    assert len(codes[0]) == 2 and codes[1:] == [codes[0], codes[0]]
    assert AutoConfig.from_pretrained(exported, linformer_window=4).linformer_window == 4
    model = AutoModelForMaskedLM.from_pretrained(exported, linformer_class_token=True)
    assert all(layer.self_attn.class_token for layer in model.linformer_roberta.layers)


@torch.no_grad()
def test_a_shared_module_is_replaced_under_all_its_names():
    """PEFT does this for modules_to_save."""
    model = hf.LinformerRobertaModel(hf.LinformerRobertaConfig(**SMALL, sharing="layerwise")).eval()
    first, last = (layer.self_attn for layer in model.layers)
    first.key_projection = other = copy.deepcopy(first.key_projection)
    other.weight.normal_()
    model(torch.full((1, 5), 7))
    assert first.value_projection is last.key_projection is last.value_projection is other


def test_what_cannot_be_exported_is_rejected(vocabulary, tmp_path, monkeypatch):
    checkpoint = write_fine_tuned(tmp_path / "a", vocabulary, "single-label", truncation="head-tail")
    (remark,) = export(checkpoint, tmp_path / "out")
    assert remark in (tmp_path / "out" / "README.md").read_text()
    data = shutil.copytree(tmp_path / "a-data", tmp_path / "other")
    for dictionary in (data / "dict.txt", data / "input0/dict.txt"):
        dictionary.write_text(dictionary.read_text() + "new 1\n")
    with pytest.raises(UserError, match="embed_tokens"):
        export(checkpoint, tmp_path / "new", data)
    # The data may have been prepared again with other classes.
    labels = {"classes": ["bad", "neither", "well"], "scale": 1.0}
    torch.save({**torch.load(checkpoint, weights_only=True), "task_state": {"labels": labels}}, checkpoint)
    with pytest.raises(UserError, match="classes"):
        export(checkpoint, tmp_path / "new")
    options = {"spectral_norm_classification_head": True}
    checkpoint = write_fine_tuned(tmp_path / "b", vocabulary, "single-label", options=options)
    with pytest.raises(UserError, match="spectral_norm_classification_head"):
        export(checkpoint, tmp_path / "new")
    checkpoint = write_pretrained(tmp_path / "run", vocabulary)
    with no_space(300_000), pytest.raises(OSError, match="File too large"):  # tokenizer.json is the largest file here
        export(checkpoint, tmp_path / "new")
    monkeypatch.setattr(hf.LinformerRobertaModel, "embed", lambda self, *inputs: 0.5 + torch.zeros(2, N, 12))
    with pytest.raises(RuntimeError, match="outputs differ"):
        export(checkpoint, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_new_model_has_the_initial_values_of_fairseq():
    """transformers initializes weights in its own order."""
    sizes = SMALL | {"max_positions": 64, "projected_length": 8}
    model = hf.LinformerRobertaForMaskedLM(hf.LinformerRobertaConfig(**sizes))
    attention = model.linformer_roberta.layers[-1].self_attn
    projection, means = attention.key_projection, torch.eye(8).repeat_interleave(8, dim=1) / 8
    assert projection.multiplier == 16 / (4 * 64), "d / 4n"
    assert 0 < (projection.multiplier * projection.weight - means).abs().max() < 0.02
    assert 0.015 < attention.q_proj.weight.std() < 0.025 and attention.q_proj.bias.eq(0).all()
    config = hf.LinformerRobertaConfig(**SMALL, attention="longformer", longformer_window=4, longformer_global_tokens=1)
    attention = hf.LinformerRobertaForMaskedLM(config).linformer_roberta.layers[-1].self_attn
    assert torch.equal(attention.q_proj.weight, attention.q_proj_global.weight)


def test_options_that_cannot_work_are_rejected():
    for options in (
        {"projected_length": 16},
        {"linformer_window": 4, "attention": "softmax"},
        {"projection": "silu"},
        {"linformer_fetch": 8, "linformer_window": 4},  # in exports of earlier versions
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            hf.LinformerRobertaModel(hf.LinformerRobertaConfig(**{**SMALL, **options}))


@pytest.fixture(scope="module")
def model():
    return hf.LinformerRobertaModel(hf.LinformerRobertaConfig(**SMALL)).eval()


def test_wrong_input_is_rejected(model):
    tokens = rows()
    for inputs, name in (
        ({"input_ids": torch.zeros(1, 16, dtype=torch.long)}, "max_positions=15"),
        ({"input_ids": tokens, "attention_mask": tokens.flip(1).ne(1)}, "attention_mask"),
        ({"input_ids": tokens.flip(1)}, "input_ids"),
        ({"input_ids": tokens, "attention_mask": torch.ones(2, 14)}, "attention_mask"),
        ({"inputs_embeds": torch.zeros(15, 16)}, "inputs_embeds"),
        ({"input_ids": tokens, "position_ids": torch.arange(N).unsqueeze(0) % 8}, "position_ids"),
        ({"input_ids": tokens, "head_mask": torch.ones(1, 12)}, "head_mask"),
        ({"input_ids": tokens, "output_attentions": True}, "output_attentions=True"),
        ({}, "input_ids or inputs_embeds"),
        ({"input_ids": tokens, "inputs_embeds": torch.zeros(2, 15, 16)}, "input_ids or inputs_embeds"),
    ):
        with pytest.raises(ValueError, match=name):
            model(**inputs)


@torch.no_grad()
def test_hidden_states_embeddings_and_tuples(model):
    tokens, mask = rows(), rows().ne(1).long()
    whole = model(tokens, attention_mask=mask, output_hidden_states=True)
    assert len(whole.hidden_states) == 3
    assert torch.equal(whole.hidden_states[-1], whole.last_hidden_state)
    (alone,) = model(tokens, attention_mask=mask, return_dict=False)
    assert torch.equal(alone, whole.last_hidden_state)
    embedded = model(inputs_embeds=model.embed_tokens(tokens), attention_mask=mask).last_hidden_state
    torch.testing.assert_close(embedded, alone)


@torch.no_grad()
def test_arguments_of_other_encoders_have_no_effect(model):
    """PEFT passes output_attentions in each call."""
    hf.LinformerRobertaModel(model.config, add_pooling_layer=False)
    hf.LinformerRobertaModel(hf.LinformerRobertaConfig(**SMALL, layer_norm_eps=1.0))  # as in tests of transformers
    ignored = {"token_type_ids": torch.zeros_like(rows()), "head_mask": None, "use_cache": False}
    positions = torch.arange(N).expand(2, -1)
    for position_ids in (positions, (positions + 2).masked_fill(rows().eq(1), 1)):  # BERT's and RoBERTa's
        output = model(rows(), position_ids=position_ids, output_attentions=False, **ignored).last_hidden_state
        assert torch.equal(output, model(rows()).last_hidden_state)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    assert sizes.items() <= model.config.to_dict().items() and not sizes.keys() & model.config.to_diff_dict().keys()


def test_heads_for_spans_and_choices_are_initialized_at_load(tmp_path):
    hf.LinformerRobertaForMaskedLM(hf.LinformerRobertaConfig(**SMALL)).save_pretrained(tmp_path)
    report = {"output_loading_info": True}
    spans, missing = hf.LinformerRobertaForQuestionAnswering.from_pretrained(tmp_path, **report)
    assert {*missing["missing_keys"]} == {"qa_outputs.weight", "qa_outputs.bias"}
    starts, ends = torch.tensor([[2, 3], [4, N + 1]])  # one end was cut off
    output = spans(rows(), start_positions=starts, end_positions=ends)
    losses = F.cross_entropy(output.start_logits, starts) + F.cross_entropy(output.end_logits[:1], ends[:1])
    torch.testing.assert_close(output.loss, losses / 2)
    choices, missing = hf.LinformerRobertaForMultipleChoice.from_pretrained(tmp_path, **report)
    assert {name.split(".")[0] for name in missing["missing_keys"]} == {"classifier"}
    texts, labels = torch.stack([rows(), rows().flip(0), rows()], dim=1), torch.tensor([2, 0])
    loss, logits = choices(texts, texts.ne(1).long(), labels=labels, return_dict=False)
    torch.testing.assert_close(logits[0], logits[1, [1, 0, 1]])
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels))


@torch.no_grad()
def test_the_whole_model_is_one_graph_for_every_length():
    config = hf.LinformerRobertaConfig(**{**SMALL, "encoder_layers": 1})
    model = hf.LinformerRobertaForMaskedLM(config).eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for number, length in enumerate((11, 7, 13)):
        tokens = rows()[:, :length]
        mask = tokens.ne(1).long()
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            logits = compiled(tokens, attention_mask=mask).logits
        expected = model(tokens, attention_mask=mask).logits
        torch.testing.assert_close(logits[tokens.ne(1)], expected[tokens.ne(1)])


@pytest.mark.parametrize("options", [{}, {"projection": "attention-pool", "value_residual": True}], ids=title)
@torch.no_grad()
def test_weights_may_be_offloaded(options):
    """accelerate loads the weights of a module when it is called; between calls it has none."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    model = hf.LinformerRobertaForMaskedLM(hf.LinformerRobertaConfig(**SMALL, **options)).eval()
    for weight in model.parameters():  # some are initially zero
        weight.normal_(0, 0.5)
    texts = rows(), rows()[:, :3]
    expected = [model(tokens).logits for tokens in texts]
    accelerate.cpu_offload(model, execution_device="cpu")
    for tokens, logits in zip(texts, expected, strict=True):
        torch.testing.assert_close(model(tokens).logits, logits)


@pytest.mark.slow
def test_transformers_uses_a_folder_without_fairseq(vocabulary, tmp_path):
    """A process without fairseq and without this package loads and trains the model."""
    checkpoint = write_fine_tuned(tmp_path / "run", vocabulary, "token-label", options={"sharing": "layerwise"})
    write_reference(checkpoint, tmp_path / "out")
    program = "import sys, runpy; sys.modules.update(fairseq=None, fairseq_linformer=None); sys.path.pop(0)\n"
    program += "sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT / "tests/hf/check_exported.py"), str(tmp_path / "out")],
        cwd=tmp_path,
        env={"HF_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("1 folders\n")


@pytest.mark.slow
def test_trainer_of_transformers_fine_tunes_an_export_and_saves_it(exported, tmp_path):
    """Texts of different lengths, gradient checkpointing, and the best checkpoint loaded at the end."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

    trusted = {"trust_remote_code": True}
    tokenizer = AutoTokenizer.from_pretrained(exported, **trusted)
    texts = ["the old dog barks", "the cat", "a small bird sings today", "the fish"] * 4
    data = [{**tokenizer(text, truncation=True), "labels": int("the" in text)} for text in texts]
    model = AutoModelForSequenceClassification.from_pretrained(exported, num_labels=2, **trusted)
    options = {"num_train_epochs": 3, "per_device_train_batch_size": 2, "learning_rate": 5e-3, "use_cpu": True}
    options |= {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True, "report_to": []}
    arguments = TrainingArguments(tmp_path / "trained", gradient_checkpointing=True, disable_tqdm=True, **options)
    collate = DataCollatorWithPadding(tokenizer)
    trainer = Trainer(model, arguments, collate, train_dataset=data, eval_dataset=data, processing_class=tokenizer)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < 0.8 * before
    trainer.save_model(tmp_path / "saved")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", **trusted)
    batch = collate([{name: row[name] for name in ("input_ids", "attention_mask")} for row in data[:4]])
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(**batch).logits, trainer.model.eval()(**batch).logits)


def mean_squared_error(logits, labels):
    return F.mse_loss(logits.squeeze(1), labels)


FIRST_ONLY = [[-100, 1, -100, -100], [-100, 2, -100, -100], [-100, 1, -100, -100]]
CLASSIFIER = hf.LinformerRobertaForSequenceClassification
HEADS = {  # class, number of labels, labels, loss
    "masked LM": (hf.LinformerRobertaForMaskedLM, 2, [[1, 5, 7, 2], *FIRST_ONLY], F.cross_entropy),
    "token-label": (hf.LinformerRobertaForTokenClassification, 3, [[1, 0, 0, 2], *FIRST_ONLY], F.cross_entropy),
    "single_label_classification": (CLASSIFIER, 3, [0, 1, 2, 0], F.cross_entropy),
    "multi_label_classification": (
        *(CLASSIFIER, 2, [[1.0, 0.0], *[[0.0, 1.0]] * 3]),
        F.binary_cross_entropy_with_logits,
    ),
    "regression": (CLASSIFIER, 1, [0.5, 3.0, 1.0, 0.0], mean_squared_error),
}


@pytest.mark.parametrize("head", HEADS)
def test_losses(head):
    """Four microbatches of one sequence have the loss of one batch; only scores are scaled."""
    model_class, classes, labels, loss = HEADS[head]
    model = model_class(hf.LinformerRobertaConfig(**SMALL, num_labels=classes, score_scale=5.0)).eval()
    assert model.accepts_loss_kwargs, "Trainer passes the number of labels"
    tokens, labels = torch.tensor([[0, 5 + row, 7, 2] for row in range(4)]), torch.tensor(labels)
    output = model(tokens, labels=labels)
    logits = output.logits.flatten(0, 1) if output.logits.dim() == 3 else output.logits
    torch.testing.assert_close(output.loss, loss(logits, labels.flatten() if output.logits.dim() == 3 else labels))
    parts = [
        model(tokens[row : row + 1], labels=labels[row : row + 1], num_items_in_batch=labels.ne(-100).sum()).loss
        for row in range(4)
    ]
    torch.testing.assert_close(sum(parts), output.loss)
    if model_class is CLASSIFIER:
        assert model.config.problem_type == head
        model.config.score_scale = 1.0
        torch.testing.assert_close(output.logits, model(tokens).logits * (5 if head == "regression" else 1))
