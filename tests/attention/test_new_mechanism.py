"""docs/attention.md's example: one file written by hand is selectable, configurable and tested."""

import re
import shutil
import textwrap

import pytest

from tests.helpers import ROOT
from tests.helpers.commands import run

pytestmark = pytest.mark.slow

(EXAMPLE,) = re.findall(
    r"<!-- run by tests/attention/test_new_mechanism.py -->\n```python\n(.*?)```",
    (ROOT / "docs" / "attention.md").read_text(),
    re.DOTALL,
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what the example touches and its tests, with the one file more."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("fairseq_linformer", "linformer_cli", "hydra_plugins", "configs", "scripts", "tests"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "fairseq_linformer" / "attention" / "gated_mean.py").write_text(EXAMPLE)
    options = folder / "configs" / "model" / "options.yaml"  # where somebody follows the page it has the example's
    options.write_text(re.sub(r"^gated_mean_.*\n", "", options.read_text(), flags=re.MULTILINE))
    return folder


def test_the_contract_suite_tests_it(checkout):
    words = ("-q", "-rs", "tests/attention/test_contract.py", "-k", "gated-mean")
    printed = run("pytest", *words, cwd=checkout, root=checkout)
    assert re.search(r"(\d+) passed", printed) and "write tests/reference/gated_mean.py" in printed


def test_its_options_are_flags_and_are_checked(checkout):
    script = """
        from omegaconf import OmegaConf
        from fairseq import options
        from fairseq_linformer.model.resolve import resolve_config
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
    (checkout / "refuse.py").write_text(textwrap.dedent(script))
    printed = run(checkout / "refuse.py", cwd=checkout, root=checkout)
    lines = [line for line in printed.splitlines() if "=" in line]
    assert lines[-3:] == [
        "attention_dropout=0.1 is not allowed: it must be 0 with attention=gated-mean, which has no attention weights",
        "gated_mean_temperature=1.0 is not allowed: it must be left out with attention=linformer",
        "gated_mean_temperature=-1.0 is not allowed: it must be above 0",
    ]


def test_hydras_command_line_takes_its_options(checkout):
    """Once the script has listed them; until then the test of that list fails, and says so."""
    stale = ("-q", "tests/test_config.py", "-k", "file_of_options", "-o", "pythonpath=scripts")
    printed = run("pytest", *stale, cwd=checkout, root=checkout, status=1)
    assert "run python scripts/write_model_options.py" in printed
    run(checkout / "scripts" / "write_model_options.py", cwd=checkout, root=checkout)
    words = ["task.data=D", "model.attention=gated-mean", "model.gated_mean_temperature=2"]
    script = f"""
        from fairseq_linformer.model.resolve import resolve_config
        from tests.helpers.configs import composed
        cfg = composed("pretrain", "tiny_512", *{words}, "model.attention_dropout=0")
        print(resolve_config(cfg.model, 512).gated_mean_temperature)
    """
    (checkout / "compose.py").write_text(textwrap.dedent(script))
    assert run(checkout / "compose.py", cwd=checkout, root=checkout).splitlines()[-1] == "2.0"
