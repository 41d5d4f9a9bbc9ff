"""What sentence-transformers puts after an encoder, pooling and normalisation: files that checkpoints carry along."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from .errors import UserError, check
from .files import leaves_folder, read_json

MODULES_FILE = "modules.json"
LENGTH_FILE = "sentence_bert_config.json"
SETTINGS_FILE = "config_sentence_transformers.json"
_NAMES = re.compile(rf"{MODULES_FILE}|{LENGTH_FILE}|{SETTINGS_FILE}|\w+/config\.json", re.ASCII)
_KINDS = ("Transformer", "Pooling", "Normalize")  # the last two have no weights
_TASK = "feature-extraction"  # that of an encoder; others need its head
_OLD_KINDS = ("BERT", "RoBERTa", "DistilBERT", "CamemBERT", "XLMRoBERTa")  # deprecated names of the first


def encoder_folder(source: Path) -> Path:
    """Where the encoder lies: in sentence-transformers' older layout in a folder of its own, 0_Transformer.

    The config.json beside that folder names the version of sentence-transformers alone.
    """
    inner, outer = next(iter(sorted(source.glob("0_*/config.json"))), None), source / "config.json"
    if inner is None or (outer.is_file() and '"model_type"' in outer.read_text(encoding="utf-8", errors="replace")):
        return source
    return inner.parent


def is_of_transformers(source: Path) -> bool:
    """Whether it is a folder of transformers, or of sentence-transformers."""
    return (encoder_folder(source) / "config.json").is_file()


def read_sentence_modules(source: Path) -> tuple[dict[str, str], list[str]]:
    """The files of the modules in a folder, text by name, and what is left out, in words.

    Of the older layout they are those of the newer one. No files where the folder is not of sentence-transformers, or
    has modules of other kinds or for other tasks, such as a cross-encoder's.

    Raises:
        UserError: they cannot be read.
    """
    file, encoder = source / MODULES_FILE, encoder_folder(source)
    if not file.is_file():
        return {}, []
    try:
        listed = [{**module, "path": str(module["path"])} for module in json.loads(file.read_bytes())]
        modules = {module["path"]: module["type"].rpartition(".")[2] for module in listed}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{file}: not a list of modules of sentence-transformers") from error
    of_encoder = "" if encoder == source else encoder.name
    first, *others = modules.pop(of_encoder, ""), *modules.values()
    length = _length(encoder)
    task = json.loads(length.get(LENGTH_FILE, "{}")).get("transformer_task", _TASK)
    if task != _TASK or first not in (_KINDS[0], *_OLD_KINDS) or not {*others} <= {*_KINDS[1:]}:
        named = [first if task == _TASK else f"{first} for {task}", *others]
        return {}, [f"left out: its modules for sentence-transformers, {', '.join(filter(None, named))}"]
    files = {MODULES_FILE: file.read_text(encoding="utf-8")}
    if of_encoder:
        flat = {"path": "", "type": f"sentence_transformers.models.{_KINDS[0]}"}
        listed = [module | (flat if module["path"] == of_encoder else {}) for module in listed]
        files = {MODULES_FILE: json.dumps(listed, indent=2) + "\n"}
    own = [name for name in (SETTINGS_FILE, *(f"{path}/config.json" for path in modules)) if not leaves_folder(name)]
    files |= {name: (source / name).read_text(encoding="utf-8") for name in own if (source / name).is_file()}
    return files | length, []


def _length(encoder: Path) -> dict[str, str]:
    """The file that says how many tokens are read, by today's name: it was called after the encoder.

    sentence-transformers 6 says it in the tokenizer's file instead, which exports write anew.

    Raises:
        UserError: it cannot be read.
    """
    file = next(iter(sorted(encoder.glob("sentence_*_config.json"))), encoder / LENGTH_FILE)
    names = (file, encoder / "tokenizer_config.json", encoder / "config.json")
    settings, tokenizer, config = (read_json(name) if name.is_file() else {} for name in names)
    cut, reads = tokenizer.get("model_max_length"), config.get("max_position_embeddings", config.get("max_positions"))
    if "max_seq_length" not in settings and isinstance(cut, int) and isinstance(reads, int) and cut < reads:
        return {LENGTH_FILE: json.dumps(settings | {"max_seq_length": cut}, indent=2) + "\n"}
    return {LENGTH_FILE: file.read_text(encoding="utf-8")} if file.is_file() else {}


def pooling_of(files: Mapping[str, str]) -> str:
    """How the vector of a text comes from its features: "cls", of <s>; "mean" or "max" over its tokens.

    It is the mean where there are no files, or no pooling among them.

    Raises:
        UserError: it is another, or several one after another.
    """
    modules = json.loads(files.get(MODULES_FILE, "[]"))
    paths = [module["path"] for module in modules if module["type"].endswith(".Pooling")]
    if not paths:
        return "mean"
    settings = json.loads(files.get(f"{paths[0]}/config.json", "{}"))
    modes = [name.removeprefix("pooling_mode_") for name, on in settings.items() if on is True and "_mode_" in name]
    if "pooling_mode" in settings:  # sentence-transformers 6 has one name, or a list of them
        modes = settings["pooling_mode"]
        modes = [modes] if isinstance(modes, str) else modes
    named = {"cls_token": "cls", "mean_tokens": "mean", "mean_sqrt_len_tokens": "mean", "max_tokens": "max"}
    named |= {"cls": "cls", "mean": "mean", "max": "max"}
    check("pooling", ", ".join(modes), len(modes) == 1 and modes[0] in named, f"one of {', '.join(named)}")
    return named[modes[0]]  # a mean of another length has the same direction


def lengthened(files: Mapping[str, str], longest: int) -> dict[str, str]:
    """The files for a model that reads `longest` tokens."""
    if not files:
        return {}
    settings = json.loads(files.get(LENGTH_FILE, "{}")) | {"max_seq_length": longest}
    return {**files, LENGTH_FILE: json.dumps(settings, indent=2) + "\n"}


def write_sentence_modules(files: Mapping[str, str], folder: Path) -> None:
    """Writes the files that a checkpoint carries.

    Raises:
        UserError: one has a name that none can have: the checkpoint may be someone else's.
    """
    for name, text in files.items():
        if not _NAMES.fullmatch(name):
            raise UserError(f"the checkpoint carries {name!r}, which is no file of sentence-transformers")
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
