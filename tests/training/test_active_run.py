"""What a run makes of its configuration and its folder before it trains. The command lines: test_training.py."""

from argparse import Namespace
from contextlib import nullcontext

import pytest
import torch
from fairseq.checkpoint_utils import save_checkpoint, torch_persistent_save
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.optim import FairseqOptimizer, build_optimizer
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import FairseqTask
from fairseq_cli.train import should_stop_early
from omegaconf import OmegaConf

from fairseq_linformer.training import configuration
from fairseq_linformer.training.active_run import ActiveRun
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
        "dataset": {"batch_size": 1, "max_tokens": None, "disable_validation": False, "valid_subset": "valid"},
        "distributed_training": {"distributed_world_size": 1},
        "common": {"log_interval": 100},
        "task": {"data": str(ROOT / "configs/precision"), "save_interval_minutes": 15},
    }
    return OmegaConf.merge(options, OmegaConf.from_dotlist([f"{name}={value}" for name, value in changes.items()]))


@pytest.fixture
def folder(tmp_path):
    """Of a run of five updates, which is in its third epoch after a minute."""
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        torch_persistent_save(state(5), str(tmp_path / name))
    return tmp_path


@pytest.mark.parametrize(
    "limit", [{"max_update": 5}, {"max_update": 4}, {"max_update": 0, "max_epoch": 2}, {"stop_time_hours": 0.016}]
)
def test_a_run_that_has_reached_a_limit_is_complete(folder, capsys, limit):
    with pytest.raises(SystemExit) as ended:
        ActiveRun(config(folder, **{f"optimization.{name}": value for name, value in limit.items()}), {}, "next {run}")
    assert ended.value.code == 0
    assert "complete: 5 updates" in (said := capsys.readouterr().out)
    assert f"checkpoint_best.pt, perplexity {2**4.5:.2f}\nnext: next {folder}" in said


def test_a_perplexity_beyond_all_floats_is_infinite_and_a_folder_one_word_for_the_shell(folder, capsys):
    folder = folder.rename(folder.with_name("my run"))
    extra = {**state(5)["extra_state"], "best": 1e4}
    torch_persistent_save(state(5, extra_state=extra), str(folder / "checkpoint_best.pt"))
    with pytest.raises(SystemExit):
        ActiveRun(config(folder, **{"optimization.max_update": 5}), {}, "export {run} --out exported")
    said = f"checkpoint_best.pt, perplexity inf\nnext: export '{folder}' --out exported\n"
    assert said in capsys.readouterr().out


LIMITS = [{"optimization.max_update": 0, "optimization.max_epoch": 3}, {"optimization.stop_time_hours": 1}]


@pytest.mark.parametrize("changes", [{}, *LIMITS])
def test_a_run_that_has_not_goes_on(folder, capsys, changes):
    assert ActiveRun(config(folder, **changes), {}, "").folder == folder
    assert "complete" not in capsys.readouterr().out


@pytest.mark.parametrize(("patience", "is_complete"), [(3, True), (4, False), (-1, False)])
def test_a_run_that_patience_ended_is_complete_for_that_patience(tmp_path, capsys, monkeypatch, patience, is_complete):
    """A larger one goes on counting, and with the best loss of all."""
    cfg = config(tmp_path, **{"checkpoint.patience": patience})
    monkeypatch.setattr(should_stop_early, "num_runs", 3, raising=False)  # where fairseq counts
    task = TrainingTask(None)
    task.run = ActiveRun(cfg, {}, "")
    extra = {**state(5)["extra_state"], **task.get_checkpoint_dict()}
    torch_persistent_save(state(5, extra_state=extra), str(tmp_path / "checkpoint_last.pt"))
    del task.run  # and with it the lock
    monkeypatch.setattr(should_stop_early, "best", None, raising=False)  # as in another process
    monkeypatch.setattr(should_stop_early, "num_runs", 0)
    with pytest.raises(SystemExit) if is_complete else nullcontext():
        ActiveRun(cfg, {}, "")
    assert ("complete: 5 updates" in capsys.readouterr().out) == is_complete
    assert is_complete or should_stop_early(cfg, valid_loss=4.6) == (patience == 4)


def test_a_run_that_starts_from_a_complete_one_is_not(folder, tmp_path, capsys):
    pretrained = {"checkpoint.finetune_from_model": folder / "checkpoint_best.pt", "optimization.max_update": 5}
    assert ActiveRun(config(tmp_path / "other", **pretrained), {}, "").folder == tmp_path / "other"
    assert "complete" not in capsys.readouterr().out


