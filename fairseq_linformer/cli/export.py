"""Export a model for transformers, without fairseq, or as an ONNX file.

    linformer export runs/tiny_512 --out exported
    linformer export runs/finetune/SST-2/seed1 --out sst-2
    linformer export runs/tiny_512 --format onnx --out tiny.onnx

A pretrained checkpoint becomes a masked language model, a fine-tuned one a classifier with its labels. The folder
contains weights, tokenizer, model card and the code of the model, which transformers runs with trust_remote_code=True.
No code is needed for a model that equals a RoBERTa of transformers (attention=softmax, norms after each block, no
convolution) or a ModernBERT (an imported one).
Before the folder is created, its logits are compared with those in fairseq.

--format onnx takes a checkpoint, or a folder of transformers with a model of this package, a RoBERTa or a ModernBERT.
Code in the folder is not run.
The file takes batches of any size and length, padded on the right, and has the names of optimum: the inputs input_ids
and attention_mask, and the output logits, or last_hidden_state of a model without a head. Weights above 1.5 GB are
written to FILE.data. The command prints the size of the file, and the latency of onnxruntime and PyTorch for one
sequence of maximum length, measured alternately on OMP_NUM_THREADS threads (default: one per core).
"""

import contextlib
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError, check
from ..files import naming
from .arguments import Parser
from .program import quieten_transformers

ROUNDS = 20


def add_arguments(parser: Parser) -> None:
    parser.add_shared("model")
    parser.add_shared("--out", metavar="DIR|FILE", help="folder to make; for ONNX the file to write")
    formats = ("transformers", "onnx")
    parser.add_argument("--format", choices=formats, default=formats[0], help="format of the new file")
    data = "prepared folder with the vocabulary and labels (default: that of the training)"
    parser.add_shared("--data", help=data)


def run(model: Path, out: Path, format: str, data: Path | None) -> None:
    quieten_transformers()
    if format == "onnx":
        write_onnx(model, out, data)
        return
    from ..hf.exporting import export

    for remark in export(model, out, data):
        print(f"note: {remark}")
    print(f"{out}: written; its model card is README.md")


def write_onnx(model: Path, out: Path, data: Path | None) -> None:
    """Write an ONNX file, and print its size and the latencies of onnxruntime and PyTorch."""
    import torch

    try:
        from ..hf import onnx
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is missing: pip install onnx onnxscript onnxruntime") from error

    with _in_transformers(model, data) as folder:
        loaded = load(folder)
        onnx.export_onnx(loaded, out)
    size = sum(file.stat().st_size for file in (out, out.with_name(f"{out.name}.data")) if file.exists())
    n = onnx.longest_input(loaded.config)
    batch = onnx.random_batch(loaded.config, 1, n)
    session = functools.partial(onnx.run_session, onnx.open_session(out), batch)
    onnx_time, torch_time = medians(session, functools.partial(onnx.run_model, loaded, batch))
    print(f"{out}: {size / 1e6:.1f} MB")
    threads = f"{torch.get_num_threads()} thread(s), median of {ROUNDS}"
    print(f"one row of {n} tokens, {threads}: onnxruntime {onnx_time:.1f} ms, PyTorch {torch_time:.1f} ms")


@contextlib.contextmanager
def _in_transformers(model: Path, data: Path | None) -> Iterator[Path]:
    """Yield the folder of transformers of a model; for a checkpoint it is temporary."""
    from ..hf.exporting import export
    from ..sentence_modules import is_of_transformers

    if is_of_transformers(model):
        check("--data", data, data is None, "left out with a folder of transformers")
        yield model
        return
    with tempfile.TemporaryDirectory() as temporary, naming(temporary, str(model)):
        export(model, Path(temporary, "exported"), data)
        yield Path(temporary, "exported")


def load(folder: Path) -> Any:
    """Load the model of a folder in the class of its configuration; of sentence-transformers the encoder."""
    import torch
    import transformers

    from .. import hf  # registers our classes, so that no remote code is needed
    from ..sentence_modules import MODULES_FILE

    values, _ = transformers.PretrainedConfig.get_config_dict(folder)
    model_type, (name, *_) = values.get("model_type"), values.get("architectures") or [None]
    modules = {hf.LinformerRobertaConfig.model_type: hf, "roberta": transformers, "modernbert": transformers}
    check(f"{folder}: model_type", model_type, model_type in modules, f"one of {', '.join(modules)}")
    heads = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    family = {"roberta": "Roberta", "modernbert": "ModernBert"}.get(str(model_type), "LinformerRoberta")
    names = [family + head for head in heads]
    check(f"{folder}: architectures", name, name in names, f"one of {', '.join(names)}")
    if (folder / MODULES_FILE).is_file():
        name = names[0]  # sentence-transformers pools the output of the encoder
    return getattr(modules[model_type], str(name)).from_pretrained(folder, dtype=torch.float32, local_files_only=True)


def medians(*functions: Callable[[], object]) -> list[float]:
    """Return the median duration of each function in milliseconds, over alternating calls."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(2 + ROUNDS):
        for function, milliseconds in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            milliseconds.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(milliseconds[2:]) for milliseconds in times]  # without the first calls, which warm up
