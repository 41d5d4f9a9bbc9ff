"""Start and end of a run. The command lines: test_training.py."""

from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.checkpoint_utils import save_checkpoint, torch_persistent_save
from fairseq.dataclass.configs import CheckpointConfig, DatasetConfig
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import FairseqTask
from fairseq_cli.train import should_stop_early
from omegaconf import OmegaConf

from fairseq_linformer.checkpoint import read_progress
from fairseq_linformer.errors import UserError
from fairseq_linformer.training import configuration
from fairseq_linformer.training.fused_adam import FairseqAdam as FusedFairseqAdam
from fairseq_linformer.training.options import RESET, checkpoint_to_load
from fairseq_linformer.training.run import Run
from fairseq_linformer.training.task import TrainingTask
from tests.helpers import ROOT
from tests.helpers.checkpoints import state


def config(folder, **changes):
    options = {
        "checkpoint": {**vars(CheckpointConfig()), "save_dir": str(folder), "model_parallel_size": 1},
        "optimization": {"max_update": 10, "max_epoch": 0, "stop_time_hours": 0, "update_freq": [1]},
        "optimizer": {"_name": "adam"},
        "criterion": {"_name": "masked_lm"},
        "model": {"_name": "another"},
        "dataset": {**vars(DatasetConfig()), "batch_size": 1, "validate_after_updates": 50, "valid_subset": "valid"},
        "distributed_training": {"distributed_world_size": 1},
        "common": {"log_interval": 100, "seed": 1},
        "task": {"data": str(ROOT / "configs/precision"), "save_interval_minutes": 15},
    }
    return OmegaConf.merge(options, OmegaConf.from_dotlist([f"{name}={value}" for name, value in changes.items()]))


@pytest.fixture
def folder(tmp_path):
    """The folder of a run of five updates, which is in its third epoch after a minute."""
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        torch_persistent_save(state(5), str(tmp_path / name))
    return tmp_path


@pytest.mark.parametrize(
    "limit", [{"max_update": 5}, {"max_update": 4}, {"max_update": 0, "max_epoch": 2}, {"stop_time_hours": 0.016}]
)
def test_a_run_that_has_reached_a_limit_is_complete(folder, capsys, limit):
    with pytest.raises(SystemExit) as ended:
        Run(config(folder, **{f"optimization.{name}": value for name, value in limit.items()}), {}, "next {run}")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "complete: 5 updates" in printed and f"perplexity {2**4.5:.2f}" in printed and f"next {folder}" in printed


@pytest.mark.parametrize("limit", [{}, {"max_update": 0, "max_epoch": 3}, {"stop_time_hours": 1}])
def test_a_run_below_its_limits_resumes_from_a_complete_checkpoint(folder, limit):
    """A kill during fairseq's copy leaves a part of the last checkpoint."""
    last = folder / "checkpoint_last.pt"
    last.write_bytes(last.read_bytes()[:1000])
    Run(config(folder, **{f"optimization.{name}": value for name, value in limit.items()}), {"dictionary": "new"}, "")
    assert read_progress(last).updates == 5 and (folder / "checkpoint_last.pt.damaged").is_file()
    torch_persistent_save(state(5, task_state={"vocabulary": {"dictionary": "old"}}), str(last))
    with pytest.raises(UserError, match="another dictionary"):
        Run(config(folder), {"dictionary": "new"}, "")


def test_a_log_interval_that_was_typed_stays(tmp_path, monkeypatch):
    """By default a short run logs twenty times."""
    monkeypatch.setattr(configuration, "typed_command", lambda: ["fairseq-hydra-train", "common.log_interval=50"])
    cfg = config(tmp_path, **{"common.log_interval": 50})
    Run(cfg, {}, "")
    assert cfg.common.log_interval == 50


@pytest.mark.parametrize(("patience", "is_complete"), [(3, True), (4, False), (-1, False)])
def test_a_run_that_patience_ended_is_complete_for_that_patience(tmp_path, capsys, monkeypatch, patience, is_complete):
    """A larger patience continues the count and the best loss."""
    cfg = config(tmp_path, **{"checkpoint.patience": patience})
    monkeypatch.setattr(should_stop_early, "num_runs", 3, raising=False)  # where fairseq counts
    task = TrainingTask(None)
    task.run = Run(cfg, {}, "")
    extra = {**state(5)["extra_state"], **task.get_checkpoint_dict()}
    torch_persistent_save(state(5, extra_state=extra), str(tmp_path / "checkpoint_last.pt"))
    del task.run  # and with it the lock
    monkeypatch.setattr(should_stop_early, "best", None, raising=False)  # as in another process
    monkeypatch.setattr(should_stop_early, "num_runs", 0)
    with pytest.raises(SystemExit) if is_complete else nullcontext():
        Run(cfg, {}, "")
    assert ("complete: 5 updates" in capsys.readouterr().out) == is_complete
    assert is_complete or should_stop_early(cfg, valid_loss=4.6) == (patience == 4)


