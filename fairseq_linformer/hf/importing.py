"""A folder of transformers as a checkpoint of fairseq, to train on from: models of ours, and stock RoBERTa."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from ..checkpoints.reading import UNTRAINED
from ..data.tokenizer import DICTIONARY_FILE, ENCODER_FILE, MERGES_FILE, SENTENCEPIECE_FILE
from ..errors import UserError, check
from ..model.architecture import PER_LAYER
from ..model.config import OPTIONS
from ..model.roberta import LinformerRobertaModel
from ..system.files import leaves_folder, staged_folder
from ..system.state import check_plain, read_state
from ..training.untrained import masked_lm_dictionary, save_untrained, untrained_model
from . import LinformerRobertaConfig
from .exporting import FAIRSEQ_FOLDER, WEIGHTS_FILE
from .names import FIRST_POSITION, HEAD, STOCK_CONSTANTS, STOCK_OPTIONS, fairseq_names
from .tokenizer import CONFIG_FILE, FAIRSEQ_FILES, SPECIAL

HEAD_NAME = "sentence_classification_head"  # what fairseq's tasks name it


def import_folder(source: Path, out: Path) -> list[str]:
    """Writes a checkpoint of masked language modelling, with its dictionary and subword model, into a new folder.

    Args:
        source: a folder of ours (``export``), of a model that transformers saved, or of a stock RoBERTa.
        out: the folder to make.

    Returns:
        What the source lacked, in words.

    Raises:
        FileNotFoundError: a file of the source is missing.
        UserError: it is of another model, or `out` is in the way.
    """
    if not (source / "config.json").is_file():
        raise FileNotFoundError(f"{source} is no folder of a model of transformers: it holds no config.json")
    config = _read_config(source)
    weights = _read_weights(source)
    with staged_folder(out.absolute(), f"{UNTRAINED}.partial") as (folder, mark):
        dictionary = _write_tokenizer(source, folder, config.vocab_size)
        options = _options(config)
        state, remarks = _state(weights, config, untrained_model(options, dictionary))
        save_untrained(folder, out.absolute(), dictionary, options, state)
        Path(mark.name).unlink()
    return remarks


def _is_stock(config: PretrainedConfig) -> bool:
    return not isinstance(config, LinformerRobertaConfig)


def _read_config(source: Path) -> PretrainedConfig:
    file = source / "config.json"
    content = read_state(file, dict[str, Any])
    check_plain(content, str(file))
    named, known = content.get("model_type"), (LinformerRobertaConfig.model_type, "roberta")
    check("model_type", named, named in known, f"{' or '.join(known)}, in {file}")
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    for name, wanted in STOCK_CONSTANTS.items() if _is_stock(config) else [("pad_token_id", 1)]:
        found = getattr(config, name)
        check(name, found, found == wanted, f"{wanted}, as in fairseq")
    return config


def _read_weights(source: Path) -> dict[str, Tensor]:
    index = source / f"{WEIGHTS_FILE}.index.json"
    files = {WEIGHTS_FILE}
    if index.is_file():
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    weights: dict[str, Tensor] = {}
    for name in sorted(files):
        if leaves_folder(name) or not (source / name).is_file():
            raise FileNotFoundError(f"{source} holds no {name}: transformers writes it with save_pretrained")
        weights |= load_file(source / name)
    return weights


def _options(config: PretrainedConfig) -> dict[str, Any]:
    """The options of the model."""
    if not _is_stock(config):
        options = {name: value for name, value in config.to_dict().items() if name in OPTIONS and value is not None}
        for name in options.keys() & PER_LAYER.keys():
            options[name] = str(options[name]).replace(" ", "")
    else:
        options = {ours: getattr(config, theirs) for ours, theirs in STOCK_OPTIONS.items()}
        options |= {"attention": "softmax", "max_positions": config.max_position_embeddings - FIRST_POSITION}
    return {**options, "untie_weights_roberta": not config.tie_word_embeddings}


def _state(
    weights: dict[str, Tensor], config: PretrainedConfig, model: LinformerRobertaModel
) -> tuple[dict[str, Tensor], list[str]]:
    """The parameters by their names in fairseq, and what was missing."""
    prefix = "roberta." if _is_stock(config) else "linformer_roberta."
    if not any(name.startswith(prefix) for name in weights):  # saved without a head
        weights = {prefix + name: tensor for name, tensor in weights.items()}
    if _is_stock(config):
        _fold_in_types(weights)
    names = fairseq_names(weights, _is_stock(config), HEAD_NAME)
    given = {ours: weights[theirs] for theirs, ours in names.items()}
    state: dict[str, Tensor] = {}
    first: dict[int, str] = {}
    drawn = False
    for name, tensor in model.state_dict(keep_vars=True).items():
        source = first.setdefault(id(tensor), name)  # a tensor may have several names in fairseq, and has one here
        if source in given:
            state[name] = given[source]
        elif name.startswith("encoder.lm_head."):
            state[name] = state.get(source, tensor.detach())
            drawn = True
        else:
            raise UserError(f"the folder's weights lack {name}, which its config.json asks for")
    state |= {name: tensor for name, tensor in given.items() if name.startswith(HEAD)}
    return state, ["it has no LM head: a new one was drawn"] if drawn else []


def _fold_in_types(weights: dict[str, Tensor]) -> None:
    """Adds the embedding of the tokens' type, which is one for all in RoBERTa, to those of positions, in place."""
    types, positions = (f"roberta.embeddings.{name}_embeddings.weight" for name in ("token_type", "position"))
    if types in weights and bool(weights[types][0].any()):  # zeros in what came from fairseq
        weights[positions] = weights[positions] + weights[types][0]


