"""Import of a folder of transformers as a checkpoint of fairseq: this package's models and published encoders."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase

from ..checkpoint import UNTRAINED
from ..checkpoint_files import check_plain
from ..data.dictionaries import DICTIONARY_FILE
from ..data.subword_models import ENCODER_FILE, MERGES_FILE, TOKENIZER_FILE, VOCABULARY_FILES, JsonTokenizer
from ..errors import UserError, check
from ..files import read_json, staged_folder
from ..model.architecture import PER_LAYER
from ..model.options import OPTIONS
from ..model.resolution import check_removed
from ..model.roberta import LinformerRobertaModel
from ..sentence_modules import encoder_folder, leaves_folder, read_sentence_modules
from ..training.untrained import masked_lm_dictionary, save_untrained, untrained_model
from . import LinformerRobertaConfig
from .exporting import WEIGHTS_FILE
from .published import (
    ENCODER,
    HEAD,
    HEAD_NAME,
    LINFORMER_NAMES,
    PUBLISHED,
    check_published,
    fairseq_names,
    published_options,
    published_state,
)
from .tokenizer import CONFIG_FILE, FAIRSEQ_FILES, FAIRSEQ_FOLDER, SAMPLE, SPECIAL, drop_line_normalizer

TOKEN_PARAMETERS = (f"{ENCODER}embed_tokens.weight", "encoder.lm_head.weight", "encoder.lm_head.bias")  # row per token
DRAWN = "it has no LM head: a new one was drawn"
VOCABULARIES = ("tokenizer.json", "vocab.txt", "merges.txt", "*.model")  # at least one is required
ROLES = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")  # <s>, <pad>, </s>, <unk>, <mask>


def import_folder(source: Path, out: Path) -> list[str]:
    """Write a masked language model, with its dictionary and subword model, as a checkpoint into a new folder.

    Args:
        source: folder of ``export``, of ``save_pretrained``, or of a published encoder.
        out: folder to make.

    Returns:
        Remarks on missing and omitted parts.

    Raises:
        FileNotFoundError: a file of the source is missing.
        UserError: the model is not supported, or `out` exists.
    """
    encoder = encoder_folder(source)
    if not (encoder / "config.json").is_file():
        raise FileNotFoundError(f"{source} has no config.json: name the folder of a model of transformers")
    config = _read_config(encoder)
    weights = _read_weights(encoder)
    with staged_folder(out, f"{UNTRAINED}.partial") as (folder, mark):
        options = _options(config)
        dictionary, order = _write_tokenizer(encoder, folder, config)
        state, remarks = _fairseq_state(weights, config, order)
        state, drawn = _complete(state, untrained_model(options, dictionary))
        modules, left_out = read_sentence_modules(source)
        inherited = {"sentence_modules": modules, "drawn_lm_head": drawn}
        save_untrained(folder, out.absolute(), dictionary, options, state, inherited)
        Path(mark.name).unlink()
    return [*([DRAWN] if drawn else []), *remarks, *left_out]


def _read_config(source: Path) -> PretrainedConfig:
    file = source / "config.json"
    content = read_json(file)
    check_plain(content, str(file))
    if content.get("model_type") != LinformerRobertaConfig.model_type:
        check_published(content, str(file))
    return AutoConfig.from_pretrained(source, trust_remote_code=False)


def _read_weights(source: Path) -> dict[str, Tensor]:
    index = source / f"{WEIGHTS_FILE}.index.json"
    files = {WEIGHTS_FILE}
    if index.is_file():
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    weights: dict[str, Tensor] = {}
    for name in sorted(files):
        if leaves_folder(name) or not (source / name).is_file():
            raise FileNotFoundError(f"{source} has no {name}: save the model with save_pretrained")
        weights |= load_file(source / name)
    return weights


def _options(config: PretrainedConfig) -> dict[str, Any]:
    if isinstance(config, LinformerRobertaConfig):
        check_removed(config.to_dict())
        options = {name: value for name, value in config.to_dict().items() if name in OPTIONS and value is not None}
        for name in options.keys() & PER_LAYER.keys():
            options[name] = str(options[name]).replace(" ", "")
    else:
        options = published_options(config)
    return {**options, "untie_weights_roberta": not config.tie_word_embeddings}


def _fairseq_state(
    weights: dict[str, Tensor], config: PretrainedConfig, order: list[int] | None
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the folder's parameters by their names in fairseq, and remarks on omitted ones.

    Args:
        weights: by their names in transformers.
        config: configuration of the folder.
        order: for each of our ids the id in the folder; None if they are equal.
    """
    if isinstance(config, LinformerRobertaConfig):
        if not any(name.startswith("linformer_roberta.") for name in weights):  # saved without a head
            weights = {f"linformer_roberta.{name}": tensor for name, tensor in weights.items()}
        names = fairseq_names(weights, LINFORMER_NAMES, HEAD_NAME)
        state = {fairseq_name: weights[hf_name] for hf_name, fairseq_name in names.items()}
        remarks = ["left out: qa_outputs"] if "qa_outputs.weight" in weights else []
    else:
        state, remarks = published_state(weights, config)
    if order is not None:
        state |= {name: state[name][order] for name in TOKEN_PARAMETERS if name in state}
    return state, remarks


