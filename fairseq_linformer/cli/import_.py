"""What `linformer import` does."""

from pathlib import Path

from ..checkpoints.reading import UNTRAINED
from .fetching import here
from .program import quieten_transformers


def run(model: Path, out: Path) -> None:
    quieten_transformers()
    from ..hf.importing import import_folder

    for remark in import_folder(here(model), out):
        print(f"note: {remark}")
    print(f"{out / UNTRAINED}: written")
