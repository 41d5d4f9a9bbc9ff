"""What scripts/benchmark.py measures with: models, clock and memory, suites, tables and plots."""

import logging
import os

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # PyTorch's profiler writes two lines each time it is used
logging.getLogger("matplotlib").setLevel(logging.WARNING)  # importing fairseq makes every library write all it can