def _complete(state: dict[str, Tensor], model: LinformerRobertaModel) -> tuple[dict[str, Tensor], bool]:
    """Return all parameters of the model, and True if `state` has no LM head and a new one is drawn."""
    parameters: dict[str, Tensor] = {}
    first_names: dict[int, str] = {}
    drawn = False
    for name, tensor in model.state_dict(keep_vars=True).items():
        source = first_names.setdefault(id(tensor), name)  # a shared tensor has one name in `state`
        if source in state:
            parameters[name] = state[source]
            shape, expected = tuple(parameters[name].shape), tuple(tensor.shape)
            check(f"the shape of {name}", shape, shape == expected, f"{expected} by config.json")
        elif name.startswith("encoder.lm_head."):
            parameters[name] = parameters.get(source, tensor.detach())
            drawn = True
        else:
            raise UserError(f"the folder's weights lack {name}, which its config.json requires")
    return parameters | {name: tensor for name, tensor in state.items() if name.startswith(HEAD)}, drawn


def _write_tokenizer(source: Path, folder: Path, config: PretrainedConfig) -> tuple[Dictionary, list[int] | None]:
    """Write dictionary and subword model; return the dictionary with <mask>, and `order` of ``_fairseq_state``."""
    order = None
    if (source / FAIRSEQ_FOLDER).is_dir():
        for file in sorted((source / FAIRSEQ_FOLDER).iterdir()):
            shutil.copyfile(file, folder / file.name)
    elif files := _encoded_files(source):
        for name, content in files.items():
            (folder / name).write_bytes(content)
    else:
        order = _convert_tokenizer(source, folder)
    dictionary, tokenizer = masked_lm_dictionary(folder), source / TOKENIZER_FILE
    added = read_json(tokenizer).get("added_tokens", []) if tokenizer.is_file() else []
    if order is None and all(token["id"] < len(dictionary) for token in added):
        order = [*range(len(dictionary))]  # omits rows of resize_token_embeddings(pad_to_multiple_of=…)
    # A published model may have more embeddings than its tokenizer has ids, as padding, but not twice as many.
    size, ids = config.vocab_size, len(dictionary) if order is None else max(order) + 1
    fits = ids == size if order is None else ids <= size <= 2 * len(order)
    check(f"{source}: vocab_size", size, fits, f"{ids}, the number of ids of its tokenizer in training")
    pad = 1 if order is None else order[1]
    after_padding = isinstance(config, LinformerRobertaConfig) or PUBLISHED[config.model_type].after_padding
    fits = config.pad_token_id == pad or not after_padding  # positions count from it
    check("pad_token_id", config.pad_token_id, fits, f"{pad}, as in its tokenizer")
    return dictionary, order


def _encoded_files(source: Path) -> dict[str, bytes]:
    """Return the files of the tokenizer in fairseq's format from its configuration, which transformers preserves."""
    file = source / CONFIG_FILE
    encoded = read_json(file).get(FAIRSEQ_FILES, {}) if file.is_file() else {}
    return {name: base64.b64decode(encoded[name], validate=True) for name in VOCABULARY_FILES if name in encoded}


