"""`import fairseq_linformer`: needs no fairseq for layers, and registers its classes when a checkpoint is read."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.helpers import ROOT

PROGRAM = """
import sys
from pathlib import Path
import fairseq_linformer

assert not {"torch", "fairseq"} & sys.modules.keys()
sys.modules["fairseq"] = None
import fairseq_linformer.attention.kernels.flex, fairseq_linformer.hf, fairseq_linformer.model.lm_head
assert "fairseq_linformer.plugin" not in sys.modules
del sys.modules["fairseq"]
from fairseq_linformer.checkpoint import read_checkpoint

try:
    read_checkpoint(Path("none.pt"))
except FileNotFoundError:
    pass
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

assert "linformer_roberta" in MODEL_REGISTRY and "text_prediction" in TASK_REGISTRY
assert fairseq_linformer.LinformerRobertaModel is MODEL_REGISTRY["linformer_roberta"]
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_fairseq_is_imported_when_it_is_needed():
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, check=True, timeout=200)