def test_a_start_with_all_updates_is_refused(folder, tmp_path_factory):
    """fairseq would train one more, each time that the command is repeated."""
    new, start = tmp_path_factory.mktemp("new"), {"checkpoint.restore_file": folder / "checkpoint_best.pt"}
    with pytest.raises(ValueError, match=r"^optimization\.max_update=5 is not allowed: it must be more than 5, "):
        ActiveRun(config(new, **start, **{"optimization.max_update": 5}), {}, "")
    for changes in ({"optimization.max_update": 0}, {"optimization.max_update": 5, "checkpoint.reset_optimizer": True}):
        ActiveRun(config(tmp_path_factory.mktemp("new"), **start, **changes), {}, "")


@pytest.mark.parametrize(("updates", "interval"), [(10, 1), (1000, 50), (100000, 100), (0, 100)])
@pytest.mark.parametrize("typed", ["common.log_interval=100", "--log-interval", "common.seed=1"])
def test_a_short_run_logs_often_enough_or_as_typed(tmp_path, updates, interval, typed, monkeypatch):
    monkeypatch.setattr(configuration, "typed_command", lambda: ["fairseq-train", typed])
    interval = interval if typed == "common.seed=1" else 100
    cfg = config(tmp_path, **{"optimization.max_update": updates})
    ActiveRun(cfg, {}, "")
    assert cfg.common.log_interval == interval


@pytest.mark.parametrize(
    ("option", "allowed"),
    [("write_checkpoints_asynchronously", "false$"), ("no_save_optimizer_state", "false, or no run could go on$")],
)
def test_what_would_write_checkpoints_beside_our_files_or_none_to_go_on_from_is_refused(tmp_path, option, allowed):
    with pytest.raises(ValueError, match=rf"checkpoint\.{option}=True is not allowed: it must be {allowed}"):
        ActiveRun(config(tmp_path, **{f"checkpoint.{option}": True}), {}, "")


@pytest.mark.parametrize("elsewhere", [True, False])
def test_the_best_loss_of_another_run_is_not_to_be_beaten(folder, tmp_path_factory, monkeypatch, elsewhere):
    """With other data or options none might be as low, and a run would end without a best checkpoint."""
    monkeypatch.setitem(vars(save_checkpoint), "best", 1.0)  # where fairseq keeps it
    monkeypatch.setattr(ActiveRun, "_go_on", lambda *_: None)
    new = tmp_path_factory.mktemp("new") if elsewhere else folder
    changes = {"checkpoint.restore_file": folder / "checkpoint_last.pt"} if elsewhere else {}
    ActiveRun(config(new, **changes), {}, "").begin_batch(5)
    assert hasattr(save_checkpoint, "best") != elsewhere


def test_the_time_that_is_left_is_that_of_the_updates_so_far(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("fairseq_linformer.training.active_run.time.monotonic", lambda: now[0])
    run = ActiveRun(config(tmp_path), {}, "")
    for update, seconds in enumerate((60.0, 62.0, 64.0)):  # the first has compiled and warmed up
        now[0] = seconds
        run.begin_batch(update)
        run.end_update(save_is_due=False, stop_is_due=False)
    assert (run._updates_left(), run._time_left()) == (7, "0:00:14")


def test_a_batch_that_does_not_fit_in_memory_ends_the_run(monkeypatch):
    """fairseq's trainer takes a RuntimeError that says so for a batch to leave out: such a run would never end."""

    def too_large(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")

    monkeypatch.setattr(FairseqTask, "train_step", too_large)
    said = r"lower dataset.batch_size .* \(CUDA out of memory. .* 2.00 GiB\.\)$"
    with pytest.raises(ValueError, match=said) as error:
        TrainingTask(None).train_step({}, None, None, None, 1)
    assert not isinstance(error.value, RuntimeError)


@pytest.mark.parametrize("name", ["adam", "fused_adam"])
def test_a_loss_scale_changes_no_step(name):
    """Gradients are divided by it once: fairseq's own step would do so a second time."""

    def steps(scale):
        weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        options = {"_name": name, "lr": [0.1], "adam_betas": "(0.9,0.98)", "adam_eps": 1e-3, "weight_decay": 0.0}
        options |= {"use_old_adam": False, "fp16_adam_stats": False, "tpu": False}
        optimizer: FairseqOptimizer = build_optimizer(OmegaConf.create(options), [weight])
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
