"""ModernBERT, built at random by transformers: import compared with it, export as its own classes, conversion."""

import json
import pickle
import re
from functools import cache
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from fairseq_linformer.checkpoint import UNTRAINED
from fairseq_linformer.convert import convert
from fairseq_linformer.data.subword_models import load_tokenizer
from fairseq_linformer.errors import UserError
from fairseq_linformer.hf.exporting import export
from fairseq_linformer.hf.importing import import_folder
from tests.helpers.checkpoints import assert_same_weights
from tests.helpers.commands import continuing, run
from tests.helpers.exports import HEAD, hub_of, write_fine_tuned
from tests.helpers.inputs import TEXT, difficult, sentences
from tests.helpers.models import MODERN
from tests.helpers.stock import write_modules

N = 200
SMALL = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "num_hidden_layers": 5}
SMALL |= {"local_attention": 16, "max_position_embeddings": N}
LARGER = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 80, "num_hidden_layers": 4}
RELU = {"hidden_activation": "relu", "classifier_activation": "relu"}
SIMILAR = {"norm_bias": True, "attention_bias": True, "classifier_bias": True}
FULL_WIDTH = {"num_hidden_layers": 2, "max_position_embeddings": 8192}  # of ModernBERT-base: d = 768
MODELS = [
    ("ModernBertModel", {**SMALL, "global_attn_every_n_layers": 1}),
    ("ModernBertForMaskedLM", {**SMALL, "global_attn_every_n_layers": 2}),
    ("ModernBertForMaskedLM", SMALL),
    ("ModernBertForMaskedLM", {**SMALL, **LARGER, **SIMILAR, "local_attention": 128, "tie_word_embeddings": False}),
    ("ModernBertForSequenceClassification", {**SMALL, "num_labels": 3}),
    ("ModernBertForSequenceClassification", {**SMALL, "classifier_pooling": "mean", **RELU}),
    ("ModernBertForMaskedLM", FULL_WIDTH),
]
SPECIAL = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
SPECIAL |= {"mask_token": "[MASK]"}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of ModernBERT's kind: byte-level BPE of GPT-NeoX, with runs of spaces as added tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer, bpe.decoder = normalizers.NFC(), decoders.ByteLevel()
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet, first = pre_tokenizers.ByteLevel.alphabet(), ["<|endoftext|>", "<|padding|>"]
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=first, show_progress=False)
    bpe.train_from_iterator(TEXT, trainer)
    runs = [AddedToken(" " * width, normalized=True) for width in range(24, 1, -1)]
    bpe.add_tokens([*runs, AddedToken("|||EMAIL_ADDRESS|||", normalized=True)])
    names = [name for name in SPECIAL.values() if name != "[MASK]"]
    bpe.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    bpe.add_special_tokens([AddedToken("[MASK]", lstrip=True, normalized=False, special=True)])
    bpe.add_tokens([AddedToken(f"[unused{number}]", normalized=True) for number in range(3)])
    ends = [(name, bpe.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    bpe.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **SPECIAL)


def write_modernbert(folder: Path, kind: str = "ModernBertForMaskedLM", **options):
    """Write and return a model with random weights; its embeddings have more rows than there are tokens."""
    tokenizer().save_pretrained(folder)
    roles = {"pad_token_id": "pad_token", "bos_token_id": "cls_token", "eos_token_id": "sep_token"}
    ids = {name: tokenizer().convert_tokens_to_ids(SPECIAL[role]) for name, role in roles.items()}
    sizes = {"vocab_size": len(tokenizer()) + 8, **ids, **options}
    torch.manual_seed(0)
    model_class = getattr(transformers, kind)
    model = model_class(transformers.ModernBertConfig(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large enough that attention is not uniform
            parameter.add_(torch.randn_like(parameter) * 7 / sizes.get("hidden_size", 768))
    model.save_pretrained(folder)
    return model


def rows(lengths: tuple[int, ...], order: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids of random tokens of these lengths, padded, in this package and in transformers: (B, n) each."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.ones(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(4, len(order), (length,), generator=generator)
        ids[row, 0] = 0
    return ids, torch.tensor(order)[ids]


def order_of(folder: Path) -> list[int]:
    """Return the id in transformers of each id of an imported folder, by the names of the pieces."""
    names = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer().convert_tokens_to_ids(names.id_to_token(number)) for number in range(names.get_vocab_size())]


def assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare to 1e-5 of the largest number, as exports are compared."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


@torch.no_grad()
@pytest.mark.parametrize(("kind", "options"), MODELS)
def test_hidden_states_and_logits_equal_those_of_transformers(tmp_path, kind, options):
    """With and without padding, at lengths within the window and beyond it."""
    model = write_modernbert(tmp_path / "source", kind, **options)
    import_folder(tmp_path / "source", tmp_path / "in")
    hub, order = hub_of(tmp_path / "in" / UNTRAINED), order_of(tmp_path / "in")
    cases = [(8192,), (1, 130)] if options is FULL_WIDTH else [(1,), (N,), (N, 40, 1)]
    for lengths in cases:
        ids, hf_ids = rows(lengths, order)
        real, inputs = ids.ne(1), {"input_ids": hf_ids, "attention_mask": ids.ne(1).long()}
        expected = model.base_model(**inputs, output_hidden_states=True)
        features, extra = hub.model(ids, features_only=True, return_all_hiddens=True)
        states = [*(state.transpose(0, 1) for state in extra["inner_states"][:-1]), features]
        expected_states = [*expected.hidden_states[:-1], expected.last_hidden_state]
        for state, expected_state in zip(states, expected_states, strict=True):
            assert_equal(state[real], expected_state[real])
        if "MaskedLM" in kind:
            logits = model.decoder(model.head(expected.last_hidden_state[real]))
            assert_equal(hub.model.encoder.output_layer(features[real]), logits[:, order])
        if "Classification" in kind:
            assert_equal(hub.model(ids, classification_head_name=HEAD)[0], model(**inputs).logits)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"mlp_bias": True}, "mlp_bias"),
        ({"decoder_bias": False}, "decoder_bias"),
        ({"classifier_activation": "relu"}, "classifier_activation"),
        ({"layer_types": ["full_attention", "full_attention", *["sliding_attention"] * 3]}, "layer_types"),
    ],
)
def test_other_layers_are_rejected(tmp_path, changes, name):
    write_modernbert(tmp_path / "source", **SMALL)
    file = tmp_path / "source" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(UserError, match=name):
        import_folder(tmp_path / "source", tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_ids_of_two_thousand_difficult_texts(tmp_path):
    """Names of the five special tokens in a text are text, as in every imported tokenizer."""
    write_modernbert(tmp_path / "source", **SMALL)
    import_folder(tmp_path / "source", tmp_path / "in")
    imported, original = load_tokenizer(tmp_path / "in"), AutoTokenizer.from_pretrained(tmp_path / "source")
    order = order_of(tmp_path / "in")
    texts = difficult(2000)
    expected = original(texts, add_special_tokens=False)["input_ids"]
    for tokenizer in (imported, pickle.loads(pickle.dumps(imported))):
        assert [[order[number] for number in ids] for ids in tokenizer.encode(texts)] == expected
    (ids,) = imported.encode(["a [CLS][MASK] <|endoftext|>"])
    assert ids.min() > 3 and ids.max() < len(order) - 1, "none is special"


@torch.no_grad()
@pytest.mark.parametrize(("kind", "untied"), [("ModernBertForMaskedLM", True), ("ModernBertModel", False)])
def test_an_export_is_the_class_of_transformers_and_is_imported_again(tmp_path, kind, untied):
    """Pooling, normalisation and prompts of sentence-transformers are kept, as in encoders of Nomic and GTE."""
    options = {"global_rope_theta": 5000.0, "local_rope_theta": 300.0, "tie_word_embeddings": not untied}
    model = write_modernbert(tmp_path / "source", kind, **SMALL, **options)
    write_modules(tmp_path / "source")
    settings = '{"prompts": {"query": "search_query: "}, "default_prompt_name": null}'
    (tmp_path / "source" / "config_sentence_transformers.json").write_text(settings)
    import_folder(tmp_path / "source", tmp_path / "in")
    export(tmp_path / "in", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.py")), "no code"
    exported = getattr(transformers, kind).from_pretrained(tmp_path / "out").eval()
    order = order_of(tmp_path / "in")
    ids, hf_ids = rows((N,), order)
    outputs = exported(ids)[0], model(hf_ids)[0]
    assert_equal(outputs[0], outputs[1][..., order] if "MaskedLM" in kind else outputs[1])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [kind] and config["global_rope_theta"] == 5000, "of transformers 4, too"
    for name in ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "source" / name).read_text()
    AutoTokenizer.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "saved")
    exported.save_pretrained(tmp_path / "saved")  # without the folder fairseq
    for name in ("out", "saved"):
        import_folder(tmp_path / name, tmp_path / f"{name}-in")
        ignored = None if "MaskedLM" in kind else "lm_head"  # drawn
        assert_same_weights(tmp_path / "in" / UNTRAINED, tmp_path / f"{name}-in" / UNTRAINED, ignored)


