"""Models as transformers saves them, without anything of ours."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the")]
SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
NAMES = ("bos_token", "pad_token", "eos_token", "unk_token")


def write_stock(folder: Path, kind=RobertaForMaskedLM, **options) -> Path:
    """A RoBERTa as transformers saves it, whose vocabulary has the order of roberta-base's."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*SPECIAL, *letters, *("".join(pair) for pair in MERGES), "madeupword0000", "<mask>"]
    bpe = models.BPE({piece: number for number, piece in enumerate(pieces)}, MERGES, unk_token="<unk>")
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    named = {**dict(zip(NAMES, SPECIAL, strict=True)), "mask_token": "<mask>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    sizes = {**SIZES, "max_position_embeddings": 18, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    config = RobertaConfig(vocab_size=len(pieces), **sizes, **options)
    torch.manual_seed(0)
    model = kind(config).eval()
    model.save_pretrained(folder)
    return model


def write_modules(folder: Path, *types: str) -> None:
    """Write the files of sentence-transformers beside an encoder, with further types of modules."""
    paths = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize", **{name: name for name in types}}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(paths.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": false}')
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": SIZES["hidden_size"], "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
