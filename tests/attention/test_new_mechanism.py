"""docs/attention.md's example: one new file is selectable, configurable and tested, and nothing else changes."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.helpers import ROOT

(EXAMPLE,) = re.findall(
    r"<!-- run by tests/attention/test_new_mechanism.py -->\n```python\n(.*?)```",
    (ROOT / "docs" / "attention.md").read_text(),
    re.DOTALL,
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the package and its tests, with the one file more."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("fairseq_linformer", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "fairseq_linformer" / "attention" / "gated_mean.py").write_text(EXAMPLE)
    return folder


def python(checkout, *words) -> str:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    output = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run([sys.executable, *words], check=False, cwd=checkout, env=environment, **output)
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_the_contract_suite_tests_it(checkout):
    printed = python(checkout, "-m", "pytest", "-q", "-rs", "tests/attention/test_contract.py", "-k", "gated-mean")
    assert re.search(r"(\d+) passed", printed) and "write tests/reference/gated_mean.py" in printed


def test_its_options_are_flags_and_are_checked(checkout):
    script = """
        from omegaconf import OmegaConf
        from fairseq import options
        from fairseq_linformer.resolve import resolve_config
        import fairseq_linformer
        parser = options.get_training_parser()
        words = ["D", "--arch", "linformer_roberta_tiny", "--task", "masked_lm", "--attention", "gated-mean"]
        words += ["--gated-mean-temperature", "2", "--attention-dropout", "0"]
        args = options.parse_args_and_arch(parser, words)
        config = resolve_config(args, 64)
        assert (config.attention, config.gated_mean_temperature) == ("gated-mean", 2.0)
        for wrong in ({"attention": "gated-mean"}, {"gated_mean_temperature": 1.0},
                      {"attention": "gated-mean", "attention_dropout": 0.0, "gated_mean_temperature": -1.0}):
            try:
                resolve_config(OmegaConf.create(wrong), 64)
            except ValueError as error:
                print(error)
    """
    lines = [
        line for line in python(checkout, "-c", re.sub(r"^ {8}", "", script, flags=re.M)).splitlines() if "=" in line
    ]
    assert lines[-3:] == [
        "attention_dropout=0.1 is not allowed: it must be 0 with attention=gated-mean, which has no attention weights",
        "gated_mean_temperature=1.0 is not allowed: it must be left out with attention=linformer",
        "gated_mean_temperature=-1.0 is not allowed: it must be above 0",
    ]
