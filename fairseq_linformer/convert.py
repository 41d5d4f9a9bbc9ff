"""Conversion of a trained model to another attention, or to longer texts: `linformer convert`.

Dimensions: B batch, n sequence length, k projected length, d embedding, h heads.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary, PrependTokenDataset, TokenBlockDataset, data_utils
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor, nn

from .attention import Attention, get_attention
from .attention.linear import HedgehogMap
from .attention.projection import LinearProjection
from .checkpoint import (
    FIRST_POSITION,
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
from .data.dictionaries import DICTIONARY_FILE, load_dictionary
from .data.subword_models import VOCABULARY_FILES
from .digests import digest_file, digest_folder
from .errors import UserError, check
from .files import staged_folder
from .model.architecture import MECHANISM_OPTIONS
from .model.encoder import EncoderLayer, SentenceEncoder
from .model.hub import architecture_options
from .model.options import PROJECTION_OPTIONS, ResolvedConfig
from .model.parts import LocalConvolution
from .model.roberta import LinformerRobertaModel
from .sentence_modules import is_of_transformers, lengthened
from .training.configuration import CONFIGS
from .training.untrained import masked_lm_dictionary, save_untrained, untrained_model

# Options that may differ from the source's. All others determine the meaning of its weights.
CONVERTIBLE = ("attention", *PROJECTION_OPTIONS, *MECHANISM_OPTIONS, "local_conv", "max_positions", "rotary_base")
KIND_OPTIONS = {"projection_init", "projection_multiplier", "sharing", "freeze_projection"}  # of one type of projection
CONVERSION_FILE = "conversion.json"  # in the folder of the checkpoint
LONG = CONFIGS / "pretrain" / "preset" / "long.yaml"  # options set by --long, except n and k
SEED = 1  # of new parameters, so that a command is reproducible
COMMON_PARAMETERS = ("q_proj", "k_proj", "v_proj", "out_proj", "value_mix")  # with the same meaning in every attention
GROWING_BUFFERS = {"random_blocks": 0, "rotations": -1}  # drawn at random; dimension that grows with the length
OPTION_BUFFERS = ("multiplier", "sub_blocks")  # computed from options
UPDATES = 200  # of Adam in fitting, each on a new batch; fewer batches overfit
STEP = 0.03  # initial learning rate, relative to the root mean square of the matrix; decays to zero
FITTED = (LinearProjection, HedgehogMap)  # by their weight; random projections, a subclass of the former, are excluded
BATCH_TOKENS = 4096  # at most, unless a sequence is longer


class Initialized(NamedTuple):
    """Names of parameters and random buffers that were not copied unchanged."""

    new: list[str]  # of the model: absent from the source, or larger; they keep their initial values
    left_out: list[str]  # of the source: absent from the model, or replaced by a shared parameter


class Errors(NamedTuple):
    """Mean squared error of each layer's attention, divided by the mean square of its target."""

    before: list[float]
    after: list[float]


class Converted(NamedTuple):
    """Result of a conversion."""

    model: LinformerRobertaModel
    started: Initialized
    errors: Errors | None  # of its attention, if it was fitted
    remarks: Sequence[str]  # from the import of a folder of transformers
    old: ResolvedConfig  # of the source


