"""`import fairseq_linformer`: light without fairseq, and registered wherever fairseq needs it."""

import subprocess
import sys

import pytest

from tests.helpers import ROOT

WITHOUT_FAIRSEQ = """
import sys
sys.modules["fairseq"] = None
import fairseq_linformer.attention, fairseq_linformer.hf
assert "fairseq_linformer.plugin" not in sys.modules
"""
USER_DIR = """
from argparse import Namespace
from fairseq.utils import import_user_module
import_user_module(Namespace(user_dir="fairseq_linformer"))
"""
SPAWNED = """
import multiprocessing, sys
from pathlib import Path
import fairseq_linformer

def import_class():
    from fairseq_linformer import LinformerRobertaModel, TextPredictionTask
    return LinformerRobertaModel.__name__

if __name__ == "__main__":
    assert not {"torch", "fairseq"} & sys.modules.keys()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(import_class) == "LinformerRobertaModel"
    from fairseq_linformer.checkpoint import read_checkpoint
    try:
        read_checkpoint(Path("none.pt"))
    except FileNotFoundError:
        pass
"""
REGISTERED = """
if __name__ == "__main__":
    from fairseq.models import MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY
    assert "linformer_roberta" in MODEL_REGISTRY and "text_prediction" in TASK_REGISTRY
"""


def run(tmp_path, program):
    (tmp_path / "program.py").write_text(program)
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, tmp_path / "program.py"], cwd=ROOT, env=environment, check=True, timeout=200)


@pytest.mark.slow
def test_layers_and_transformers_models_need_no_fairseq(tmp_path):
    pytest.importorskip("transformers")
    run(tmp_path, WITHOUT_FAIRSEQ)


@pytest.mark.slow
@pytest.mark.parametrize("program", [USER_DIR, SPAWNED])
def test_names_are_registered_when_fairseq_or_a_checkpoint_needs_them(tmp_path, program):
    run(tmp_path, f"{program}{REGISTERED}")
