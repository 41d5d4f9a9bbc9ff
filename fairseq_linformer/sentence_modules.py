"""Files of sentence-transformers modules, such as pooling and normalization, which checkpoints contain."""

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from .errors import UserError, check
from .files import read_json

MODULES_FILE = "modules.json"
LENGTH_FILE = "sentence_bert_config.json"
SETTINGS_FILE = "config_sentence_transformers.json"
_NAMES = re.compile(rf"{MODULES_FILE}|{LENGTH_FILE}|{SETTINGS_FILE}|\w+/config\.json", re.ASCII)
_TYPES = ("Transformer", "Pooling", "Normalize")  # the last two have no weights
_TASK = "feature-extraction"  # the task of an encoder; other tasks need a head
_OLD_TYPES = ("BERT", "RoBERTa", "DistilBERT", "CamemBERT", "XLMRoBERTa")  # deprecated names of "Transformer"


def encoder_folder(source: Path) -> Path:
    """Return the folder of the encoder, which is the subfolder 0_Transformer in sentence-transformers' older layout.

    In that layout the config.json of the outer folder names only the version of sentence-transformers.
    """
    inner, outer = next(iter(sorted(source.glob("0_*/config.json"))), None), source / "config.json"
    if inner is None or (outer.is_file() and '"model_type"' in outer.read_text(encoding="utf-8", errors="replace")):
        return source
    return inner.parent


def is_of_transformers(source: Path) -> bool:
    """Return True for a model folder of transformers or sentence-transformers."""
    return (encoder_folder(source) / "config.json").is_file()


def read_sentence_modules(source: Path) -> tuple[dict[str, str], list[str]]:
    """Return the module files of a folder, text by name, and messages about modules that are left out.

    Files of the older layout are converted to the newer one. There are no files if the folder is not one of
    sentence-transformers, or has other types of modules or modules for other tasks, such as a cross-encoder's.

    Raises:
        UserError: the files cannot be read.
    """
    file, encoder = source / MODULES_FILE, encoder_folder(source)
    if not file.is_file():
        return {}, []
    try:
        modules_list = [{**module, "path": str(module["path"])} for module in json.loads(file.read_bytes())]
        modules = {module["path"]: module["type"].rpartition(".")[2] for module in modules_list}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{file}: not a list of modules of sentence-transformers") from error
    encoder_path = "" if encoder == source else encoder.name
    first_type, *other_types = modules.pop(encoder_path, ""), *modules.values()
    length = _length(encoder)
    task = json.loads(length.get(LENGTH_FILE, "{}")).get("transformer_task", _TASK)
    if task != _TASK or first_type not in (_TYPES[0], *_OLD_TYPES) or not {*other_types} <= {*_TYPES[1:]}:
        module_names = [first_type if task == _TASK else f"{first_type} for {task}", *other_types]
        return {}, [f"left out: its modules for sentence-transformers, {', '.join(filter(None, module_names))}"]
    files = {MODULES_FILE: file.read_text(encoding="utf-8")}
    if encoder_path:
        flat = {"path": "", "type": f"sentence_transformers.models.{_TYPES[0]}"}
        modules_list = [module | (flat if module["path"] == encoder_path else {}) for module in modules_list]
        files = {MODULES_FILE: json.dumps(modules_list, indent=2) + "\n"}
    names = [name for name in (SETTINGS_FILE, *(f"{path}/config.json" for path in modules)) if not leaves_folder(name)]
    files |= {name: (source / name).read_text(encoding="utf-8") for name in names if (source / name).is_file()}
    return files | length, []


def leaves_folder(name: str) -> bool:
    """Return True if a relative path from an untrusted file leaves its folder, on any operating system."""
    path = PurePosixPath(name.replace("\\", "/"))
    return path.is_absolute() or ".." in path.parts or bool(re.match(r"[A-Za-z]:", name))


def _length(encoder: Path) -> dict[str, str]:
    """Return the file with the maximum length in tokens, under its current name; it was once named after the encoder.

    sentence-transformers 6 has the maximum length in the tokenizer's file, which exports write anew.

    Raises:
        UserError: a file cannot be read.
    """
    file = next(iter(sorted(encoder.glob("sentence_*_config.json"))), encoder / LENGTH_FILE)
    names = (file, encoder / "tokenizer_config.json", encoder / "config.json")
    settings, tokenizer, config = (read_json(name) if name.is_file() else {} for name in names)
    limit, size = tokenizer.get("model_max_length"), config.get("max_position_embeddings", config.get("max_positions"))
    if "max_seq_length" not in settings and isinstance(limit, int) and isinstance(size, int) and limit < size:
        return {LENGTH_FILE: json.dumps(settings | {"max_seq_length": limit}, indent=2) + "\n"}
    return {LENGTH_FILE: file.read_text(encoding="utf-8")} if file.is_file() else {}


def pooling_of(files: Mapping[str, str]) -> str:
    """Return the pooling of token features: "cls" for that of <s>; "mean" or "max" over the tokens.

    The default, if no file configures pooling, is "mean". Other and combined poolings are rejected.
    """
    modules = json.loads(files.get(MODULES_FILE, "[]"))
    paths = [module["path"] for module in modules if module["type"].endswith(".Pooling")]
    if not paths:
        return "mean"
    settings = json.loads(files.get(f"{paths[0]}/config.json", "{}"))
    names = [name for name, value in settings.items() if value is True and "_mode_" in name]
    modes = [name.removeprefix("pooling_mode_") for name in names]
    if "pooling_mode" in settings:  # sentence-transformers 6 has one name, or a list of them
        modes = settings["pooling_mode"]
        modes = [modes] if isinstance(modes, str) else modes
    poolings = {mode.partition("_")[0] for mode in modes}  # mean_sqrt_len_tokens differs from the mean only in norm
    check("pooling", ", ".join(modes), len(modes) == 1 and poolings <= {"cls", "mean", "max"}, "cls, mean or max")
    return poolings.pop()


def lengthened(files: Mapping[str, str], longest: int) -> dict[str, str]:
    """Return the module files with the maximum length set to `longest` tokens."""
    if not files:
        return {}
    settings = json.loads(files.get(LENGTH_FILE, "{}")) | {"max_seq_length": longest}
    return {**files, LENGTH_FILE: json.dumps(settings, indent=2) + "\n"}


def write_sentence_modules(files: Mapping[str, str], folder: Path) -> None:
    """Write the module files of a checkpoint, which may be untrusted; reject names of other files."""
    for name, text in files.items():
        if not _NAMES.fullmatch(name):
            raise UserError(f"the checkpoint contains {name!r}, which is no file of sentence-transformers")
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
