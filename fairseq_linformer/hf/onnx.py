"""Models of transformers as ONNX files: for any number of rows, of any length, and compared with PyTorch.

Dimensions: B batch, n sequence length, d embedding, V vocabulary.
"""

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from ..attention import get_attention
from ..errors import UserError, check
from .configuration_linformer_roberta import LinformerRobertaConfig

INPUTS = ("input_ids", "attention_mask")
AXES = {0: "batch_size", 1: "sequence_length"}
TOLERANCE = 1e-4  # times the largest number of the output, where that is above 1

Batch = tuple[Tensor, Tensor]  # token ids and attention mask, (B, n) each


def export_onnx(model: PreTrainedModel, path: Path) -> None:
    """Writes an encoder, with its head if it has one, as ONNX, and compares onnxruntime's results with PyTorch's.

    The graph has the inputs ``input_ids`` and ``attention_mask``, int64 (B, n), and the output ``logits``, or
    ``last_hidden_state`` without a head. B and n are free, n up to the model's. Padding stands on the right; the graph
    does not look whether it does. Names are those of optimum. Weights above 1.5 GB stand beside the file, in one with
    ``.data`` after its name.

    `path` appears, or is replaced, when results agree: for texts of 1, 2, about n / 2 and n tokens, alone and in
    threes, with padding and without, to 1e-4, or where the output has larger numbers than 1, to 1e-4 of the largest.

    Args:
        model: of this package, or a RoBERTa; on the CPU and in float32. It is put into evaluation mode.
        path: of the file.

    Raises:
        UserError: the model cannot be exported, or gives other results; the message names its attention.
        OSError: the file cannot be written.
    """
    where = f"{model.dtype} on {model.device.type}"
    check("model", where, where == "torch.float32 on cpu", "torch.float32 on cpu")
    if path.is_dir():
        raise UserError(f"{path} is a folder: name a file")
    model.eval()
    path.parent.mkdir(parents=True, exist_ok=True)  # sentence-transformers looks in the folder onnx
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        partial = Path(folder, path.name)  # the name of the file with the weights stands in the graph
        with _named(model):
            _write(model, partial)
            _compare(model, partial)
        data, partial_data = (file.with_name(f"{file.name}.data") for file in (path, partial))
        if partial_data.exists():
            path.unlink(missing_ok=True)  # rather no graph than one beside the weights of another
            partial_data.replace(data)
        partial.replace(path)


def longest_input(config: PretrainedConfig) -> int:
    """n: the most tokens that a model takes."""
    if isinstance(config, LinformerRobertaConfig):
        return config.max_positions
    return config.max_position_embeddings - config.pad_token_id - 1  # a RoBERTa counts positions from there


def random_batch(config: PretrainedConfig, rows: int, length: int, padded: bool = False) -> Batch:
    """Texts of random tokens, always the same: token ids and attention mask, (rows, length) each.

    With padding the first row has only half of its tokens, rounded up.
    """
    ids = torch.randint(config.vocab_size - 1, (rows, length), generator=torch.Generator().manual_seed(0))
    ids += ids >= config.pad_token_id  # any token but that
    mask = torch.ones_like(ids)
    if padded:
        mask[0, (length + 1) // 2 :] = 0
    return ids.masked_fill(mask == 0, config.pad_token_id), mask


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """onnxruntime on the CPU, with as many threads as PyTorch has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_session(session: onnxruntime.InferenceSession, batch: Batch) -> Tensor:
    """The output for a batch."""
    named = zip(INPUTS, batch, strict=True)
    return torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in named})[0])


@torch.inference_mode()
def run_model(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The same by PyTorch."""
    return _FirstOutput(model)(*batch)


class _FirstOutput(nn.Module):
    """A model as a function of two tensors that returns one."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]


def _write(model: PreTrainedModel, path: Path) -> None:
    n = longest_input(model.config)
    free = dict.fromkeys(AXES, torch.export.Dim.DYNAMIC)
    output = "last_hidden_state" if model.base_model is model else "logits"
    with torch.no_grad(), _quiet():
        program = torch.export.export(
            _FirstOutput(model),
            random_batch(model.config, 3, max(2, n - 1), padded=True),  # no size that is special
            dynamic_shapes=(free, free),
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,  # whether lengths are really free, the comparison shows
        )
        names: dict[str, Any] = {"input_names": INPUTS, "output_names": [output], "dynamic_shapes": (AXES, AXES)}
        exported = torch.onnx.export(program, **names, dynamo=True, verbose=False)
        assert exported is not None  # as with dynamo=False
        ClearMetadataAndDocStringPass()(exported.model)  # stack traces: half of a small file, and this machine's paths
        exported.save(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides what the exporter says about packages that nothing here needs, and about its own use of PyTorch."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _compare(model: PreTrainedModel, path: Path) -> None:
    session = open_session(path)
    n = longest_input(model.config)
    for length in sorted({1, min(2, n), n // 2 | 1, n}):
        for rows in (1, 3):
            for padded in {False, length > 1}:
                batch = random_batch(model.config, rows, length, padded)
                wanted, got = run_model(model, batch), run_session(session, batch)
                if wanted.dim() == 3:  # an output per token: at padding it is free
                    wanted, got = (output[batch[1].bool()] for output in (wanted, got))
                difference, largest = float((got - wanted).abs().max()), float(wanted.abs().max())
                if not difference <= TOLERANCE * max(1.0, largest):
                    some = f"{rows} x {length} tokens{' with padding' * padded}"
                    raise UserError(f"for {some} onnxruntime's results differ from PyTorch's by up to {difference:.1e}")


@contextlib.contextmanager
def _named(model: PreTrainedModel) -> Iterator[None]:
    """Names the model in what is raised. PyTorch's exporter and onnxruntime have no error class in common."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the exporter's own message only says in which step it was
            cause = cause.__cause__
        reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
        raise UserError(f"{_described(model.config)} cannot be exported to ONNX: {reason}") from error


def _described(config: PretrainedConfig) -> str:
    """The options that the graph depends on most."""
    if not isinstance(config, LinformerRobertaConfig):
        return f"model_type={config.model_type}"
    mechanism = get_attention(config.attention)
    names = ["attention", *(own.name for own in fields(mechanism.Options) if hasattr(config, own.name))]
    if mechanism.USES_PROJECTION:
        names += ["projection", "sharing", "adaptive_length"]
    return ", ".join(f"{name}={value}" for name in names if (value := getattr(config, name)) not in (None, False))
