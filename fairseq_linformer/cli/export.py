"""What `linformer export` does: a folder of transformers, or an ONNX file."""

from pathlib import Path

from ..errors import UserError
from .program import quieten_transformers


def run(model: Path, out: Path, format: str, data: Path | None) -> None:
    """Write the folder, or the file."""
    quieten_transformers()
    if format == "onnx":
        try:
            from .export_onnx import write_onnx
        except ModuleNotFoundError as error:
            raise UserError(f"{error.name} is missing: pip install onnx onnxscript onnxruntime") from error
        write_onnx(model, out, data)
        return
    from ..hf.exporting import export

    for remark in export(model, out, data):
        print(f"note: {remark}")
    print(f"{out}: written; its model card is README.md")
