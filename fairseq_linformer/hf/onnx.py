"""Export to ONNX with dynamic batch size and length, and comparison with PyTorch.

Dimensions: B batch, n sequence length, d embedding, V vocabulary.
"""

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from ..errors import UserError, check
from .configuration_linformer_roberta import LinformerRobertaConfig

INPUTS = ("input_ids", "attention_mask")
AXES = {0: "batch_size", 1: "sequence_length"}
TOLERANCE = 1e-4  # relative to the largest output, or absolute if that is below 1

Batch = tuple[Tensor, Tensor]  # token ids and attention mask, (B, n) each


def export_onnx(model: PreTrainedModel, path: Path) -> None:
    """Write an encoder and its head, if any, as ONNX, and compare onnxruntime's results with PyTorch's.

    The graph has the inputs ``input_ids`` and ``attention_mask``, int64 (B, n), and the output ``logits``, or
    ``last_hidden_state`` without a head. B and n are dynamic, n up to the model's. Padding must be on the right, which
    the graph does not check. Names are those of optimum. Weights above 1.5 GB are written to ``FILE.data``.

    `path` is created or replaced if results agree: for sequences of 1, 2, about n / 2 and n tokens, with batch sizes 1
    and 3, with padding and without, within 1e-4 of the largest output or of 1.

    Args:
        model: of this package, a RoBERTa or a ModernBERT, on the CPU in float32. It is set to evaluation mode.
        path: file to write.

    Raises:
        UserError: the model cannot be exported, or results differ; the message names its attention.
        OSError: the file cannot be written.
    """
    placement = f"{model.dtype} on {model.device.type}"
    check("model", placement, placement == "torch.float32 on cpu", "torch.float32 on cpu")
    if path.is_dir():
        raise UserError(f"{path} is a folder: name a file")
    model.eval()
    path.parent.mkdir(parents=True, exist_ok=True)  # such as the folder onnx of sentence-transformers
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        partial = Path(folder, path.name)  # the graph contains the name of the file of weights
        try:
            _write(model, partial)
            _compare(model, partial)
        except OSError:
            raise
        except Exception as error:  # PyTorch's exporter and onnxruntime have no common error class
            cause: BaseException = error
            while cause.__cause__ is not None:  # the exporter's message names only the step that failed
                cause = cause.__cause__
            reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
            attention = getattr(model.config, "attention", "softmax")
            raise UserError(f"a model with attention={attention} cannot be exported to ONNX: {reason}") from error
        data, partial_data = (file.with_name(f"{file.name}.data") for file in (path, partial))
        if partial_data.exists():
            path.unlink(missing_ok=True)  # better no graph than one with other weights
            partial_data.replace(data)
        partial.replace(path)


def longest_input(config: PretrainedConfig) -> int:
    """Return n, the maximum number of tokens of a sequence."""
    if isinstance(config, LinformerRobertaConfig):
        return config.max_positions
    first_position = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    return config.max_position_embeddings - first_position


def random_batch(config: PretrainedConfig, batch_size: int, length: int, padded: bool = False) -> Batch:
    """Return token ids and attention mask, (batch_size, length) each, of random tokens with a fixed seed.

    With padding the first sequence has half of the tokens, rounded up.
    """
    ids = torch.randint(config.vocab_size - 1, (batch_size, length), generator=torch.Generator().manual_seed(0))
    ids += ids >= config.pad_token_id  # any token except padding
    mask = torch.ones_like(ids)
    if padded:
        mask[0, (length + 1) // 2 :] = 0
    return ids.masked_fill(mask == 0, config.pad_token_id), mask


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Open a session of onnxruntime on the CPU with the number of PyTorch's threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_session(session: onnxruntime.InferenceSession, batch: Batch) -> Tensor:
    """Return the output of onnxruntime for a batch."""
    named_inputs = zip(INPUTS, batch, strict=True)
    return torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in named_inputs})[0])


@torch.inference_mode()
def run_model(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return the output of PyTorch for a batch."""
    return _FirstOutput(model)(*batch)


class _FirstOutput(nn.Module):
    """Wrapper of a model with two input tensors and one output tensor."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]


def _write(model: PreTrainedModel, path: Path) -> None:
    n = longest_input(model.config)
    dynamic_axes = dict.fromkeys(AXES, torch.export.Dim.DYNAMIC)
    output = "last_hidden_state" if model.base_model is model else "logits"
    with torch.no_grad(), _quiet():
        program = torch.export.export(
            _FirstOutput(model),
            random_batch(model.config, 3, max(2, n - 1), padded=True),  # generic sizes
            dynamic_shapes=(dynamic_axes, dynamic_axes),
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,  # the comparison tests other sizes
        )
        names: dict[str, Any] = {"input_names": INPUTS, "output_names": [output], "dynamic_shapes": (AXES, AXES)}
        exported = torch.onnx.export(program, **names, dynamo=True, verbose=False)
        assert exported is not None  # for mypy: only dynamo=False returns None
        ClearMetadataAndDocStringPass()(exported.model)  # removes stack traces with this machine's paths
        exported.save(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's warnings about packages that are not needed and about its use of PyTorch."""
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
        for batch_size in (1, 3):
            for padded in {False, length > 1}:
                batch = random_batch(model.config, batch_size, length, padded)
                expected, actual = run_model(model, batch), run_session(session, batch)
                if expected.dim() == 3:  # per token: outputs at padding may differ
                    expected, actual = (output[batch[1].bool()] for output in (expected, actual))
                difference, largest = float((actual - expected).abs().max()), float(expected.abs().max())
                if not difference <= TOLERANCE * max(1.0, largest):
                    case = f"{batch_size} x {length} tokens{' with padding' * padded}"
                    raise UserError(f"for {case} onnxruntime's results differ from PyTorch's by up to {difference:.1e}")
