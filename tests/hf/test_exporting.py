"""Exported folders beside fairseq: logits, names, the way back, and what a fine-tuned model carries with it."""

import copy
import json
import shutil
import subprocess
import sys

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    RobertaForMaskedLM,
)

from fairseq_linformer import hf
from fairseq_linformer.checkpoint import UNTRAINED, read_checkpoint
from fairseq_linformer.errors import UserError
from fairseq_linformer.finetune.prediction import Predictor
from fairseq_linformer.hf import exporting
from fairseq_linformer.hf.exporting import export
from fairseq_linformer.hf.importing import import_folder
from tests.helpers import ROOT
from tests.helpers.checkpoints import assert_same_weights
from tests.helpers.exports import (
    HEAD,
    LABELS,
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


@torch.no_grad()
def assert_same_logits(model, hub, **named):
    for tokens in (rows(), rows()[:1, :1], rows()[:1, :7]):
        expected, real = hub.model(tokens, **named)[0], tokens.ne(1)
        for mask in (real.long(), None):
            if mask is None and isinstance(model, RobertaForMaskedLM):
                continue  # which attends to padding, then
            found = model(tokens, attention_mask=mask).logits
            torch.testing.assert_close(
                *(out[real] if out.dim() == 3 else out for out in (found, expected)), rtol=1e-5, atol=1e-5
            )


def is_seldom(number, options):
    """Whether a later variant of the same mechanism sets the same options, and maybe more, to other values."""
    later = MECHANISMS[number + 1 :]
    return any(options["attention"] == own["attention"] and options.keys() <= own.keys() for own in later)


SELDOM = [options for number, options in enumerate(MECHANISMS) if is_seldom(number, options)]


@pytest.mark.parametrize(
    "options",
    [pytest.param(own, marks=[pytest.mark.exhaustive] * (own in SELDOM), id=title(own)) for own in VARIANTS],
)
def test_logits_are_fairseqs_and_weights_come_back_bit_for_bit(options, vocabulary, tmp_path):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, **options)
    export(checkpoint, tmp_path / "out")
    hub = hub_of(checkpoint)
    beside = {"activation_fn", "value_residual", "positions"}
    is_stock = options.get("attention") == "softmax" and not options.keys() & beside
    model, said = exporting._KINDS[None][is_stock].from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(said.values())
    assert bool(list((tmp_path / "out").glob("*.py"))) != is_stock, "which needs no code of ours"
    assert_same_logits(model.eval(), hub)
    model.save_pretrained(tmp_path / "again")  # as transformers stores it
    (tmp_path / "out" / "fairseq").rename(tmp_path / "again" / "fairseq")
    import_folder(tmp_path / "again", tmp_path / "back")
    assert_same_weights(checkpoint, tmp_path / "back" / UNTRAINED)
    assert_same_logits(model, hub_of(tmp_path / "back" / UNTRAINED))


@pytest.mark.parametrize(("kind", "pooling"), [(kind, "cls") for kind in LABELS] + [("single-label", "mean")])
@pytest.mark.parametrize("attention", ["linformer", "softmax"])
def test_a_fine_tuned_model_keeps_its_head_labels_and_length(kind, pooling, attention, vocabulary, tmp_path):
    scale = 5.0 if kind == "regression" else 1.0
    options = {"attention": attention, "classifier_pooling": pooling}
    checkpoint = write_fine_tuned(tmp_path / "run", vocabulary, kind, scale=scale, options=options, truncate_to=9)
    assert export(checkpoint, tmp_path / "out") == [exporting.OF_WORDS] * (kind == "token-label")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    problem = {"token-label": None, **{kind: f"{kind.replace('-', '_')}_classification" for kind in list(LABELS)[:2]}}
    assert config.get("problem_type") == problem.get(kind, "regression")
    assert ("sentence_transformers" in config) == (kind == "regression"), "whose CrossEncoder would bend scores"
    predictor = Predictor(checkpoint)
    assert tuple(config["id2label"].values()) == (predictor.labels or ("score",))
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_max_length"] == 9
    hub = hub_of(checkpoint)
    is_stock = (attention, pooling) == ("softmax", "cls") and kind in ("single-label", "multi-label")
    model = exporting._KINDS[kind][is_stock].from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        found = model(rows(), attention_mask=rows().ne(1).long()).logits
        expected = hub.model(rows(), classification_head_name=HEAD)[0] * scale
    real = model.words.begins[rows()] & rows().ne(1) if kind == "token-label" else slice(None)
    torch.testing.assert_close(found[real], expected[real], rtol=1e-5, atol=1e-5)
    assert import_folder(tmp_path / "out", tmp_path / "back") == []
    assert_same_weights(checkpoint, tmp_path / "back" / UNTRAINED)


