"""500 M random tokens in 20 M lines, for docs/scaling.md: python docs/commands/random_corpus.py DIR

DIR holds the dictionary, subword model and valid of a corpus of 4,000 pieces already; train is written beside them.
"""

import sys
from pathlib import Path

import numpy as np

from fairseq_linformer.data.indexed import IndexedWriter

with IndexedWriter(Path(sys.argv[1]) / "train", 4000) as writer:
    for part in range(100):
        ids = np.random.default_rng(part).integers(4, 4000, 5_000_000)
        ids[24::25] = 2
        writer.write(ids, np.full(200_000, 25))
