"""The studies, and the engine that runs them: what scripts/study.py runs."""

import logging
import os

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else PyTorch's profiler prints two lines at each use
logging.getLogger("matplotlib").setLevel(logging.WARNING)  # importing fairseq sets the root logger to DEBUG