def test_a_head_alone_brings_a_new_lm_head_back(vocabulary, tmp_path):
    """What transformers saves of a classifier has no LM head."""
    checkpoint = write_fine_tuned(tmp_path / "run", vocabulary, "single-label")
    export(checkpoint, tmp_path / "out")
    AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "again")
    (tmp_path / "out" / "fairseq").rename(tmp_path / "again" / "fairseq")
    assert import_folder(tmp_path / "again", tmp_path / "back") == ["it has no LM head: a new one was drawn"]
    assert_same_weights(checkpoint, tmp_path / "back" / UNTRAINED, but="lm_head.d")
    before, after = (read_checkpoint(path)["model"] for path in (checkpoint, tmp_path / "back" / UNTRAINED))
    assert not torch.equal(before["encoder.lm_head.dense.weight"], after["encoder.lm_head.dense.weight"])


SMALL = {"vocab_size": 40, "encoder_layers": 2, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32}
SMALL |= {"encoder_attention_heads": 4, "max_positions": N, "projected_length": 5}


@pytest.mark.parametrize("options", [*VARIANTS, {"attention": "rfa", "value_residual": True}], ids=title)
def test_what_a_checkpoint_lacks_starts_as_in_a_new_model(options, tmp_path, monkeypatch, request):
    sizes = {"vocab_size": 40, "max_positions": N, "attention_dropout": 0.0, **SIZES}
    softmax = hf.LinformerRobertaConfig(attention="softmax", **sizes)
    hf.LinformerRobertaForMaskedLM(softmax).save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    config = hf.LinformerRobertaConfig(**{"attention": "linformer", **options, **sizes})
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    torch.use_deterministic_algorithms(True)  # memory that was not written holds NaN and the largest integer
    for kind, skips in ((hf.LinformerRobertaForMaskedLM, True), (hf.LinformerRobertaForTokenClassification, False)):
        # Some versions of transformers skip modules of which everything was loaded, some do not.
        monkeypatch.setattr(kind, "is_custom_code", lambda self, skips=skips: skips, raising=False)
        keywords = {"config": config, "ignore_mismatched_sizes": True, "output_loading_info": True}
        model, report = kind.from_pretrained(tmp_path, **keywords)
        drawn = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
        new, other = (kind(config).state_dict() for _ in range(2))
        for name, tensor in model.state_dict().items():
            assert tensor.double().abs().max() < 2**24, f"{name} was not drawn"
            if name in saved and name not in drawn:
                assert torch.equal(tensor, saved[name]), f"{name} was drawn again"
            elif torch.equal(new[name], other[name]):
                assert torch.equal(tensor, new[name]), f"{name} starts in another way"
            elif "_global." in name:  # longformer's
                assert torch.equal(tensor, saved[name.replace("_global", "")])


@pytest.mark.parametrize("options", [{"projection": "random"}, {"freeze_projection": True}, {}], ids=title)
def test_what_is_not_to_be_trained_is_not_after_loading(options, tmp_path):
    """transformers lets every weight that it loads be trained."""
    hf.LinformerRobertaForMaskedLM(hf.LinformerRobertaConfig(**SMALL, **options)).save_pretrained(tmp_path)
    for model in (hf.LinformerRobertaForMaskedLM, hf.LinformerRobertaForSequenceClassification):
        loaded = model.from_pretrained(tmp_path)
        trained = {own.requires_grad for name, own in loaded.named_parameters() if "_projection" in name}
        assert trained == {not options}
    assert all(own.requires_grad for name, own in loaded.named_parameters() if "_projection" not in name)


