"""`linformer` of this checkout, installed or not: python scripts/clone.py VERB …"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fairseq_linformer.cli.command import main


def linformer(verb: str = "") -> None:
    """Run a verb, or the first word of the command line, with the words of the command line."""
    main([*verb.split(), *sys.argv[1:]])


if __name__ == "__main__":
    linformer()
