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
    for name in ("fairseq_linformer", "hydra_plugins", "configs", "scripts", "tests"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "fairseq_linformer" / "attention" / "gated_mean.py").write_text(EXAMPLE)
    return folder


def test_the_contract_suite_tests_it(checkout):
    words = ("-q", "-rs", "tests/attention/test_contract.py", "-k", "gated-mean")
    printed = run("pytest", *words, cwd=checkout, root=checkout)
    assert re.search(r"(\d+) passed", printed) and "write tests/reference/gated_mean.py" in printed


def test_its_options_are_flags_and_keys_and_are_checked(checkout):
    script = """
        from pathlib import Path
        from fairseq import options
        from omegaconf import OmegaConf
        import fairseq_linformer
        from fairseq_linformer.errors import UserError
        from fairseq_linformer.model.config import resolve_config
        from write_model_options import options_yaml
        words = "D --arch linformer_roberta_tiny --task masked_lm --attention gated-mean --attention-dropout 0"
        words += " --gated-mean-temperature 2"
        args = options.parse_args_and_arch(options.get_training_parser(), words.split())
        config = resolve_config(args, 64)
        print(config.attention, config.gated_mean_temperature)
        for wrong in ("attention=gated-mean", "gated_mean_temperature=1.0",
                      "gated_mean_temperature=-1.0 attention=gated-mean attention_dropout=0"):
            try:
                resolve_config(OmegaConf.from_dotlist(wrong.split()), 64)
            except UserError as error:
                print(str(error).split("=")[0])
        print("listed for Hydra" * ("gated_mean_temperature:" in options_yaml()))
    """
    (checkout / "scripts" / "reject.py").write_text(textwrap.dedent(script))
    printed = run(checkout / "scripts" / "reject.py", cwd=checkout, root=checkout).splitlines()
    expected = ["gated-mean 2.0", "attention_dropout", "gated_mean_temperature", "gated_mean_temperature"]
    expected += ["listed for Hydra"]
    assert [line for line in printed if line in expected] == expected
