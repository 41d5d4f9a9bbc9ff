"""What `linformer export` does: a folder of transformers, which may be uploaded, or an ONNX file."""

from pathlib import Path

from ..errors import UserError
from .program import quieten_transformers


def run(model: Path, out: Path, format: str, data: Path | None, push: str | None, private: bool, dry_run: bool) -> None:
    """Writes the folder, or the file, and uploads the folder where that is asked for."""
    quieten_transformers()
    if format == "onnx":
        try:
            from .export_onnx import write_onnx
        except ModuleNotFoundError as error:
            raise UserError(f"{error.name} is missing: pip install onnx onnxscript onnxruntime") from error
        write_onnx(model, out, data)
        return
    from ..hf.exporting import export
    from ..hf.pushing import check_is_export, check_target
    from ..hf.pushing import push as upload

    if push is not None:
        check_target(push, dry_run)
    if push is not None and out.is_dir() and any(out.iterdir()):
        check_is_export(model, out, data)
    else:
        for remark in export(model, out, data):
            print(f"note: {remark}")
        print(f"{out}: written; its model card is README.md")
    if push is not None:
        for line in upload(out, push, private, dry_run):
            print(line)
