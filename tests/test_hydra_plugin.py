"""The Hydra plugin: names of configurations, the CPU, and jobs of a --multirun."""

from argparse import Namespace

import pytest

from hydra_plugins.fairseq_linformer_plugin import ProcessLauncher, asks_for_cpu, check_config_name
from tests.helpers import ROOT


@pytest.mark.parametrize(("folder", "named"), [(str(ROOT / "configs/pretrain"), "tiny_512"), (None, "--config-dir")])
def test_a_config_name_that_does_not_exist_is_rejected(folder, named):
    with pytest.raises(SystemExit, match=named):
        check_config_name(folder, "tiny_521")


def test_the_last_word_decides_for_the_cpu():
    assert asks_for_cpu(["task.data=d", "common.cpu=true"]) and asks_for_cpu(["+common.cpu=True"])
    assert not asks_for_cpu(["common.cpu=true", "common.cpu=false"]) and not asks_for_cpu(["task.data=common.cpu=true"])


def test_several_jobs_under_torchrun_need_stores_of_their_own(monkeypatch):
    """In one store the second job's processes would find the addresses of the first one's."""
    launcher, ran = ProcessLauncher(), []
    monkeypatch.setattr(launcher, "_command", [], raising=False)
    monkeypatch.setattr(launcher, "_added", set(), raising=False)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("subprocess.run", lambda *words, **_: ran.append(words) or Namespace(returncode=0))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(SystemExit, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE"):
        launcher.launch([["a=1"], ["a=2"]], 0)
    assert not ran
    launcher.launch([["a=1"]], 0)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")  # as torchrun has it with that
    launcher.launch([["a=1"], ["a=2"]], 0)
    assert len(ran) == 3
