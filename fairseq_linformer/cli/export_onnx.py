"""What `linformer export --format onnx` does: a file whose results were compared with PyTorch's."""

import contextlib
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import transformers

from .. import hf  # registers our classes, so that no remote code is needed
from ..errors import check, naming
from ..hf.exporting import export
from ..hf.onnx import export_onnx, longest_input, open_session, random_batch, run_model, run_session
from ..sentence_modules import MODULES_FILE, is_of_transformers

ROUNDS = 20


def write_onnx(model: Path, out: Path, data: Path | None) -> None:
    """Writes the file, and prints its size and the latencies.

    Args:
        model: a checkpoint, the folder of its run, or one of transformers.
        out: the file.
        data: the prepared folder of the checkpoint; by default the one that it was trained on.
    """
    with _in_transformers(model, data) as folder:
        loaded = load(folder)
        export_onnx(loaded, out)
    weights = out.with_name(f"{out.name}.data")
    session = open_session(out)
    size = sum(file.stat().st_size for file in (out, weights) if file.exists())
    n = longest_input(loaded.config)
    batch = random_batch(loaded.config, 1, n)
    ours, theirs = medians(functools.partial(run_session, session, batch), functools.partial(run_model, loaded, batch))
    print(f"{out}: {size / 1e6:.1f} MB")
    threads = torch.get_num_threads()
    print(f"one row of {n} tokens, {threads} thread(s), median of {ROUNDS}: onnxruntime {ours:.1f} ms, ", end="")
    print(f"PyTorch {theirs:.1f} ms")


@contextlib.contextmanager
def _in_transformers(model: Path, data: Path | None) -> Iterator[Path]:
    """The model's folder of transformers; a checkpoint has one for as long as the body runs."""
    if is_of_transformers(model):
        check("--data", data, data is None, "left out with a folder of transformers")
        yield model
        return
    with tempfile.TemporaryDirectory() as temporary, naming(temporary, str(model)):
        export(model, Path(temporary, "exported"), data)
        yield Path(temporary, "exported")


def load(folder: Path) -> transformers.PreTrainedModel:
    """The model of a folder, of the class that its configuration names; of sentence-transformers its encoder.

    Raises:
        UserError: the folder has no such model.
    """
    values, _ = transformers.PretrainedConfig.get_config_dict(folder)
    kind, (name, *_) = values.get("model_type"), values.get("architectures") or [None]
    kinds = {hf.LinformerRobertaConfig.model_type: hf, "roberta": transformers}
    check(f"{folder}: model_type", kind, kind in kinds, f"one of {', '.join(kinds)}")
    tasks = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    family = "Roberta" if kind == "roberta" else "LinformerRoberta"
    names = [family + task for task in tasks]
    check(f"{folder}: architectures", name, name in names, f"one of {', '.join(names)}")
    if (folder / MODULES_FILE).is_file():
        name = names[0]  # sentence-transformers pools what it gives
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
