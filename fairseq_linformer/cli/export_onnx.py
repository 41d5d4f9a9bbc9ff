"""A model in transformers' format as an ONNX file, with results that were compared with PyTorch's.

    python scripts/export_onnx.py hf/books books.onnx

The folder is one of scripts/export_hf.py, or that of a RoBERTa. No code from it runs. The file takes any number of rows
of any length, padded on the right, and has the names that optimum gives: the inputs input_ids and attention_mask, and
the output logits, or last_hidden_state of a model without a head. Weights above 1.5 GB stand beside it, in FILE.data.

What is printed at the end is the size of the file, and how long onnxruntime and PyTorch take for one row of the longest
length, in turns, on as many threads as OMP_NUM_THREADS says (default: as many as the machine has cores).
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..errors import UserError, check
from .arguments import make_parser
from .program import program

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROUNDS = 20


def export(folder: Path, out: Path) -> None:
    """Writes the file, and prints its size and the latencies."""
    try:
        from ..hf.onnx import export_onnx, longest_input, open_session, random_batch, run_model, run_session
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


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="with config.json and model.safetensors")
    parser.add_argument("out", metavar="FILE", type=Path, help="to write, usually with .onnx at its end")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    options = vars(parse_arguments(words))
    with program():
        export(**options)
