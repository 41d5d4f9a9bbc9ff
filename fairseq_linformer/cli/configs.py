"""What `linformer configs` does."""

from ..training.provenance import CONFIGS


def run() -> None:
    """Prints the folder."""
    print(CONFIGS)
