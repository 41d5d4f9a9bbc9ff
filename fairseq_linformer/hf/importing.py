"""A folder of transformers as a checkpoint of fairseq, to train on from: models of ours, BERT and its relatives."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from ..checkpoint import UNTRAINED
from ..checkpoint_files import check_plain
from ..data.dictionaries import DICTIONARY_FILE
from ..data.tokenizer import ENCODER_FILE, MERGES_FILE, TOKENIZER_FILE, VOCABULARY_FILES
from ..errors import UserError, check
from ..files import leaves_folder, read_json, staged_folder
from ..model.architecture import PER_LAYER
from ..model.config import OPTIONS
from ..model.roberta import LinformerRobertaModel
from ..sentence_modules import encoder_folder, read_sentence_modules
from ..training.untrained import masked_lm_dictionary, save_untrained, untrained_model
from . import LinformerRobertaConfig
from .exporting import FAIRSEQ_FOLDER, WEIGHTS_FILE
from .names import ENCODER, HEAD, OURS, fairseq_names
from .published import HEAD_NAME, PUBLISHED, check_published, published_options, published_state
from .published_tokenizer import write_published_tokenizer
from .tokenizer import CONFIG_FILE, FAIRSEQ_FILES, SPECIAL

OF_TOKENS = (f"{ENCODER}embed_tokens.weight", "encoder.lm_head.weight", "encoder.lm_head.bias")  # a row for each
DRAWN = "it has no LM head: a new one was drawn"
VOCABULARIES = ((TOKENIZER_FILE,), ("vocab.txt",), ("vocab.json", "merges.txt"), ("*.model",))  # one of them is needed


def import_folder(source: Path, out: Path) -> list[str]:
    """Writes a checkpoint of masked language modelling, with its dictionary and subword model, into a new folder.

    Args:
        source: a folder of ours (``export``), of a model that transformers saved, or of a published encoder.
        out: the folder to make.

    Returns:
        What the source lacked, and what was left out, in words.

    Raises:
        FileNotFoundError: a file of the source is missing.
        UserError: it is of another model, or `out` is in the way.
    """
    encoder = encoder_folder(source)
    if not (encoder / "config.json").is_file():
        raise FileNotFoundError(f"{source} is no folder of a model of transformers: it holds no config.json")
    config = _read_config(encoder)
    weights = _read_weights(encoder)
    with staged_folder(out, f"{UNTRAINED}.partial") as (folder, mark):
        options = _options(config)
        dictionary, order = _write_tokenizer(encoder, folder, config)
        given, remarks = _given(weights, config, order)
        state, drawn = _state(given, untrained_model(options, dictionary))
        modules, left_out = read_sentence_modules(source)
        inherited = {"sentence_modules": modules, "drawn_lm_head": drawn}
        save_untrained(folder, out.absolute(), dictionary, options, state, inherited)
        Path(mark.name).unlink()
    return [*([DRAWN] if drawn else []), *remarks, *left_out]


def _is_ours(config: PretrainedConfig) -> bool:
    return isinstance(config, LinformerRobertaConfig)


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
            raise FileNotFoundError(f"{source} holds no {name}: transformers writes it with save_pretrained")
        weights |= load_file(source / name)
    return weights


def _options(config: PretrainedConfig) -> dict[str, Any]:
    """The options of the model."""
    if _is_ours(config):
        options = {name: value for name, value in config.to_dict().items() if name in OPTIONS and value is not None}
        for name in options.keys() & PER_LAYER.keys():
            options[name] = str(options[name]).replace(" ", "")
    else:
        options = published_options(config)
    return {**options, "untie_weights_roberta": not config.tie_word_embeddings}


def _given(
    weights: dict[str, Tensor], config: PretrainedConfig, order: list[int] | None
) -> tuple[dict[str, Tensor], list[str]]:
    """The folder's parameters by their names in fairseq, and what is left out, in words.

    Args:
        weights: by their names in transformers.
        config: the folder's.
        order: the folder's number of each token of ours; None where they are the same.
    """
    if _is_ours(config):
        if not any(name.startswith("linformer_roberta.") for name in weights):  # saved without a head
            weights = {f"linformer_roberta.{name}": tensor for name, tensor in weights.items()}
        names = fairseq_names(weights, OURS, HEAD_NAME)
        given = {ours: weights[theirs] for theirs, ours in names.items()}
        remarks = ["left out: qa_outputs"] if "qa_outputs.weight" in weights else []
    else:
        given, remarks = published_state(weights, config)
    if order is not None:
        given |= {name: given[name][order] for name in OF_TOKENS if name in given}
    return given, remarks


def _state(given: dict[str, Tensor], model: LinformerRobertaModel) -> tuple[dict[str, Tensor], bool]:
    """All parameters of the model, and whether its LM head was missing."""
    state: dict[str, Tensor] = {}
    first: dict[int, str] = {}
    drawn = False
    for name, tensor in model.state_dict(keep_vars=True).items():
        source = first.setdefault(id(tensor), name)  # a tensor may have several names in fairseq, and has one here
        if source in given:
            state[name] = given[source]
            if state[name].shape != tensor.shape:
                found, wanted = (" x ".join(map(str, shape)) for shape in (state[name].shape, tensor.shape))
                raise UserError(f"the folder's weights have {name} of {found}, its config.json asks for {wanted}")
        elif name.startswith("encoder.lm_head."):
            state[name] = state.get(source, tensor.detach())
            drawn = True
        else:
            raise UserError(f"the folder's weights lack {name}, which its config.json asks for")
    state |= {name: tensor for name, tensor in given.items() if name.startswith(HEAD)}
    return state, drawn


def _write_tokenizer(source: Path, folder: Path, config: PretrainedConfig) -> tuple[Dictionary, list[int] | None]:
    """Writes the dictionary and the subword model; gives the dictionary, with <mask>.

    Also gives the folder's number of each of the dictionary's; None where they are the same.
    """
    order = None
    if (source / FAIRSEQ_FOLDER).is_dir():
        for file in sorted((source / FAIRSEQ_FOLDER).iterdir()):
            shutil.copyfile(file, folder / file.name)
    elif held := _held_files(source):
        for name, content in held.items():
            (folder / name).write_bytes(content)
    else:
        order = _write_other(source, folder)
    dictionary, tokenizer = masked_lm_dictionary(folder), source / TOKENIZER_FILE
    added = read_json(tokenizer).get("added_tokens", []) if tokenizer.is_file() else []
    if order is None and all(token["id"] < len(dictionary) for token in added):
        order = [*range(len(dictionary))]  # without rows of resize_token_embeddings(pad_to_multiple_of=…)
    # A published model may have more rows than its tokenizer has ids, to fill up a size, but not twice as many.
    size = config.vocab_size
    fits = len(dictionary) == size if order is None else max(order) < size <= 2 * len(order)
    if not fits:
        ids = len(dictionary) if order is None else max(order) + 1
        added = " (tokens that were added since its training cannot be taken)" if order is None else ""
        raise UserError(f"{source}: its tokenizer has {ids} ids, but config.json says vocab_size={size}{added}")
    pad = 1 if order is None else order[1]
    used = _is_ours(config) or PUBLISHED[config.model_type].after_padding  # for positions
    check("pad_token_id", config.pad_token_id, config.pad_token_id == pad or not used, f"{pad}, as in its tokenizer")
    return dictionary, order


def _held_files(source: Path) -> dict[str, bytes]:
    """What our tokenizer of a folder holds in fairseq's form, by file: transformers saves that, but no other folder."""
    file = source / CONFIG_FILE
    if not file.is_file():
        return {}
    try:
        held = json.loads(file.read_text(encoding="utf-8")).get(FAIRSEQ_FILES, {})
        return {name: base64.b64decode(held[name], validate=True) for name in VOCABULARY_FILES if name in held}
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: {FAIRSEQ_FILES} cannot be read ({error})") from error