def _write_tokenizer(source: Path, folder: Path, size: int) -> Dictionary:
    """Writes the dictionary and the subword model in fairseq's form; gives the dictionary, with <mask>."""
    if (source / FAIRSEQ_FOLDER).is_dir():
        for file in sorted((source / FAIRSEQ_FOLDER).iterdir()):
            shutil.copyfile(file, folder / file.name)
    elif held := _held_files(source):
        for name, content in held.items():
            (folder / name).write_bytes(content)
    else:
        _write_gpt2(source, folder)
    dictionary = masked_lm_dictionary(folder)
    if len(dictionary) != size:
        raise UserError(f"{source}: its tokenizer has {len(dictionary)} ids, but config.json says vocab_size={size}")
    return dictionary


def _held_files(source: Path) -> dict[str, bytes]:
    """What our tokenizer of a folder holds in fairseq's form, by file: transformers saves that, but no other folder."""
    file = source / CONFIG_FILE
    if not file.is_file():
        return {}
    known = (DICTIONARY_FILE, SENTENCEPIECE_FILE, ENCODER_FILE, MERGES_FILE)
    try:
        held = json.loads(file.read_text(encoding="utf-8")).get(FAIRSEQ_FILES, {})
        return {name: base64.b64decode(held[name], validate=True) for name in known if name in held}
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: {FAIRSEQ_FILES} cannot be read ({error})") from error


def _write_gpt2(source: Path, folder: Path) -> None:
    """The files of a byte-level BPE, whose numbers in encoder.json and dict.txt are the ids of the folder."""
    try:
        tokenizer = json.loads(
            AutoTokenizer.from_pretrained(source, trust_remote_code=False).backend_tokenizer.to_str()
        )
    except (OSError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{source}: its tokenizer cannot be read: save it there too, tokenizer.save_pretrained or "
            f"Trainer(processing_class=tokenizer) ({reason})"
        ) from error
    kind, vocabulary = tokenizer["model"]["type"], dict(tokenizer["model"].get("vocab", {}))
    vocabulary |= {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
    allowed = f"a byte-level BPE, as stock RoBERTa's, or that of an export: its {CONFIG_FILE}, or its {FAIRSEQ_FOLDER}"
    check("tokenizer", kind, kind == "BPE", allowed)
    names = {number: piece for piece, number in vocabulary.items()}
    found = (*(names.get(number) for number in range(len(SPECIAL))), names.get(len(names) - 1))
    if found != (*SPECIAL, "<mask>"):
        raise UserError(f"{source}: ids 0 to 3 and the last are {found}, they must be {(*SPECIAL, '<mask>')}")
    ids = range(len(SPECIAL), len(names) - 1)
    encoder = {names[number]: number for number in ids}
    (folder / ENCODER_FILE).write_text(json.dumps(encoder), encoding="utf-8")
    merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"])
    (folder / MERGES_FILE).write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    (folder / DICTIONARY_FILE).write_text("".join(f"{number} 0\n" for number in ids), encoding="utf-8")
