"""`linformer` as the clone around this folder has it, installed or not: python scripts/clone.py VERB …"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from linformer_cli.command import main


def linformer(verb: str) -> None:
    """Runs the verb with what this program was given."""
    main([*verb.split(), *sys.argv[1:]])


if __name__ == "__main__":
    main()
