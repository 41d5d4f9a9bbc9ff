"""The Hydra plugin: names of configurations, the CPU, and jobs of a --multirun."""

from argparse import Namespace

import pytest
from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY

from hydra_plugins.fairseq_linformer_plugin import ProcessLauncher, asks_for_cpu, check_config_name, complete_command
from tests.helpers import ROOT
from tests.helpers.configs import composed


@pytest.mark.parametrize(("folder", "named"), [(str(ROOT / "configs/pretrain"), "tiny_512"), (None, "--config-dir")])
def test_a_config_name_that_does_not_exist_is_rejected(folder, named):
    with pytest.raises(SystemExit, match=named):
        check_config_name(folder, "tiny_521")


@pytest.mark.parametrize("name", ["tri_stage", "triangular", "reduce_lr_on_plateau", "inverse_sqrt"])
def test_any_schedule_of_fairseq_and_a_number_in_place_of_a_list(name):
    """Recipes set a warm-up, which some schedules lack."""
    words = complete_command(["task.data=D", f"lr_scheduler={name}", "optimization.lr=1e-3"])
    cfg = composed("pretrain", "tiny_512", *words)
    assert cfg.lr_scheduler.keys() == {"_name", *vars(LR_SCHEDULER_DATACLASS_REGISTRY[name]())}
    assert cfg.lr_scheduler._name == name and cfg.optimization.lr == [0.001]


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
