"""Checkpoints of small models with random weights, pretrained or fine-tuned, and what the export made of them."""

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.attention.linformer import ProjectedAttention
from fairseq_linformer.data.dictionaries import DICTIONARY_FILE
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.prepare.vocabulary_training import train_sentencepiece
from fairseq_linformer.data.subword_models import load_tokenizer
from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.data.tokenizer import SentencePieceTokenizer
from fairseq_linformer.model.roberta import LinformerRobertaModel
from fairseq_linformer.training.masked_lm_options import DynamicMaskedLMConfig
from fairseq_linformer.training.text_prediction import TextPredictionConfig
from tests.helpers.inputs import sentences
from tests.helpers.models import MODERN

N = 15
SIZES = {"encoder_layers": 2, "encoder_embed_dim": 12, "encoder_ffn_embed_dim": 20, "encoder_attention_heads": 3}
HEAD = "sentence_classification_head"

LABELS = {
    "single-label": ["good", "bad", "neither"],
    "multi-label": [("good", "bad"), ("bad",), ()],
    "regression": ["0", "2.5", "5"],
    "token-label": [("O",), ("B-PER",), ("I-PER",)],
}


MECHANISMS = [
    {
        "attention": name,
        **({} if kind.HAS_WEIGHTS else {"attention_dropout": 0.0}),
        **({"projected_length": 5} if issubclass(kind, ProjectedAttention) else {}),
        **options,
    }
    for name, kind in ATTENTIONS.items()
    for options in kind.Options.TEST_CASES
]
PROJECTIONS = [
    {"sharing": "none", "projection_multiplier": 0.1, "adaptive_length": True, "projected_length": "3,6"},
    {"sharing": "headwise", "freeze_projection": True},
    {"sharing": "layerwise", "projection": "random"},
    {"sharing": "key-value", "projection": "conv", "local_conv": 3, "encoder_normalize_before": True},
    {"projection": "mean-pool", "adaptive_length": True},
    {"projection": "max-pool", "gated_ffn": True, "activation_fn": "gelu_accurate"},
    {"projection": "attention-pool"},
]
WINDOW = {"linformer_window": 4, "linformer_block": 2, "linformer_sinks": 1}
LAYERS = [
    {"sharing": "layerwise", "untie_weights_roberta": True, "layernorm_embedding": False},
    {"attention": "softmax", "value_residual": True, "activation_fn": "relu"},
    {"attention": "softmax", "untie_weights_roberta": True},
    {"attention": "softmax", "positions": "rotary", "rotary_base": 20.0, "rotary_share": 0.5},
    {"attention": "longformer", "longformer_window": 4, "positions": "alibi", "attention_bias": False},
    {**MODERN, "alternating_first": 1, "alternating_every": 2},
    {**MODERN, "alternating_full": "linformer", "projection": "split-pool", "linformer_window": 4},
    {"sharing": "headwise", "linformer_class_token": True, "value_residual": True},
    {"projection": "split-pool", "value_residual": True, "encoder_normalize_before": True, **WINDOW},
]
VARIANTS = [*MECHANISMS, *({"projected_length": 5, **options} for options in (*PROJECTIONS, *LAYERS))]


def write_vocabulary(folder: Path) -> Path:
    """A folder of a subword model and its dictionary, as preparation writes them."""
    train_sentencepiece(sentences(300, seed=1).splitlines(), folder / "spm.model", 286, threads=1)
    tokenizer = SentencePieceTokenizer(folder / "spm.model")
    tokenizer.save(folder)
    tokenizer.dictionary.save(str(folder / DICTIONARY_FILE))
    return folder


def write_pretrained(folder: Path, vocabulary: Path, **options) -> Path:
    """A checkpoint of masked language modelling."""
    task = DynamicMaskedLMConfig(data=str(vocabulary), tokens_per_sample=N)
    return _write(folder, vocabulary, task, "dynamic_masked_lm", options)


def write_fine_tuned(
    folder: Path, vocabulary: Path, kind: str, pairs: bool = False, scale=1.0, options=(), **task
) -> Path:
    """A checkpoint of a task of that kind, whose data is prepared in a folder beside it."""
    words = ["the dog sees", "a house", "cats"]
    rows = [
        Example(tuple(text.split()[:1]) if kind == "token-label" else text, label, "it runs" if pairs else None)
        for text, label in zip(words, LABELS[kind], strict=True)
    ]
    data = folder.with_name(folder.name + "-data")
    record = own_task("own", kind, scale=scale)
    write_labelled(data, record, {"train": rows, "valid": rows}, load_tokenizer(vocabulary))
    classes = 1 if kind == "regression" else len({name for labels in LABELS[kind] for name in _names(labels)})
    settings = {"kind": kind, "num_classes": classes, "regression_target": kind == "regression"}
    settings |= {"init_token": 0, "separator_token": 2, "max_positions": N, **task}
    config = TextPredictionConfig(data=str(data), **settings)
    return _write(folder, vocabulary, config, "text_prediction", dict(options), classes)


def _names(labels):
    return (labels,) if isinstance(labels, str) else labels


@cache
def _defaults() -> dict:
    """The default configuration of fairseq, which takes long to make."""
    return OmegaConf.to_container(OmegaConf.structured(FairseqConfig), resolve=True, enum_to_str=True)


def _write(folder, vocabulary, task, name, options, classes=0) -> Path:
    """The checkpoint's file; weights are larger than at the start of a training, so that attention is not uniform."""
    dictionary = load_tokenizer(vocabulary).dictionary
    dictionary.add_symbol("<mask>")
    cfg = {
        **_defaults(),
        "task": {**OmegaConf.to_container(OmegaConf.structured(task), enum_to_str=True), "_name": name},
    }
    cfg["model"] = {"_name": "linformer_roberta", **SIZES, "max_positions": N, **options}
    cfg["criterion"] = {"_name": "masked_lm", "tpu": False, "classification_head_name": HEAD}
    torch.manual_seed(0)
    owner = SimpleNamespace(source_dictionary=dictionary, max_positions=lambda: N)
    model = LinformerRobertaModel.build_model(OmegaConf.create(cfg["model"]), owner)
    if classes:
        model.register_classification_head(HEAD, num_classes=classes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(5)
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 7}
    folder.mkdir(parents=True)
    state = {
        "args": None,
        "cfg": OmegaConf.to_container(OmegaConf.create(cfg), resolve=True),
        "model": model.state_dict(),
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": 3.0, "best": 3.0},
    }
    torch.save(state, folder / "checkpoint_best.pt")
    return folder / "checkpoint_best.pt"


def rows():
    """A full row and a padded one, of an odd number of tokens."""
    tokens = torch.randint(4, 30, (2, N), generator=torch.Generator().manual_seed(3))
    tokens[1, 8:] = 1
    return tokens


def hub_of(checkpoint):
    hub = LinformerRobertaModel.from_pretrained(str(checkpoint.parent), checkpoint.name)
    return hub.eval()


def write_reference(checkpoint: Path, out: Path) -> None:
    """Exports a checkpoint, and writes beside the export what fairseq computes."""
    from fairseq_linformer.hf.exporting import export  # here: nothing else in this module needs transformers

    export(checkpoint, out)
    hub = hub_of(checkpoint)
    named = {"classification_head_name": HEAD} if "truncation" in hub.task.cfg else {}
    logits = hub.model(rows(), **named)[0].detach()
    torch.save({"tokens": rows(), "logits": logits, "longest": N}, out / "reference.pt")