def convert(
    source: Path,
    out: Path,
    overrides: Sequence[str],
    positions: str = "tile",
    fit_on: Path | None = None,
    name: str | None = None,
    long: int | None = None,
) -> Converted:
    """Convert a model, and write its checkpoint into a new folder.

    Args:
        source: checkpoint of ours, of fairseq's ``examples/linformer`` or of its RoBERTa, folder of its run, or folder
            of transformers.
        out: folder to make.
        overrides: options of the new model, ``model.NAME=VALUE``. A change of attention drops the source's options of
            attention; a change of projection drops some options of E and F.
        positions: initial values of positions beyond the source's longest, a key of ``EXTENSIONS``.
        fit_on: prepared corpus, to fit E and F, or Hedgehog's feature map, to the source's attention.
        name: of the source in the new checkpoint; by default the last part of its path.
        long: maximum length of the new model, at linear cost (``long_options``); `overrides` have priority.

    Raises:
        FileNotFoundError: the source, its dictionary or the corpus is missing.
        UserError: the source cannot be read, an option is invalid, or `out` exists.
    """
    changes = _parse(overrides)
    with (
        as_checkpoint(source) as (checkpoint, remarks),
        staged_folder(out, f"{UNTRAINED}.partial") as (folder, mark),
    ):
        state = read_checkpoint(checkpoint)
        data = vocabulary_folder(checkpoint, state["cfg"])
        dictionary = masked_lm_dictionary(data)
        for file in (data / name for name in VOCABULARY_FILES):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
        vocabulary = digest_vocabulary(dictionary, folder)
        check_vocabulary_of(state, vocabulary, str(data), str(checkpoint))
        heads = [name for name in state["model"] if name.startswith("classification_heads.")]
        state["model"] = {name: tensor for name, tensor in state["model"].items() if name not in heads}
        old = LinformerRobertaModel.of_checkpoint(state, dictionary)
        if long is not None:
            changes = long_options(old.args, long, changes)
        options = converted_options(old.args, changes)
        longer = options["positions"] == "learned" and options["max_positions"] > old.args.max_positions
        check("--positions", positions, positions == "tile" or longer, "tile, unless learned positions are added")
        new, report = _build(old, options, dictionary, positions)
        report.left_out.extend(heads)
        errors = None if fit_on is None else _fit(old, new, positions, fit_on, vocabulary)
        if is_of_transformers(source):
            origin = Origin(source=name or source.absolute().name, sha256=digest_folder(source))
        else:
            origin = Origin(source=name or "/".join(checkpoint.absolute().parts[-2:]), sha256=digest_file(checkpoint))
        record: dict[str, Any] = {"source": str(source.absolute()), "digest": origin["sha256"], "changes": changes}
        record |= {"positions": positions, "fit_on": fit_on and str(fit_on.absolute())}
        record |= {"starts_anew": report.new, "left_out": report.left_out, "errors": errors and errors._asdict()}
        (folder / CONVERSION_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        inherited = _inherit(state, origin, new, old)
        save_untrained(folder, out.absolute(), dictionary, options, new.state_dict(), inherited)
        Path(mark.name).unlink()
    return Converted(new, report, errors, remarks, old.args)


@contextmanager
def as_checkpoint(source: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the checkpoint of a file or folder, and remarks; folders of transformers are imported temporarily."""
    if not is_of_transformers(source):
        yield checkpoint_file(source), []
        return
    from .hf.importing import import_folder  # the rest of this module does not need transformers

    with tempfile.TemporaryDirectory() as folder:
        remarks = import_folder(source, Path(folder, "imported"))
        yield Path(folder, "imported", UNTRAINED), remarks


def _inherit(
    state: Mapping[str, Any], origin: Origin, new: LinformerRobertaModel, old: LinformerRobertaModel
) -> dict[str, Any]:
    """Return the entries of ``TaskState`` that are inherited from the source."""
    task_state: dict[str, Any] = {**read_task_state(state.get("task_state"))}
    if new.args.max_positions > old.args.max_positions:
        task_state["sentence_modules"] = lengthened(task_state["sentence_modules"], new.args.max_positions)
    return {**{name: task_state[name] for name in INHERITED}, "converted_from": [*task_state["converted_from"], origin]}


def _parse(overrides: Sequence[str]) -> dict[str, Any]:
    """Parse overrides of the form ``model.NAME=VALUE`` into options by name; reject others."""
    changes: dict[str, Any] = {}
    for override in overrides:
        try:
            name, value = next(iter(OmegaConf.from_dotlist([override]).model.items()))
        except (OmegaConfBaseException, AttributeError) as error:
            raise UserError(f"{override}: give options of the model, model.NAME=VALUE") from error
        if name not in CONVERTIBLE or value is None:
            raise UserError(f"{override}: give a value of one of these options: {', '.join(CONVERTIBLE)}")
        changes[name] = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    return changes


def long_options(source: ResolvedConfig, longest: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model for texts of up to `longest` tokens at linear cost.

    They are those of ``configs/pretrain/preset/long.yaml``, with as many projected keys as the source has positions:
    with learned positions, shorter texts are computed as by full attention. If `changes` set another attention, only
    the length is added. `longest` must be a multiple of the source's length.
    """
    source_length, changes_attention = source.max_positions, changes.get("attention", "linformer") != "linformer"
    allowed = f"left out with a source of attention={source.attention}: model.max_positions={longest} keeps that"
    check("--long", longest, changes_attention or source.attention == "softmax", allowed)
    allowed = f"a multiple of {source_length}, the source's max_positions, from {2 * source_length} on"
    check("--long", longest, longest > source_length and longest % source_length == 0, allowed)
    if changes_attention:
        return {"max_positions": longest, **changes}
    preset = OmegaConf.to_container(OmegaConf.load(LONG).model)
    return {**cast(dict[str, Any], preset), "projected_length": source_length, "max_positions": longest, **changes}


def converted_options(source: ResolvedConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply `changes` to the options of the source; a longer model keeps the reach of the source's attention."""
    options = architecture_options(source)
    options.pop("attention_dropout", None)  # of the source's attention
    if changes.get("max_positions", source.max_positions) != source.max_positions:
        options |= get_attention(source.attention).Options.read(source).length_defaults(source.max_positions)
    dropped: set[str] = set()
    if changes.get("attention", source.attention) != source.attention:
        dropped = {*PROJECTION_OPTIONS, *MECHANISM_OPTIONS}
    elif changes.get("projection", source.projection) != source.projection:
        dropped = KIND_OPTIONS
    options = {name: value for name, value in options.items() if name not in dropped} | dict(changes)
    longest, source_length = options["max_positions"], source.max_positions
    is_allowed = isinstance(longest, int) and longest >= source_length
    check("max_positions", longest, is_allowed, f"a whole number from {source_length} on, the source's")
    if not get_attention(str(options["attention"])).HAS_WEIGHTS:
        options["attention_dropout"] = 0.0
    return options


def _build(
    old: LinformerRobertaModel, options: Mapping[str, Any], dictionary: Dictionary, positions: str
) -> tuple[LinformerRobertaModel, Initialized]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        new = untrained_model(options, dictionary)
    shared = _shared_parameters(old, new)
    unused_names = {name for name, _ in old.named_parameters()} - shared.keys()
    report = initialize_from(new, shared, positions)
    return new, Initialized(report.new, sorted({*report.left_out, *unused_names}))


def _shared_parameters(old: LinformerRobertaModel, new: LinformerRobertaModel) -> dict[str, Tensor]:
    """Return the source's parameters that have the same meaning in the new model."""
    other_attention = old.args.attention != new.args.attention
    other_projection = other_attention or old.args.projection != new.args.projection

    def has_same_meaning(name: str) -> bool:
        _, in_attention, parameter = name.partition(".self_attn.")
        module = parameter.partition(".")[0]
        if not in_attention or module in COMMON_PARAMETERS:
            return True
        return not (other_projection if module.endswith("_projection") else other_attention)

    state = {name: tensor for name, tensor in old.state_dict().items() if has_same_meaning(name)}
    new.upgrade_state_dict(state)  # may initialize attention from the source's linear maps
    return state


def tile(positions: Tensor, length: int) -> Tensor:
    """Repeat an embedding of positions to `length` positions, (length + 2, d), as in Longformer.

    Relations of neighbouring positions are preserved except where two copies meet (Beltagy et al. 2020, arXiv
    2004.05150, section 5).
    """
    special, learned = positions[:FIRST_POSITION], positions[FIRST_POSITION:]
    return torch.cat([special, learned.repeat(-(-length // len(learned)), 1)[:length]])


def interpolate(positions: Tensor, length: int) -> Tensor:
    """Interpolate an embedding of positions linearly to `length` positions, (length + 2, d)."""
    special, learned = positions[:FIRST_POSITION], positions[FIRST_POSITION:]
    stretched = F.interpolate(learned.T.unsqueeze(0), size=length, mode="linear", align_corners=True)
    return torch.cat([special, stretched[0].T])


EXTENSIONS: dict[str, Callable[[Tensor, int], Tensor]] = {"tile": tile, "interpolate": interpolate}


def stretch(matrix: Tensor, length: int) -> Tensor:
    """Interpolate E (k, n), or (h, k, n), to `length` positions; rows keep nearly their sum."""
    n = matrix.size(-1)
    wider = F.interpolate(matrix.flatten(0, -2).unsqueeze(0), size=length, mode="linear", align_corners=False)
    return wider[0].unflatten(0, matrix.shape[:-1]) * (n / length)


@torch.no_grad()
def initialize_from(model: nn.Module, state: Mapping[str, Tensor], extension: str) -> Initialized:
    """Copy the parameters of another model into a new one.

    For longer texts positions are extended, and E and F interpolated. Random buffers are copied because the source was
    trained with them. E and F that heads shared are copied for each head. A new local convolution is zero; a wider one
    is the source's padded with zeros, a narrower one the source's cropped.

    Args:
        model: new model of the same width, depth and vocabulary.
        state: parameters and buffers of the source by their names in the model.
        extension: method for positions, a key of EXTENSIONS.
    """
    new: list[str] = []
    multipliers = {name: buffer for name, buffer in model.named_buffers() if name.endswith("_projection.multiplier")}
    for name, parameter in model.named_parameters():
        value, constant = state.get(name), name.replace("weight", "multiplier")
        if value is None:
            new.append(name)
            continue
        if name.endswith("embed_positions.weight") and len(value) < len(parameter):
            value = EXTENSIONS[extension](value, len(parameter) - FIRST_POSITION)
        elif constant in multipliers:
            if value.size(-1) < parameter.size(-1):
                value = stretch(value, parameter.size(-1))
            value = value * (state[constant] / multipliers[constant])
            if value.shape == parameter.shape[1:]:  # one matrix for all heads
                value = value.expand_as(parameter)
        elif name.endswith("local_conv.conv.weight"):  # (d, 1, w), w odd
            margin = (parameter.size(-1) - value.size(-1)) // 2
            value = F.pad(value, (margin, margin))
        if value.shape == parameter.shape:
            parameter.copy_(value)
        else:
            new.append(name)
    new += _copy_random_buffers(model, state)
    for name, module in model.named_modules():
        if isinstance(module, LocalConvolution) and f"{name}.conv.weight" in new:
            for parameter in module.parameters():
                parameter.zero_()
    return Initialized(new, sorted({*(state.keys() - model.state_dict().keys()), *_unshared(model, state)}))


def _unshared(model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Return the second names of parameters that the model shares and whose values differ in the source."""
    first_names: dict[Tensor, str] = {}
    names = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        original = first_names.setdefault(parameter, name)
        if name != original and name in state and not (original in state and torch.equal(state[name], state[original])):
            names.append(name)
    return names


def _copy_random_buffers(model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Copy the random buffers, for longer texts into their first part; return the names of mismatched buffers."""
    new = []
    for name, buffer in model.named_buffers():
        value, last_name = state.get(name), name.rpartition(".")[2]
        if value is None or last_name in OPTION_BUFFERS:
            continue
        part = buffer
        if last_name in GROWING_BUFFERS:
            dim = GROWING_BUFFERS[last_name]
            part = buffer.narrow(dim, 0, min(value.size(dim), buffer.size(dim)))
        if part.shape == value.shape:
            part.copy_(value)
        if buffer.shape != value.shape:
            new.append(name)
    return new


def _fit(
    old: LinformerRobertaModel, new: LinformerRobertaModel, positions: str, corpus: Path, vocabulary: Mapping[str, str]
) -> Errors:
    """Fit the matrices of the new model to the attention of the source, extended to the new length.

    A corpus is rejected if its vocabulary has other digests.
    """
    allowed = f"left out with attention={new.args.attention} without trained E and F or a learned feature map"
    check("--fit-on", corpus, bool(fitted_matrices(new)), allowed)
    digests = digest_vocabulary(load_dictionary(corpus / DICTIONARY_FILE), corpus)
    check_same_vocabulary(digests, vocabulary, str(corpus), "the source")
    longest, dictionary = new.args.max_positions, old.encoder.dictionary
    batches = sample_batches(corpus, dictionary, longest)
    teacher, _ = _build(old, {**architecture_options(old.args), "max_positions": longest}, dictionary, positions)
    return fit_attention(teacher.eval().encoder.sentence_encoder, new.eval().encoder.sentence_encoder, batches)


def sample_batches(folder: Path, dictionary: Dictionary, length: int) -> list[Tensor]:
    """Return UPDATES + 1 batches of token ids, (B, length), from all parts of a corpus's split `train`."""
    text = data_utils.load_indexed_dataset(str(folder / "train"), dictionary)
    if text is None:
        raise FileNotFoundError(f"{folder} has no train.idx")
    ends = {"pad": dictionary.pad(), "eos": dictionary.eos(), "break_mode": "none"}
    blocks = PrependTokenDataset(TokenBlockDataset(text, text.sizes, length - 1, **ends), dictionary.bos())
    batches, full_blocks = UPDATES + 1, len(blocks) - 1  # the last block may be short
    check(f"--fit-on: sequences of {length} tokens", full_blocks, full_blocks >= batches, f"at least {batches}")
    count = min(full_blocks // batches, max(1, BATCH_TOKENS // length))
    sample = [blocks[number * full_blocks // (count * batches)] for number in range(count * batches)]
    return list(torch.stack(sample).long().split(count))


def fitted_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the matrices of a model that can be fitted."""
    return [cast(nn.Parameter, module.weight) for module in model.modules() if type(module) in FITTED]


def fit_attention(teacher: SentenceEncoder, student: SentenceEncoder, batches: Sequence[Tensor]) -> Errors:
    """Fit ``fitted_matrices`` by least squares to the output of the teacher's attention in each layer.

    Hedgehog fits attention weights by cross-entropy (arXiv 2402.04347). LoLCATs by the same authors (Zhang et al. 2024,
    arXiv 2410.10254) fits the output, as here, which needs no n x n matrix. The input of every layer is the teacher's,
    so errors of lower layers do not accumulate. The first batch is held out to measure the errors.

    Args:
        teacher, student: in evaluation mode, of the same depth and width. Afterwards only the fitted matrices of
            the student require gradients.
        batches: token ids without padding, (B, n) each.
    """
    held_out, *to_train = batches
    student.requires_grad_(False)
    matrices = fitted_matrices(student)
    steps = [STEP * float(matrix.detach().square().mean().sqrt()) for matrix in matrices]
    groups = [{"params": [matrix.requires_grad_()], "lr": step} for matrix, step in zip(matrices, steps, strict=True)]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(to_train))
    initial_errors = _attention_errors(teacher, student, held_out).tolist()
    for batch in to_train:
        optimizer.zero_grad()
        _attention_errors(teacher, student, batch).sum().backward()
        optimizer.step()
        schedule.step()
    return Errors(initial_errors, _attention_errors(teacher, student, held_out).tolist())


def _attention_errors(teacher: SentenceEncoder, student: SentenceEncoder, tokens: Tensor) -> Tensor:
    """Return the relative squared error of each layer's attention, (L,)."""
    with torch.no_grad(), attention_of(teacher) as calls:
        teacher(tokens)
    pairs = zip(student.layers, calls, strict=True)
    differences = [(cast(EncoderLayer, layer).self_attn(*inputs) - out, out) for layer, (inputs, out) in pairs]
    return torch.stack([difference.square().mean() / out.square().mean() for difference, out in differences])


@contextmanager
def attention_of(encoder: SentenceEncoder) -> Iterator[list[tuple[tuple[Any, ...], Tensor]]]:
    """Yield a list; calls of the encoder append inputs and output, (B, n, d), of each layer's attention."""
    calls: list[tuple[tuple[Any, ...], Tensor]] = []
    with ExitStack() as hooks:
        for module in encoder.modules():
            if isinstance(module, Attention):
                hooks.enter_context(module.register_forward_hook(lambda _, inputs, out: calls.append((inputs, out))))
        yield calls
