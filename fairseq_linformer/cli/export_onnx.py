"""What `linformer export --format onnx` does: a file whose results were compared with PyTorch's."""

import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..conversion.convert import is_of_transformers
from ..errors import UserError, check
from ..hf.exporting import export

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROUNDS = 20


def export_model(model: Path, out: Path, data: Path | None = None) -> None:
    """Writes a checkpoint, or a model in a folder of transformers, as a file, and prints its size and the latencies.

    Args:
        model: the checkpoint, the folder of its run, or one of transformers.
        out: the file.
        data: the prepared folder of the checkpoint; by default the one that it was trained on.
    """
    if is_of_transformers(model):
        export_folder(model, out)
        return
    with tempfile.TemporaryDirectory() as temporary:
        export(model, Path(temporary, "exported"), data)
        export_folder(Path(temporary, "exported"), out)


def export_folder(folder: Path, out: Path) -> None:
    """The same of a folder of transformers."""
    try:
        from ..hf.onnx import (
            export_onnx,
            longest_input,
            open_session,
            random_batch,
            run_model,
            run_session,
        )
    except ModuleNotFoundError as error:
        packages = "transformers onnx onnxscript onnxruntime"
        raise UserError(f"{error.name} is missing: export to ONNX needs it: pip install {packages}") from error
    model = load(folder)
    export_onnx(model, out)
    data = out.with_name(f"{out.name}.data")
    session = open_session(out)
    size = sum(file.stat().st_size for file in (out, data) if file.exists())
    n = longest_input(model.config)
    batch = random_batch(model.config, 1, n)
    ours, theirs = medians(functools.partial(run_session, session, batch), functools.partial(run_model, model, batch))
    print(f"{out}: {size / 1e6:.1f} MB")
    threads = torch.get_num_threads()
    print(f"one row of {n} tokens, {threads} thread(s), median of {ROUNDS}: onnxruntime {ours:.1f} ms, ", end="")
    print(f"PyTorch {theirs:.1f} ms")


def load(folder: Path) -> "PreTrainedModel":
    """The model of a folder, of the class that its configuration names.

    Raises:
        UserError: the folder has no such model.
    """
    import transformers

    from .. import hf  # registers our classes, so that no remote code is needed

    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is no folder with a model of transformers: it has no config.json")
    values, _ = transformers.PretrainedConfig.get_config_dict(folder)
    kind, (name, *_) = values.get("model_type"), values.get("architectures") or [None]
    kinds = {hf.LinformerRobertaConfig.model_type: hf, "roberta": transformers}
    check(f"{folder}: model_type", kind, kind in kinds, f"one of {', '.join(kinds)}")
    tasks = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    family = "Roberta" if kind == "roberta" else "LinformerRoberta"
    names = [family + task for task in tasks]
    check(f"{folder}: architectures", name, name in names, f"one of {', '.join(names)}")
    return getattr(kinds[kind], str(name)).from_pretrained(folder, dtype=torch.float32, local_files_only=True)


def medians(*functions: Callable[[], object]) -> list[float]:
    """Milliseconds that each function takes, the median of several calls in turns."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(2 + ROUNDS):
        for function, own in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            own.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(own[2:]) for own in times]  # the first calls prepare what the others use