def _convert_tokenizer(source: Path, folder: Path) -> list[int] | None:
    """Write a tokenizer of transformers in fairseq's format; return `order` of ``_fairseq_state``."""
    try:
        # Without a file transformers would create a tokenizer with special tokens only, for which all text is <unk>.
        if not any(any(source.glob(name)) for name in VOCABULARIES):
            raise FileNotFoundError(f"there is no {', '.join(VOCABULARIES)}")
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        content = json.loads(tokenizer.backend_tokenizer.to_str())
    except (OSError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{source}: its tokenizer cannot be read ({reason}): save it with save_pretrained") from error
    vocabulary = dict(content["model"].get("vocab", {})) if content["model"]["type"] == "BPE" else {}
    vocabulary |= {added["content"]: added["id"] for added in content["added_tokens"]}
    names = {number: piece for piece, number in vocabulary.items()}
    special = (*(names.get(number) for number in range(len(SPECIAL))), names.get(len(names) - 1))
    if special != (*SPECIAL, "<mask>") or len(content["added_tokens"]) > len(special) or not _is_gpt2(content):
        return write_json_tokenizer(tokenizer, source, folder)
    _write_gpt2(names, content["model"]["merges"], folder)
    return None


def _is_gpt2(content: dict[str, Any]) -> bool:
    """Return True for a tokenizer.json that fairseq's GPT-2 encoder reproduces."""
    split = content["pre_tokenizer"] or {}
    plain = split.get("type") == "ByteLevel" and not split.get("add_prefix_space") and split.get("use_regex", True)
    return content["model"]["type"] == "BPE" and plain and not content["normalizer"]


def _write_gpt2(names: dict[int, str], merges: list[Any], folder: Path) -> None:
    """Write the files of a byte-level BPE; encoder.json and dict.txt contain the ids of the folder."""
    ids = range(len(SPECIAL), len(names) - 1)
    encoder = {names[number]: number for number in ids}
    (folder / ENCODER_FILE).write_text(json.dumps(encoder), encoding="utf-8")
    lines = (merge if isinstance(merge, str) else " ".join(merge) for merge in merges)
    (folder / MERGES_FILE).write_text("\n".join(["#version: 0.2", *lines]) + "\n", encoding="utf-8")
    (folder / DICTIONARY_FILE).write_text("".join(f"{number} 0\n" for number in ids), encoding="utf-8")


def write_json_tokenizer(tokenizer: PreTrainedTokenizerBase, source: Path, folder: Path) -> list[int]:
    """Write tokenizer.json with fairseq's ids, special tokens 0 to 3 and last, and dict.txt.

    The tokenizer has a backend of the library tokenizers; `source` is its folder, for messages.

    Returns:
        For each new id the old one. Ids without a token are omitted.

    Raises:
        UserError: a special token is missing, two are the same, or ids would differ.
    """
    special = [getattr(tokenizer, f"{role}_id") for role in ROLES]
    tokens = ", ".join(f"{role}={getattr(tokenizer, role)}" for role in ROLES)
    check(f"{source}: tokenizer", tokens, None not in special and len({*special}) == 5, "one with five special tokens")
    backend = Tokenizer.from_str(json.dumps(drop_line_normalizer(json.loads(tokenizer.backend_tokenizer.to_str()))))
    backend.no_padding()
    backend.no_truncation()
    pieces = sorted({*backend.get_vocab(with_added_tokens=True).values()} - {*special})
    order = [*special[:-1], *pieces, special[-1]]
    content = _renumber(json.loads(backend.to_str()), order)
    (folder / TOKENIZER_FILE).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    renumbered = JsonTokenizer(folder / TOKENIZER_FILE)
    for line, ids in zip(SAMPLE, renumbered.encode(SAMPLE), strict=True):
        if not np.array_equal(np.array(order)[ids], backend.encode(line, add_special_tokens=False).ids):
            raise UserError(f"{source}: its tokenizer cannot be imported: {line!r} would have other ids")
    renumbered.dictionary.save(str(folder / DICTIONARY_FILE))
    return order


def _renumber(content: dict[str, Any], order: list[int]) -> dict[str, Any]:
    """Return the content of a tokenizer.json with new ids, changed in place; `order` has the old id of each."""
    new_ids = {old_id: new_id for new_id, old_id in enumerate(order)}
    model, added = content["model"], {token["content"]: token["id"] for token in content["added_tokens"]}
    if model["type"] == "Unigram":  # ids are positions; the lowest score keeps added tokens out of other text
        lowest = min(score for _, score in model["vocab"])
        pieces = {number: [name, lowest] for name, number in added.items()} | dict(enumerate(model["vocab"]))
        model["vocab"] = [pieces[old_id] for old_id in order]
        model["unk_id"] = None if model["unk_id"] is None else new_ids[model["unk_id"]]
    else:
        vocabulary = {**model["vocab"], **added}
        model["vocab"] = {name: new_ids[old_id] for name, old_id in vocabulary.items()}
    for token in content["added_tokens"]:
        token["id"] = new_ids[token["id"]]
    content["added_tokens"].sort(key=lambda token: token["id"])
    return content | {"post_processor": None}  # contains ids; exports write a new one