def _write_other(source: Path, folder: Path) -> list[int] | None:
    """Writes the tokenizer of transformers in a folder; gives its own numbers of ours, None where they are the same."""
    try:
        _check_vocabulary(source)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        content = json.loads(tokenizer.backend_tokenizer.to_str())
    except (OSError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{source}: its tokenizer cannot be read: save it there too, tokenizer.save_pretrained or "
            f"Trainer(processing_class=tokenizer) ({reason})"
        ) from error
    vocabulary = dict(content["model"].get("vocab", {})) if content["model"]["type"] == "BPE" else {}
    vocabulary |= {added["content"]: added["id"] for added in content["added_tokens"]}
    names = {number: piece for piece, number in vocabulary.items()}
    found = (*(names.get(number) for number in range(len(SPECIAL))), names.get(len(names) - 1))
    if found != (*SPECIAL, "<mask>") or len(content["added_tokens"]) > len(found) or not _is_gpt2(content):
        return write_published_tokenizer(tokenizer, source, folder)
    _write_gpt2(names, content["model"]["merges"], folder)
    return None


def _check_vocabulary(source: Path) -> None:
    """Without a file transformers makes a tokenizer of the special tokens alone, to which all text is <unk>."""
    if not any(all(any(source.glob(name)) for name in names) for names in VOCABULARIES):
        raise FileNotFoundError(f"there is no {', '.join(' with '.join(names) for names in VOCABULARIES)}")


def _is_gpt2(content: dict[str, Any]) -> bool:
    """Whether a tokenizer.json is one that fairseq's own encoder computes."""
    split = content["pre_tokenizer"] or {}
    plain = split.get("type") == "ByteLevel" and not split.get("add_prefix_space") and split.get("use_regex", True)
    return content["model"]["type"] == "BPE" and plain and not content["normalizer"]


def _write_gpt2(names: dict[int, str], merges: list[Any], folder: Path) -> None:
    """The files of a byte-level BPE, whose numbers in encoder.json and dict.txt are the ids of the folder."""
    ids = range(len(SPECIAL), len(names) - 1)
    encoder = {names[number]: number for number in ids}
    (folder / ENCODER_FILE).write_text(json.dumps(encoder), encoding="utf-8")
    lines = (merge if isinstance(merge, str) else " ".join(merge) for merge in merges)
    (folder / MERGES_FILE).write_text("\n".join(["#version: 0.2", *lines]) + "\n", encoding="utf-8")
    (folder / DICTIONARY_FILE).write_text("".join(f"{number} 0\n" for number in ids), encoding="utf-8")