def test_an_initial_checkpoint_with_all_updates_is_rejected(folder, tmp_path_factory):
    """fairseq would train one more, each time that the command is repeated."""
    new, initial = tmp_path_factory.mktemp("new"), {"checkpoint.restore_file": folder / "checkpoint_best.pt"}
    with pytest.raises(UserError, match=r"^optimization\.max_update=5"):
        Run(config(new, **initial, **{"optimization.max_update": 5}), {}, "")
    for changes in ({"optimization.max_update": 0}, {"optimization.max_update": 5, "checkpoint.reset_optimizer": True}):
        Run(config(tmp_path_factory.mktemp("new"), **initial, **changes), {}, "")


def test_the_initial_checkpoint_is_part_of_a_run(folder, tmp_path_factory):
    """If it has been removed, the run resumes with its digest."""
    new = tmp_path_factory.mktemp("new")
    torch_persistent_save(state(3), str(new / "one.pt"))
    torch_persistent_save(state(4), str(new / "other.pt"))
    initial = {name: {"checkpoint.finetune_from_model": new / f"{name}.pt"} for name in ("one", "other", "gone")}
    run = Run(config(folder / "run", **initial["one"]), {}, "")
    torch_persistent_save(state(5, task_state=run.task_state()), str(folder / "run" / "checkpoint_last.pt"))
    fingerprint = run.fingerprint
    del run  # and with it the lock
    for changes in (initial["other"], {}):
        with pytest.raises(UserError, match="initial checkpoint has other content"):
            Run(config(folder / "run", **changes), {}, "")
    for changes in (initial["gone"], {"checkpoint.restore_file": folder / "run" / "checkpoint_last.pt"}):
        assert Run(config(folder / "run", **changes), {}, "").fingerprint == fingerprint


@pytest.mark.parametrize("named", ["gone.pt", "other.pt"])
def test_the_last_checkpoint_of_a_folder_has_precedence(tmp_path, monkeypatch, named):
    """fairseq would begin at the named one each time that the command is repeated, and leave out its optimizer."""
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    options = {"save_dir": "run", "restore_file": named, "finetune_from_model": None, "optimizer_overrides": "{'x': 1}"}
    cfg = OmegaConf.create({"checkpoint": {**options, **{f"reset_{part}": True for part in RESET}}})
    Path("other.pt").touch()
    with pytest.raises(FileNotFoundError, match="restore_file=gone") if named == "gone.pt" else nullcontext():
        assert checkpoint_to_load(cfg) == Path(named) and cfg.checkpoint.reset_optimizer
    Path("run/checkpoint_last.pt").touch()
    assert checkpoint_to_load(cfg) == Path("run/checkpoint_last.pt")
    assert (cfg.checkpoint.restore_file, cfg.checkpoint.optimizer_overrides) == ("checkpoint_last.pt", "{}")
    assert not any(cfg.checkpoint[f"reset_{part}"] for part in RESET)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_the_best_loss_of_another_run_is_forgotten(folder, tmp_path_factory, monkeypatch, elsewhere):
    """With other data or options none might be as low, and a run would end without a best checkpoint."""
    monkeypatch.setitem(vars(save_checkpoint), "best", 1.0)  # where fairseq keeps it
    monkeypatch.setattr("fairseq_linformer.training.updates.metrics.get_meter", lambda *_: SimpleNamespace())
    new = tmp_path_factory.mktemp("new") if elsewhere else folder
    changes = {"checkpoint.restore_file": folder / "checkpoint_last.pt"} if elsewhere else {}
    Run(config(new, **changes), {}, "").updates.begin_batch(5)
    assert hasattr(save_checkpoint, "best") != elsewhere


def test_a_batch_that_does_not_fit_in_memory_ends_the_run(monkeypatch):
    """fairseq's trainer skips a batch with a RuntimeError of this text: such a run would never end."""

    def too_large(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")

    monkeypatch.setattr(FairseqTask, "train_step", too_large)
    with pytest.raises(UserError, match=r"dataset\.batch_size") as error:
        TrainingTask(SimpleNamespace(bfloat16="no")).train_step({}, None, None, None, 1)
    assert not isinstance(error.value, RuntimeError)


@pytest.mark.parametrize("kind", [FairseqAdam, FusedFairseqAdam])
def test_a_loss_scale_changes_no_step(kind):
    """Gradients are divided by it once: fairseq's own step would do so a second time."""

    def steps(scale):
        weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        optimizer = kind(FairseqAdamConfig(lr=[0.1], adam_betas="(0.9,0.98)", adam_eps=1e-3), [weight])
        if scale is not None:
            amp = AMPOptimizer.__new__(AMPOptimizer)
            amp.fp32_optimizer, amp.min_loss_scale = optimizer, 1e-4
            amp._grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale)
            optimizer = amp
        for _ in range(3):
            optimizer.backward((weight**2).sum())
            optimizer.clip_grad_norm(0.0)
            TrainingTask(Namespace()).optimizer_step(optimizer, torch.nn.Identity(), 1)
            weight.grad = None
        return weight.detach()

    torch.testing.assert_close(steps(2.0**12), steps(None))
