"""The benchmark's harness and the comparisons: what the scripts beside this folder run.

``suites`` of cases over ``baselines``, each ``measuring`` time and memory, are run by ``runner`` into ``rows``, from
which ``report`` and ``plots`` make tables and figures (benchmark.py). ``variants`` (compare.py) and ``mechanisms``
(compare_attention.py) share one small ``pretraining``. ``recall`` (the task, and the training on it) and
``recall_comparison`` are recall.py's, ``corpus_speed`` is benchmark_corpus.py's.
"""

import logging
import os

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else PyTorch's profiler prints two lines at each use
logging.getLogger("matplotlib").setLevel(logging.WARNING)  # importing fairseq sets the root logger to DEBUG
