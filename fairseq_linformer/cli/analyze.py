"""What `linformer analyze` does."""

from pathlib import Path

from ..checkpoints.sentence_modules import is_of_transformers
from ..errors import UserError
from .program import quieten_transformers


def run(model: Path, input: Path, out: Path, tokenizer: Path | None, rows: int, tokens: int) -> None:
    try:
        import matplotlib  # noqa: F401  # only the pictures of this command need it
    except ImportError as error:
        raise UserError(f"matplotlib is needed ({error}): pip install 'fairseq-linformer[analysis]'") from error
    from ..analysis import analyze

    if is_of_transformers(model):
        quieten_transformers()
    print(f"{out}: {', '.join(analyze(model, input, out, rows, tokens, tokenizer))}")
