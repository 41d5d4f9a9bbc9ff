"""What `linformer study` does: it runs the study of a clone."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run(words: Sequence[str]) -> None:
    """Calls the clone's scripts/study.py.

    Raises:
        UserError: this is not a clone.
    """
    if not (SCRIPTS / "study.py").is_file():
        raise UserError(f"linformer study needs a clone of the repository: there is no {SCRIPTS / 'study.py'}")
    sys.path.insert(0, str(SCRIPTS))
    importlib.import_module("study").main(words or ["--help"])