def test_what_the_package_saves_again_has_its_code(vocabulary, tmp_path):
    """With the configuration, which transformers saves before it uploads what is in the folder."""
    export(write_pretrained(tmp_path / "run", vocabulary), tmp_path / "out")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    model.save_pretrained(tmp_path / "model")
    model.config.save_pretrained(tmp_path / "configuration")
    out, *again = (
        {path.name: path.read_text() for path in (tmp_path / name).glob("*.py")}
        for name in ("out", "model", "configuration")
    )
    assert len(out) == 2
    assert again == [out, out]


def test_options_that_the_checkpoint_leaves_open_can_be_given(vocabulary, tmp_path):
    export(write_pretrained(tmp_path / "run", vocabulary), tmp_path / "out")
    assert AutoConfig.from_pretrained(tmp_path / "out", linformer_window=4).linformer_window == 4
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", linformer_class_token=True)
    assert all(layer.self_attn.class_token for layer in model.linformer_roberta.layers)


@torch.no_grad()
def test_a_module_that_is_replaced_is_so_under_all_its_names():
    """As PEFT does for modules_to_save."""
    model = hf.LinformerRobertaModel(hf.LinformerRobertaConfig(**SMALL, sharing="layerwise")).eval()
    first, last = (layer.self_attn for layer in model.layers)
    first.key_projection = other = copy.deepcopy(first.key_projection)
    other.weight.normal_()
    model(torch.full((1, 5), 7))
    assert first.value_projection is last.key_projection is last.value_projection is other


