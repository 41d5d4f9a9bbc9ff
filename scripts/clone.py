"""`linformer` of this checkout, installed or not: python scripts/clone.py VERB …"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fairseq_linformer.cli.command import main

if __name__ == "__main__":
    main()
