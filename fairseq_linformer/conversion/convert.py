"""A checkpoint of one model from that of another, with its vocabulary beside it."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from fairseq.data import Dictionary
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from ..attention import get_attention
from ..checkpoint import (
    INHERITED,
    UNTRAINED,
    Origin,
    check_same_vocabulary,
    check_vocabulary_of,
    checkpoint_file,
    digest_vocabulary,
    read_checkpoint,
    read_task_state,
    vocabulary_folder,
)
from ..data.dictionaries import DICTIONARY_FILE, load_dictionary
from ..data.tokenizer import VOCABULARY_FILES
from ..errors import UserError, check
from ..files import digest_file, digest_folder, staged_folder
from ..model.architecture import MECHANISM_OPTIONS, PROJECTION_OPTIONS
from ..model.config import OPTIONS, ResolvedConfig
from ..model.hub import architecture_options
from ..model.roberta import LinformerRobertaModel
from ..sentence_modules import is_of_transformers, lengthened
from ..training.configuration import CONFIGS
from ..training.untrained import masked_lm_dictionary, save_untrained, untrained_model
from .fitting import Errors, fit_attention, fitted_matrices, sample_batches
from .start import Started, start_from

# What may be another than in the source. All other options say what its weights mean.
CONVERTIBLE = ("attention", *PROJECTION_OPTIONS, *MECHANISM_OPTIONS, "local_conv", "max_positions", "rotary_base")
OF_KIND = ("projection_init", "projection_multiplier", "sharing", "freeze_projection")  # of one kind of projection
CONVERSION_FILE = "conversion.json"  # beside the checkpoint
LONG = CONFIGS / "pretrain" / "preset" / "long.yaml"  # what --long stands for, but for n and k
SEED = 1  # of what starts at random: the same command gives the same weights
OF_EVERY_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj", "value_mix")  # that has them


class Converted(NamedTuple):
    """What a conversion did.

    Attributes:
        model: the new one.
        started: what it did not simply take over.
        errors: of its attention, where it was fitted.
        remarks: what a folder of transformers lacked, and what was left out of it, in words.
        old: the options of the source.
    """

    model: LinformerRobertaModel
    started: Started
    errors: Errors | None
    remarks: Sequence[str]
    old: ResolvedConfig


def convert(
    source: Path,
    out: Path,
    overrides: Sequence[str],
    positions: str = "tile",
    fit_on: Path | None = None,
    name: str | None = None,
    long: int | None = None,
) -> Converted:
    """Writes the checkpoint of a model that starts from another one, into a new folder.

    Args:
        source: a checkpoint of ours, of fairseq's ``examples/linformer`` or of its RoBERTa, the folder of its run, or
            a folder of transformers.
        out: the folder to make.
        overrides: what the new model has other than the source, ``model.NAME=VALUE``. Where the attention is another,
            the source's options of attention are left out; where the projection is, some of those of E and F.
        positions: how positions beyond the source's longest start, a key of ``EXTENSIONS``.
        fit_on: a prepared corpus, to fit E and F, or Hedgehog's feature map, to the source's attention. Without it
            they start as ``projection_init`` says, and as the identity.
        name: what the source is called where the model goes (its card); without it the last part of its path.
        long: tokens that the new model is to read, at linear cost (``long_options``); `overrides` win over it.

    Raises:
        FileNotFoundError: the source, its dictionary or the corpus is not there.
        UserError: the source cannot be read, an option cannot work, or `out` is in the way.
    """
    changes = _parsed(overrides)
    with (
        as_checkpoint(source) as (checkpoint, remarks),
        staged_folder(out, f"{UNTRAINED}.partial") as (folder, mark),
    ):
        state = read_checkpoint(checkpoint)
        data = vocabulary_folder(checkpoint, state["cfg"])
        _copy_vocabulary(data, folder)
        dictionary = masked_lm_dictionary(folder)
        vocabulary = digest_vocabulary(dictionary, folder)
        check_vocabulary_of(state, vocabulary, str(data), str(checkpoint))
        heads = _take_heads(state["model"])
        old = LinformerRobertaModel.of_checkpoint(state, dictionary)
        if long is not None:
            changes = long_options(old.args, long, changes)
        options = converted_options(old.args, changes)
        longer = options["positions"] == "learned" and options["max_positions"] > old.args.max_positions
        check("--positions", positions, positions == "tile" or longer, "tile, unless learned positions are added")
        new, started = _started(old, options, dictionary, positions)
        started.left_out.extend(heads)
        errors = None
        if fit_on is not None:
            _check_corpus(fit_on, vocabulary, new)
            errors = _fit(old, new, positions, fit_on)
        converted, origin = Converted(new, started, errors, remarks, old.args), _origin(source, checkpoint, name)
        given: dict[str, Any] = {"source": str(source.absolute()), "digest": origin["sha256"]}
        given |= {"changes": changes, "positions": positions, "fit_on": fit_on and str(fit_on.absolute())}
        _write_conversion(folder / CONVERSION_FILE, given, converted)
        save_untrained(
            folder, out.absolute(), dictionary, options, new.state_dict(), _inherited(state, origin, new, old)
        )
        Path(mark.name).unlink()
    return converted


def long_options(source: ResolvedConfig, longest: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which a model reads longer texts, at a cost that is linear in their length.

    They are those of ``configs/pretrain/preset/long.yaml``, with as many rows as the source reads tokens: with learned
    positions texts that it could read are seen as by full attention. With another attention among the `changes` only
    the length is chosen.

    Args:
        source: the options of the model with full attention; with another among the `changes`, of any.
        longest: tokens to read.
        changes: what the user wants otherwise.

    Raises:
        UserError: `longest` is no multiple of what the source reads, or no longer, or the source's attention is not
            full attention, whose place the preset takes.
    """
    reads, other = source.max_positions, changes.get("attention", "linformer") != "linformer"
    instead = f"model.max_positions={longest} makes the source longer as it is"
    allowed = f"left out with a source of attention={source.attention}: it replaces full attention; {instead}"
    check("--long", longest, other or source.attention == "softmax", allowed)
    allowed = f"a multiple of {reads}, the tokens that the source reads, from {2 * reads} on"
    check("--long", longest, longest > reads and longest % reads == 0, allowed)
    if other:
        return {"max_positions": longest, **changes}
    preset = OmegaConf.to_container(OmegaConf.load(LONG).model)
    return {**cast(dict[str, Any], preset), "projected_length": reads, "max_positions": longest, **changes}