def test_what_transformers_cannot_do_is_refused_or_said(vocabulary, tmp_path):
    checkpoint = write_fine_tuned(tmp_path / "a", vocabulary, "single-label", truncation="head-tail")
    (remark,) = export(checkpoint, tmp_path / "out")
    assert "head and tail of texts over 15 tokens" in remark
    assert remark in (tmp_path / "out" / "README.md").read_text()
    options = {"spectral_norm_classification_head": True}
    checkpoint = write_fine_tuned(tmp_path / "b", vocabulary, "single-label", options=options)
    with pytest.raises(UserError, match="spectral_norm_classification_head=true has no counterpart"):
        export(checkpoint, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_labels_other_than_the_checkpoints_are_refused(vocabulary, tmp_path):
    """The folder that it was trained on may be prepared again, with other classes."""
    checkpoint = write_fine_tuned(tmp_path / "run", vocabulary, "single-label")
    labels = {"classes": ["bad", "neither", "well"], "scale": 1.0}
    torch.save({**torch.load(checkpoint, weights_only=True), "task_state": {"labels": labels}}, checkpoint)
    with pytest.raises(UserError, match="classes"):
        export(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_data_that_does_not_fit_is_named(vocabulary, tmp_path):
    checkpoint = write_fine_tuned(tmp_path / "run", vocabulary, "single-label")
    data = shutil.copytree(tmp_path / "run-data", tmp_path / "other")
    for dictionary in (data / "dict.txt", data / "input0/dict.txt"):
        dictionary.write_text(dictionary.read_text() + "new 1\n")
    with pytest.raises(UserError, match=f"^{checkpoint} with the data in {data}: "):
        export(checkpoint, tmp_path / "out", data)
    with pytest.raises(FileNotFoundError, match=f"there is no folder {tmp_path}/none"):
        export(checkpoint, tmp_path / "out", tmp_path / "none")


def test_nothing_appears_where_the_outputs_differ(vocabulary, tmp_path, monkeypatch):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary)
    monkeypatch.setattr(hf.LinformerRobertaModel, "embed", lambda self, *rest: 0.5 + torch.zeros(2, N, 12))
    with pytest.raises(RuntimeError, match="outputs differ"):
        export(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_an_error_of_the_system(vocabulary, tmp_path):
    """tokenizers raises a plain Exception; tokenizer.json is the largest file here."""
    checkpoint = write_pretrained(tmp_path / "run", vocabulary)
    with no_space(300_000), pytest.raises(OSError, match="File too large"):
        export(checkpoint, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


@pytest.mark.parametrize("layers", [2, 12])
def test_a_new_model_starts_as_fairseqs(layers):
    """E as its options say, longformer's global maps as copies: transformers draws weights in an order of its own."""
    sizes = {"vocab_size": 50, "max_positions": 64, "encoder_layers": layers, "encoder_embed_dim": 12}
    sizes |= {"encoder_ffn_embed_dim": 20, "encoder_attention_heads": 3}
    model = hf.LinformerRobertaForMaskedLM(hf.LinformerRobertaConfig(**sizes, projected_length=8))
    attention = model.linformer_roberta.layers[-1].self_attn
    means = torch.eye(8).repeat_interleave(8, dim=1) / 8
    projection = attention.key_projection
    assert projection.multiplier == 12 / (4 * 64), "d / 4n"
    assert 0 < (projection.multiplier * projection.weight - means).abs().max() < 0.02
    assert 0.015 < attention.q_proj.weight.std() < 0.025
    assert attention.q_proj.bias.eq(0).all()
    config = hf.LinformerRobertaConfig(**sizes, attention="longformer", longformer_window=4, longformer_global_tokens=1)
    attention = hf.LinformerRobertaForMaskedLM(config).linformer_roberta.layers[-1].self_attn
    assert torch.equal(attention.q_proj.weight, attention.q_proj_global.weight)


def test_an_option_that_cannot_work_is_refused_by_name():
    for options, said in (
        ({"attention": "fast"}, "attention=fast is not known"),
        ({"projected_length": 600}, "projected_length=600 is not allowed"),
        ({"attention": "softmax", "linformer_window": 4}, r"linformer_window=\[4\] is not allowed"),
        *(({name: "silu"}, f"^{name}=silu ") for name in ("projection", "activation_fn", "pooler_activation_fn")),
    ):
        with pytest.raises(ValueError, match=said):
            hf.LinformerRobertaModel(hf.LinformerRobertaConfig(encoder_layers=1, **options))


@pytest.fixture(scope="module")
def model():
    config = hf.LinformerRobertaConfig(vocab_size=50, max_positions=N, projected_length=5, encoder_layers=1)
    return hf.LinformerRobertaModel(config).eval()


def test_wrong_input_is_refused_with_its_numbers(model):
    tokens = rows()
    for given, said in (
        ({"input_ids": torch.zeros(1, 16, dtype=torch.long)}, "16 tokens is longer than max_positions=15"),
        ({"input_ids": tokens, "attention_mask": tokens.flip(1).ne(1)}, "attention_mask: row 1 has padding before"),
        ({"input_ids": tokens.flip(1)}, "input_ids: row 1 has padding before a token"),
        ({"input_ids": torch.ones_like(tokens)}, "input_ids: row 0 has padding before a token, or no token"),
        ({"input_ids": tokens, "attention_mask": torch.ones(2, 14)}, r"\(2, 14\), it must be \(2, 15\)"),
        ({"input_ids": tokens[:, :0]}, r"input_ids has the shape \(2, 0\), it must be .* n at least 1"),
        ({"input_ids": tokens[0]}, r"input_ids has the shape \(15,\), it must be \(B, n\)"),
        ({"inputs_embeds": torch.zeros(15, 768)}, r"inputs_embeds has the shape \(15, 768\), it must be \(B, n, d\)"),
        ({"input_ids": tokens, "position_ids": torch.arange(N).unsqueeze(0) % 8}, "^position_ids="),
        ({"input_ids": tokens, "head_mask": torch.ones(1, 12)}, "^head_mask="),
        ({}, "give input_ids or inputs_embeds"),
        ({"input_ids": tokens, "inputs_embeds": torch.zeros(2, 15, 768)}, "give input_ids or inputs_embeds"),
    ):
        with pytest.raises(ValueError, match=said):
            model(**given)


@torch.no_grad()
def test_hidden_states_embeddings_and_tuples_are_as_in_transformers(model):
    tokens, mask = rows(), rows().ne(1).long()
    whole = model(tokens, attention_mask=mask, output_hidden_states=True)
    assert len(whole.hidden_states) == 2
    assert torch.equal(whole.hidden_states[-1], whole.last_hidden_state)
    (alone,) = model(tokens, attention_mask=mask, return_dict=False)
    assert torch.equal(alone, whole.last_hidden_state)
    embedded = model(inputs_embeds=model.embed_tokens(tokens), attention_mask=mask).last_hidden_state
    torch.testing.assert_close(embedded, alone)


@torch.no_grad()
def test_what_is_passed_to_any_encoder_is_taken_where_it_changes_nothing(model):
    hf.LinformerRobertaModel(model.config, add_pooling_layer=False)
    given = {"token_type_ids": torch.zeros_like(rows()), "head_mask": None, "use_cache": False}
    positions = torch.arange(N).expand(2, -1)
    for position_ids in (positions, (positions + 2).masked_fill(rows().eq(1), 1)):  # BERT's and RoBERTa's
        found = model(rows(), position_ids=position_ids, **given).last_hidden_state
        assert torch.equal(found, model(rows()).last_hidden_state)
    sizes = {"hidden_size": 768, "num_hidden_layers": 1, "num_attention_heads": 12}
    assert sizes.items() <= model.config.to_dict().items() and not sizes.keys() & model.config.to_diff_dict().keys()


def test_heads_for_spans_and_choices_are_drawn_at_load(tmp_path):
    hf.LinformerRobertaForMaskedLM(hf.LinformerRobertaConfig(**SMALL)).save_pretrained(tmp_path)
    report, cross_entropy = {"output_loading_info": True}, torch.nn.functional.cross_entropy
    spans, missing = hf.LinformerRobertaForQuestionAnswering.from_pretrained(tmp_path, **report)
    assert {*missing["missing_keys"]} == {"qa_outputs.weight", "qa_outputs.bias"}
    starts, ends = torch.tensor([[2, 3], [4, N + 1]])  # one end was cut off
    found = spans(rows(), start_positions=starts, end_positions=ends)
    losses = cross_entropy(found.start_logits, starts) + cross_entropy(found.end_logits[:1], ends[:1])
    torch.testing.assert_close(found.loss, losses / 2)
    choices, missing = hf.LinformerRobertaForMultipleChoice.from_pretrained(tmp_path, **report)
    assert {name.split(".")[0] for name in missing["missing_keys"]} == {"classifier"}
    texts, labels = torch.stack([rows(), rows().flip(0), rows()], dim=1), torch.tensor([2, 0])
    loss, logits = choices(texts, texts.ne(1).long(), labels=labels, return_dict=False)
    torch.testing.assert_close(logits[0], logits[1, [1, 0, 1]])
    torch.testing.assert_close(loss, cross_entropy(logits, labels))


@torch.no_grad()
def test_attention_matrices_are_refused_and_may_be_declined(model):
    """PEFT declines them by name in each call."""
    other = hf.LinformerRobertaForSequenceClassification(hf.LinformerRobertaConfig(**SMALL, output_attentions=True))
    for own in (model, other):
        own(input_ids=rows(), output_attentions=False)
        with pytest.raises(ValueError, match=r"^output_attentions=True is not allowed: it must be false; .* analyze"):
            own(input_ids=rows(), output_attentions=True)
    model(input_ids=rows(), output_attentions=None)
    with pytest.raises(ValueError, match=r"^output_attentions=True is not allowed"):
        other(input_ids=rows())


@pytest.mark.parametrize("options", [{}, {"projection": "split-pool", "linformer_window": 4}], ids=str)
@torch.no_grad()
def test_the_whole_model_is_one_graph_for_every_length(options):
    """Without breaks and without a new graph per length, padded or not."""
    model = hf.LinformerRobertaForMaskedLM(hf.LinformerRobertaConfig(**SMALL, **options)).eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for number, length in enumerate((11, 7, 13)):
        tokens = rows()[:, :length]
        mask = tokens.ne(1).long()
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            found = compiled(tokens, attention_mask=mask).logits
        expected = model(tokens, attention_mask=mask).logits
        torch.testing.assert_close(found[tokens.ne(1)], expected[tokens.ne(1)])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sharing": "none"},
        {"projection": "attention-pool"},
        {"projection": "attention-pool", "linformer_window": 4},
        {"projection": "attention-pool", "value_residual": True},
        {"linformer_class_token": True},
        {"attention": "softmax"},
    ],
    ids=title,
)
@torch.no_grad()
def test_weights_may_be_offloaded(options):
    """accelerate brings the weights of a module when it is called; between calls it has none."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    model = hf.LinformerRobertaForMaskedLM(hf.LinformerRobertaConfig(**SMALL, **options)).eval()
    for weight in model.parameters():  # some start at zero
        weight.normal_(0, 0.5)
    texts = rows(), rows()[:, :3]
    expected = [model(tokens).logits for tokens in texts]
    accelerate.cpu_offload(model, execution_device="cpu")
    for tokens, logits in zip(texts, expected, strict=True):
        torch.testing.assert_close(model(tokens).logits, logits)


@pytest.mark.parametrize("sharing", ["headwise", "key-value", "layerwise"])
def test_a_replica_of_data_parallel_has_its_own_projections(sharing, monkeypatch):
    """Those of the original are on another GPU. Here the weights of a replica are three times the original's."""
    model = hf.LinformerRobertaForMaskedLM(hf.LinformerRobertaConfig(**SMALL, sharing=sharing)).eval()
    replicating = sys.modules["torch.nn.parallel.replicate"]  # torch.nn.parallel names its function so, too

    def copied(tensors, devices, detach=False):
        return [[3 * tensor for tensor in tensors] for _ in devices]

    monkeypatch.setattr(replicating, "_broadcast_coalesced_reshape", copied)
    _, replica = replicating.replicate(model, [0, 1])
    found = replica(rows()).logits
    found.sum().backward()
    assert all(layer.self_attn.key_projection.weight.grad.any() for layer in model.linformer_roberta.layers)
    with torch.no_grad():
        for parameter in (*model.parameters(), *model.buffers()):
            parameter.mul_(3)
        torch.testing.assert_close(found, model(rows()).logits)


@pytest.mark.parametrize(
    ("labels", "count", "problem"),
    [
        (torch.tensor([1, 0]), 3, "single_label_classification"),
        (torch.tensor([[1.0, 0, 1], [0, 0, 0]]), 3, "multi_label_classification"),
        (torch.tensor([0.5, 2.0]), 1, "regression"),
    ],
)
def test_the_loss_follows_the_labels(labels, count, problem):
    config = hf.LinformerRobertaConfig(vocab_size=50, max_positions=N, encoder_layers=1, num_labels=count)
    model = hf.LinformerRobertaForSequenceClassification(config).eval()
    out = model(rows(), labels=labels)
    probabilities = out.logits.softmax(1)
    expected = {
        "single_label_classification": lambda: -probabilities[[0, 1], labels.long().flatten()[:2]].log().mean(),
        "multi_label_classification": lambda: torch.nn.BCEWithLogitsLoss()(out.logits, labels),
        "regression": lambda: (out.logits[:, 0] - labels).square().mean(),
    }
    torch.testing.assert_close(out.loss, expected[problem]())
    assert model.config.problem_type == problem


@pytest.mark.parametrize(
    ("count", "problem", "scale"),
    [
        (1, "regression", 5.0),
        (1, None, 5.0),
        (1, "multi_label_classification", 1.0),
        (3, "single_label_classification", 1.0),
        (3, None, 1.0),
    ],
)
@torch.no_grad()
def test_the_scale_is_of_scores_alone(count, problem, scale):
    """A model of scores that is trained for classes keeps the scale in its configuration."""
    options = {"num_labels": count, "problem_type": problem, "score_scale": 5.0}
    config = hf.LinformerRobertaConfig(vocab_size=50, max_positions=N, encoder_layers=1, **options)
    model = hf.LinformerRobertaForSequenceClassification(config).eval()
    found = model(rows()).logits
    config.score_scale = 1.0
    torch.testing.assert_close(found, scale * model(rows()).logits)


@pytest.mark.slow
def test_transformers_uses_the_folders_without_fairseq(vocabulary, tmp_path):
    """The code in the folder stands alone: a process without fairseq and without this package loads and trains it."""
    folders = [tmp_path / "1", tmp_path / "2"]
    write_reference(write_pretrained(tmp_path / "run", vocabulary, sharing="layerwise"), folders[0])
    write_reference(write_fine_tuned(tmp_path / "tuned", vocabulary, "multi-label"), folders[1])
    program = "import sys, runpy; sys.modules.update(fairseq=None, fairseq_linformer=None); sys.path.pop(0)\n"
    program += "sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    words = [ROOT / "tests/hf/check_exported.py", *folders]
    environment = {"HF_HOME": tmp_path / "cache", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        cwd=tmp_path,
        env={name: str(value) for name, value in environment.items()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("2 folders\n")


@pytest.mark.slow
def test_trainer_of_transformers_fine_tunes_an_export_and_saves_it(vocabulary, tmp_path):
    """Rows of different lengths, padded by the tokenizer; recomputation; the best checkpoint is loaded at the end."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

    export(write_pretrained(tmp_path / "run", vocabulary, projected_length=5, adaptive_length=True), tmp_path / "out")
    trusted = {"trust_remote_code": True}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", **trusted)
    texts = ["the old dog barks", "the cat", "a small bird sings today", "the fish"] * 8
    data = [{**tokenizer(text, truncation=True), "labels": int("the" in text)} for text in texts]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", num_labels=2, **trusted)
    options = {"num_train_epochs": 8, "per_device_train_batch_size": 4, "learning_rate": 5e-3, "use_cpu": True}
    options |= {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True, "report_to": []}
    arguments = TrainingArguments(tmp_path / "trained", gradient_checkpointing=True, disable_tqdm=True, **options)
    collate = DataCollatorWithPadding(tokenizer)
    trainer = Trainer(model, arguments, collate, train_dataset=data, eval_dataset=data, processing_class=tokenizer)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < 0.5 * before
    trainer.save_model(tmp_path / "saved")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", **trusted)
    batch = collate([{name: row[name] for name in ("input_ids", "attention_mask")} for row in data[:4]])
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(**batch).logits, trainer.model.eval()(**batch).logits)


FIRST_ALONE = [[-100, 1, -100, -100], [-100, 2, -100, -100], [-100, 1, -100, -100]]
HEADS = {
    "masked LM": (AutoModelForMaskedLM, {}, [[1, 5, 7, 2], *FIRST_ALONE]),
    "words": (AutoModelForTokenClassification, {"num_labels": 3}, [[1, 0, 0, 2], *FIRST_ALONE]),
    "class": (AutoModelForSequenceClassification, {"num_labels": 3}, [0, 1, 2, 0]),
    "classes": (AutoModelForSequenceClassification, {"num_labels": 3}, [[1.0, 0.0, 1.0], *[[0.0, 1.0, 0.0]] * 3]),
    "score": (AutoModelForSequenceClassification, {"num_labels": 1}, [0.5, 3.0, 1.0, 0.0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_the_parts_of_an_update_weigh_as_many_labels_as_they_have(vocabulary, tmp_path, head):
    """As with fairseq's update_freq: four parts of a row are one of four rows."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from transformers import Trainer, TrainingArguments

    export(write_pretrained(tmp_path / "run", vocabulary, dropout=0.0, attention_dropout=0.0), tmp_path / "out")
    kind, own, labels = HEADS[head]
    data = [{"input_ids": [0, 5 + row, 7, 2], "labels": label} for row, label in enumerate(labels)]
    logged = []
    for parts in (1, 4):
        torch.manual_seed(1)  # of a new head
        model = kind.from_pretrained(tmp_path / "out", trust_remote_code=True, pooler_dropout=0.0, **own)
        options = {"per_device_train_batch_size": 4 // parts, "gradient_accumulation_steps": parts, "max_steps": 1}
        options |= {"logging_steps": 1, "use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
        trainer = Trainer(model, TrainingArguments(tmp_path / "trained", **options), train_dataset=data)
        trainer.train()
        logged.append([trainer.state.log_history[0][name] for name in ("loss", "grad_norm")])
    assert logged[1] == pytest.approx(logged[0], rel=1e-5)
