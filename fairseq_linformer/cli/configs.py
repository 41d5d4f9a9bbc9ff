"""What `linformer configs` does."""

from ..training.configuration import CONFIGS


def run() -> None:
    """Prints the folder."""
    print(CONFIGS)