def _inherited(
    state: Mapping[str, Any], origin: Origin, new: LinformerRobertaModel, old: LinformerRobertaModel
) -> dict[str, Any]:
    """The parts of ``TaskState`` that come from the source."""
    carried: dict[str, Any] = {**read_task_state(state.get("task_state"))}
    if new.args.max_positions > old.args.max_positions:
        carried["sentence_modules"] = lengthened(carried["sentence_modules"], new.args.max_positions)
    return {**{name: carried[name] for name in INHERITED}, "converted_from": [*carried["converted_from"], origin]}


def _origin(source: Path, checkpoint: Path, name: str | None) -> Origin:
    """What the user named, without the folders of this machine."""
    if is_of_transformers(source):
        return {"source": name or source.absolute().name, "sha256": digest_folder(source)}
    return {"source": name or "/".join(checkpoint.absolute().parts[-2:]), "sha256": digest_file(checkpoint)}


def _write_conversion(file: Path, given: Mapping[str, Any], converted: Converted) -> None:
    """Writes what a conversion was given and did, as JSON."""
    errors = converted.errors and converted.errors._asdict()
    did = {"starts_anew": converted.started.new, "left_out": converted.started.left_out, "errors": errors}
    file.write_text(json.dumps({**given, **did}, indent=1) + "\n", encoding="utf-8")


def _parsed(overrides: Sequence[str]) -> dict[str, Any]:
    """The options by name.

    Raises:
        UserError: one is not of the form ``model.NAME=VALUE``, or cannot be another than in the source.
    """
    changes: dict[str, Any] = {}
    for override in overrides:
        try:
            parsed = OmegaConf.from_dotlist([override])
            name, value = next(iter(parsed.model.items()))
        except (OmegaConfBaseException, AttributeError) as error:
            raise UserError(f"{override}: give options of the model, model.NAME=VALUE") from error
        if name not in OPTIONS:
            raise UserError(f"{override}: there is no such option of the model")
        if name not in CONVERTIBLE:
            raise UserError(f"{override}: only these may be other than in the source: {', '.join(CONVERTIBLE)}")
        if value is None:
            raise UserError(f"{override}: give a value")
        changes[name] = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    return changes


