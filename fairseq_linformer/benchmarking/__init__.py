"""What scripts/benchmark.py measures with: models, clock and memory, suites, tables and plots."""

import logging

logging.getLogger("matplotlib").setLevel(logging.WARNING)  # importing fairseq makes every library write all it can
