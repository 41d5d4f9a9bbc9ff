"""What `linformer analyze` does."""

from pathlib import Path

from ..analysis.analyze import analyze
from ..checkpoints.sentence_modules import is_of_transformers
from .program import quieten_transformers


def run(
    model: list[Path], input: Path, out: Path, beside: Path | None, tokenizer: Path | None, rows: int, tokens: int
) -> None:
    if any(map(is_of_transformers, filter(None, [*model, beside]))):
        quieten_transformers()
    files, found = analyze(model, input, out, rows, tokens, beside, tokenizer)
    print(f"{out}: {', '.join(files)}")
    print(*found, sep="\n")