def converted_options(source: ResolvedConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model: those of another, but for some; a longer one attends as the other.

    Raises:
        UserError: the longest sequence is shorter than the other's.
    """
    options = architecture_options(source)
    options.pop("attention_dropout", None)  # of the other's attention
    if changes.get("max_positions", source.max_positions) != source.max_positions:
        options |= get_attention(source.attention).Options.read(source).length_defaults(source.max_positions)
    dropped: set[str] = set()
    if changes.get("attention", source.attention) != source.attention:
        dropped = {*PROJECTION_OPTIONS, *MECHANISM_OPTIONS}
    elif changes.get("projection", source.projection) != source.projection:
        dropped = {*OF_KIND}
    options = {name: value for name, value in options.items() if name not in dropped} | dict(changes)
    longest, least = options["max_positions"], source.max_positions
    enough = isinstance(longest, int) and longest >= least
    check("max_positions", longest, enough, f"a whole number from {least} on, the source's")
    if not get_attention(str(options["attention"])).HAS_WEIGHTS:
        options["attention_dropout"] = 0.0
    return options


def _take_heads(parameters: dict[str, Tensor]) -> list[str]:
    """Takes the classification heads out of a checkpoint's parameters, in place, and names what these were."""
    names = [name for name in parameters if name.startswith("classification_heads.")]
    for name in names:
        del parameters[name]
    return names


def _started(
    old: LinformerRobertaModel, options: Mapping[str, Any], dictionary: Dictionary, positions: str
) -> tuple[LinformerRobertaModel, Started]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        new = untrained_model(options, dictionary)
    taken = _parameters(old, new)
    lost = {name for name, _ in old.named_parameters()} - taken.keys()
    started = start_from(new, taken, positions)
    return new, Started(started.new, sorted({*started.left_out, *lost}))


def _parameters(old: LinformerRobertaModel, new: LinformerRobertaModel) -> dict[str, Tensor]:
    """The old model's, without those of its attention that mean something else in the new one."""
    other_attention = old.args.attention != new.args.attention
    other_projection = other_attention or old.args.projection != new.args.projection

    def means_the_same(name: str) -> bool:
        _, inside, own = name.partition(".self_attn.")
        kind = own.partition(".")[0]
        if not inside or kind in OF_EVERY_ATTENTION:
            return True
        return not (other_projection if kind.endswith("_projection") else other_attention)

    state = {name: tensor for name, tensor in old.state_dict().items() if means_the_same(name)}
    new.upgrade_state_dict(state)  # its attention may start from the old one's linear maps
    return state


def _fit(old: LinformerRobertaModel, new: LinformerRobertaModel, positions: str, corpus: Path) -> Errors:
    """Fits what there is to fit to the attention of the old model, extended to the new one's length."""
    longest, dictionary = new.args.max_positions, old.encoder.dictionary
    batches = sample_batches(corpus, dictionary, longest)
    same = {**architecture_options(old.args), "max_positions": longest}
    teacher, _ = _started(old, same, dictionary, positions)
    teacher.eval()
    new.eval()
    return fit_attention(teacher.encoder.sentence_encoder, new.encoder.sentence_encoder, batches)


def _check_corpus(corpus: Path, vocabulary: Mapping[str, str], new: LinformerRobertaModel) -> None:
    """Refuses a model without anything to fit, and a corpus of another vocabulary than the one with these digests."""
    projects = get_attention(new.args.attention).USES_PROJECTION
    what = f"projection={new.args.projection}" if projects else f"attention={new.args.attention}"
    check(
        "--fit-on",
        corpus,
        bool(fitted_matrices(new)),
        f"left out with {what}, which has no E and F and no learned feature map",
    )
    if not (corpus / DICTIONARY_FILE).is_file():
        raise FileNotFoundError(f"{corpus} is no prepared corpus: it holds no {DICTIONARY_FILE}")
    there = digest_vocabulary(load_dictionary(corpus / DICTIONARY_FILE), corpus)
    check_same_vocabulary(there, vocabulary, str(corpus), "the source")


def _copy_vocabulary(data: Path, folder: Path) -> None:
    if not (data / DICTIONARY_FILE).is_file():
        raise FileNotFoundError(f"{data} holds no {DICTIONARY_FILE}")
    for name in VOCABULARY_FILES:
        if (data / name).is_file():
            shutil.copyfile(data / name, folder / name)


@contextmanager
def as_checkpoint(source: Path) -> Iterator[tuple[Path, list[str]]]:
    """The checkpoint that a user means; a folder of transformers becomes one for as long as the body runs.

    With it comes what ``import_folder`` says of such a folder.
    """
    if not is_of_transformers(source):
        yield checkpoint_file(source), []
        return
    from ..hf.importing import import_folder  # here: nothing else in this module needs transformers

    with tempfile.TemporaryDirectory() as folder:
        remarks = import_folder(source, Path(folder, "imported"))
        yield Path(folder, "imported", UNTRAINED), remarks
