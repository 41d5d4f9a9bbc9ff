"""The example of docs/attention.md: one file makes a mechanism selectable, configurable and tested."""

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
SCRIPT = """
    import pytest
    from fairseq import options
    from omegaconf import OmegaConf
    import fairseq_linformer
    from fairseq_linformer.errors import UserError
    from fairseq_linformer.model.config import resolve_config
    from tests.attention import test_contract as contract
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
    (case,) = [case for case in contract.CASES if case[0] == "gated-mean"]
    contract.test_padding_is_invisible(*case)
    contract.test_a_value_residual_of_a_linear_map_is_another_value_map(*case)
    with pytest.raises(pytest.skip.Exception, match="write tests/reference/gated_mean.py"):
        contract.reference_of("gated-mean")
    print("tested")
"""


def test_one_file_is_enough(tmp_path):
    for name in ("fairseq_linformer", "hydra_plugins", "configs", "scripts", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "fairseq_linformer" / "attention" / "gated_mean.py").write_text(EXAMPLE)
    (tmp_path / "scripts" / "example.py").write_text(textwrap.dedent(SCRIPT))
    printed = run(tmp_path / "scripts" / "example.py", cwd=tmp_path, root=tmp_path).splitlines()
    expected = ["gated-mean 2.0", "attention_dropout", "gated_mean_temperature", "gated_mean_temperature"]
    expected += ["listed for Hydra", "tested"]
    assert [line for line in printed if line in expected] == expected