@pytest.mark.parametrize(
    ("kind", "changes", "name"),
    [
        ("single-label", {}, "ModernBertForSequenceClassification"),
        ("multi-label", {"classifier_pooling": "mean"}, "ModernBertForSequenceClassification"),
        ("token-label", {}, "ModernBertForTokenClassification"),
        ("single-label", {"pooler_norm": False}, "LinformerRobertaForSequenceClassification"),
        ("single-label", {"alternating_first": 1}, "LinformerRobertaForSequenceClassification"),
    ],
)
def test_fine_tuned_classifiers(tmp_path, kind, changes, name):
    """The export itself compares logits with fairseq's."""
    write_modernbert(tmp_path / "source", **SMALL)
    import_folder(tmp_path / "source", tmp_path / "in")
    options = {**MODERN, "pooler_activation_fn": "gelu", "alternating_every": 2, **changes}
    checkpoint = write_fine_tuned(tmp_path / "run", tmp_path / "in", kind, options=options)
    export(checkpoint, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [name] and ("auto_map" in config) == name.startswith("Linformer")
    import_folder(tmp_path / "out", tmp_path / "back")
    ignored = "lm_head" if name.startswith("Modern") else None
    assert_same_weights(checkpoint, tmp_path / "back" / UNTRAINED, ignored)


@torch.no_grad()
def test_full_layers_become_local_windows_and_projected_keys(tmp_path):
    """With a mean for every token converted layers compute full attention. Layers with a window are copied."""
    write_modernbert(tmp_path / "source", **SMALL)
    import_folder(tmp_path / "source", tmp_path / "in")
    linear = ["model.alternating_full=linformer", "model.projection=mean-pool", "model.linformer_window=8"]
    for projected_length in (N, 20):
        out = tmp_path / f"k{projected_length}"
        result = convert(tmp_path / "source", out, [*linear, f"model.projected_length={projected_length}"])
        assert result.started.new == result.started.left_out == []
        layers = result.model.encoder.sentence_encoder.layers
        kinds = ["linformer", "longformer", "longformer", "linformer", "longformer"]
        assert [layer.self_attn.name for layer in layers] == kinds
        assert [layer.self_attn.rotary_base for layer in layers[:2]] == [160_000, 10_000]
    ids, _ = rows((N, 90), order_of(tmp_path / "in"))
    hubs = [hub_of(tmp_path / name / UNTRAINED) for name in ("in", f"k{N}")]
    assert_equal(*(hub.model(ids)[0][ids.ne(1)] for hub in hubs))
    export(tmp_path / "k20", tmp_path / "out")
    assert list((tmp_path / "out").glob("*.py")), "the class of this package, which the export compares with fairseq"


@pytest.mark.slow
def test_the_commands_of_the_page(tmp_path):
    """docs/modernbert.md: import, continue on a text, convert, continue with the original as the teacher, export."""
    write_modernbert(tmp_path / "tiny", **{**SMALL, "num_hidden_layers": 3, "max_position_embeddings": 64})
    for split, lines in (("train", 1200), ("valid", 200)):
        (tmp_path / f"{split}.txt").write_text(sentences(lines, seed=lines))
    run("linformer", "import", "tiny", "--out", "modernbert", cwd=tmp_path)
    files = ("--train", "train.txt", "--valid", "valid.txt", "--tokenizer", "modernbert", "--workers", 1)
    run("linformer", "prepare", "corpus", *files, "--out", "data", cwd=tmp_path)
    words = continuing("data", "recipe=tiny", "lr_scheduler.warmup_updates=20")
    continued = ("checkpoint.finetune_from_model=modernbert/checkpoint.pt", "checkpoint.save_dir=runs/mine")
    printed = run(*words, *continued, "optimization.max_update=200", "common.log_interval=50", cwd=tmp_path)
    losses = [float(loss) for loss in re.findall(r" loss=([\d.]+)", printed)]
    assert losses[-1] < 0.7 * losses[0]
    linear = ("model.alternating_full=linformer", "model.projection=split-pool", "model.linformer_window=16")
    run("linformer", "convert", "runs/mine", "--out", "linear", *linear, "model.projected_length=16", cwd=tmp_path)
    distilled = ("checkpoint.finetune_from_model=linear/checkpoint.pt", "checkpoint.save_dir=runs/linear")
    distilled += ("criterion=masked_lm_distillation", "criterion.teacher=runs/mine", "optimization.max_update=25")
    printed = run(*words, *distilled, "common.log_interval=5", cwd=tmp_path)
    assert "divergence=" in printed and "layer_error=" in printed
    trained = torch.load(tmp_path / "runs/linear/checkpoint_last.pt", weights_only=True)
    assert trained["cfg"]["task"]["tokens_per_sample"] == 64, "as long as the model"
    for folder, name in (("mine", "ModernBertForMaskedLM"), ("linear", "LinformerRobertaForMaskedLM")):
        run("linformer", "export", f"runs/{folder}", "--out", f"{folder}-out", cwd=tmp_path)
        assert json.loads((tmp_path / f"{folder}-out" / "config.json").read_text())["architectures"] == [name]
