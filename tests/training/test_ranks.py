"""Several ranks: gradients are the mean over their batches, and a run has the weights of one rank's."""

import contextlib
import os
import re
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest
import torch
from fairseq.distributed import LegacyDistributedDataParallel
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.checkpoint_files import LAST
from fairseq_linformer.training.freezing import freeze_lm_head
from tests.helpers import ROOT
from tests.helpers.checkpoints import assert_same_weights
from tests.helpers.commands import as_flags, by_torchrun, forked, run, with_flags, with_hydra
from tests.helpers.models import OFFLOADED, RECOMPUTED, small, tokens
from tests.helpers.processes import started, wait_until

RANKS = 2
STOPPED = 128 + signal.SIGUSR1
UPDATES = 15
TWICE = "optimization.update_freq=[2]"  # one rank, as many rows per update as two
GROWING = ["task.lengths=[8:0.45,32:0.55]", "dataset.batch_size=64"]
GROWING += ["checkpoint.save_interval_updates=1", "checkpoint.keep_interval_updates=-1"]
JOINED = {"distributed_init_method": "env://", "distributed_world_size": RANKS, "distributed_rank": -1}
JOINED |= {"distributed_backend": "undefined"}  # as flags, the options of configs/distributed/torchrun.yaml

# Options of the model, the name of a classification head (in fine-tuning), and the wrapper.
TRAININGS = {
    "pretraining, recomputed": ({"sharing": "layerwise", **RECOMPUTED}, None, "pytorch_ddp"),
    "pretraining, offloaded": ({"sharing": "layerwise", **OFFLOADED}, None, "pytorch_ddp"),
    "fine-tuning, recomputed": ({"sharing": "layerwise", **RECOMPUTED}, "head", "pytorch_ddp"),
    "layerdrop, legacy": ({"encoder_layerdrop": 0.5, "sharing": "layerwise"}, None, "legacy_ddp"),
}


def model_and_step(options, head, rank):
    """A model, and a function that makes a backward pass through a wrapper with the seed and batch of a rank."""
    model = small(dropout=0.1, attention_dropout=0.1, encoder_layers=3, **options)
    if head is not None:
        model.register_classification_head(head, num_classes=3)
        freeze_lm_head(model)

    def step(wrapped):
        torch.manual_seed(7 + rank)
        logits = wrapped(tokens(RANKS)[rank : rank + 1], features_only=head is not None, classification_head_name=head)
        logits[0].logsumexp(-1).mean().backward()

    return model, step


def gradients(model):
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}


def train(rank, folder):
    """Compute two backward passes of each training in a process, and save the last gradients."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    results = {}
    for name, (options, head, wrapper) in TRAININGS.items():
        model, step = model_and_step(options, head, rank)
        is_legacy = wrapper == "legacy_ddp"
        group = [distributed.group.WORLD] if is_legacy else []
        wrapped = (LegacyDistributedDataParallel if is_legacy else DistributedDataParallel)(model, *group)
        for _ in range(2):
            model.zero_grad()
            step(wrapped)
            if is_legacy:
                wrapped.all_reduce_grads()
        results[name] = gradients(model)
    torch.save(results, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The gradients of each rank, from processes that are forked from one with torch and fairseq."""
    folder = tmp_path_factory.mktemp("ranks")
    method = "forkserver" if sys.platform == "linux" else "spawn"
    multiprocessing.start_processes(train, (folder,), nprocs=RANKS, start_method=method)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_gradients_of_two_ranks_are_the_mean_over_their_batches(trained, name):
    """With dropout, compared with models that keep their activations: recomputation draws the same masks."""
    options, head, _ = TRAININGS[name]
    kept = {option: value for option, value in options.items() if option not in OFFLOADED}
    alone = []
    for rank in range(RANKS):
        model, step = model_and_step(kept, head, rank)
        step(model)
        alone.append(gradients(model))
    for results in trained:
        for parameter, gradient in results[name].items():
            mean = sum(of_rank[parameter] for of_rank in alone) / RANKS
            torch.testing.assert_close(gradient, mean, atol=1e-6, rtol=1e-5, msg=parameter)


@pytest.mark.parametrize("attention", sorted(ATTENTIONS))
def test_every_parameter_has_a_gradient(attention):
    """PyTorch's wrapper would wait for it: one step of pretraining, and one of fine-tuning."""
    for head in (None, "head"):
        model = small(attention=attention, attention_dropout=0.0)
        if head is not None:
            model.register_classification_head(head, num_classes=3)
            freeze_lm_head(model)
        logits = model(tokens(), features_only=head is not None, classification_head_name=head)[0]
        logits.logsumexp(-1).mean().backward()
        assert not [name for name, value in model.named_parameters() if value.requires_grad and value.grad is None]


def pretraining(data, folder, updates, *more):
    return with_hydra(data, folder, updates, f"lr_scheduler.total_num_update={UPDATES}", *more)


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """One rank, with dropout."""
    folder = tmp_path_factory.mktemp("alone")
    run(*pretraining(corpus, "run", UPDATES, TWICE), cwd=folder)
    return folder / "run"


@pytest.fixture(scope="module")
def growing(corpus, tmp_path_factory):
    """One rank whose rows grow after four of nine updates; three make an epoch."""
    folder = tmp_path_factory.mktemp("growing")
    output = run(*pretraining(corpus, "run", 9, TWICE, *GROWING), cwd=folder)
    assert re.findall(r"after update (\d): rows of (\d+)", output) == [("0", "8"), ("4", "32")]
    return folder / "run"


@pytest.mark.exhaustive
def test_an_error_of_the_first_rank_is_printed_once(corpus, alone, tmp_path):
    """The others end with it, without the traceback of a closed connection."""
    shutil.copytree(alone, tmp_path / "run")
    command = by_torchrun(RANKS, pretraining(corpus, "run", UPDATES, "task.mask_prob=0.4"))
    output = run(*command, cwd=tmp_path, status=1)
    assert output.count("error: run holds a run with other settings") == 1
    assert "Connection closed" not in output and "rank1" not in output


@pytest.mark.parametrize(("done", "ranks"), [pytest.param(2, 2, marks=pytest.mark.exhaustive), (4, 1)])
def test_a_run_whose_rows_grow_resumes(corpus, growing, tmp_path, done, ranks):
    """Before and at the update of growth, with the same weights to the last bit, also on another number of ranks."""
    (tmp_path / "run").mkdir()
    (saved,) = growing.glob(f"checkpoint_?_{done}.pt")
    shutil.copy(saved, tmp_path / "run/checkpoint_last.pt")
    command = pretraining(corpus, "run", 9, *GROWING, *([] if ranks == RANKS else [TWICE]))
    output = run(*(by_torchrun(ranks, command) if ranks == RANKS else command), cwd=tmp_path)
    assert f"@ {done} updates" in output and output.count("complete: 9 updates") == 1
    assert_same_weights(tmp_path / "run" / LAST, growing / LAST)


def pid_of(rank: int, launcher: int) -> int:
    """The process of a rank that torchrun started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    (pid,) = (pid for pid in children if f"\0RANK={rank}\0" in f"\0{Path(f'/proc/{pid}/environ').read_text()}")
    return int(pid)


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="finds the process of a rank in /proc")
def test_each_rank_is_killed_in_turn(corpus, alone, tmp_path):
    """With flags. torchrun starts both ranks again, and they resume from their last checkpoint."""
    flags = [*as_flags({**JOINED, "total_num_update": UPDATES}), "--distributed-no-spawn"]
    launcher = ["torchrun", "--standalone", "--nproc-per-node", RANKS, "--max-restarts", 2, "--no-python"]
    log = tmp_path / "log"
    # By default torchrun's ranks read the addresses of the former ones: github.com/pytorch/pytorch/issues/135712.
    new_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with started([*launcher, *with_flags(corpus, "run", UPDATES, *flags)], log, **new_store) as process:
        for rank, update in ((1, 3), (0, 9)):
            wait_until((tmp_path / "run" / f"checkpoint_1_{update}.pt").is_file)
            os.kill(pid_of(rank, process.pid), signal.SIGKILL)
        assert process.wait(120) == 0, log.read_text()[-4000:]
    printed = log.read_text()
    assert len(re.findall(r"Loaded checkpoint run/checkpoint_last.pt \(epoch 1 @ \d+ updates\)", printed)) == 2
    assert_same_weights(tmp_path / "run" / LAST, alone / LAST)


LATE_THREADS = """
import os
import torch.distributed

new_group = torch.distributed.new_group

def with_late_threads(*arguments, **options):
    group = new_group(*arguments, **options)
    for thread in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(thread, {min(os.sched_getaffinity(0))})
        if thread != os.getpid():
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    return group

torch.distributed.new_group = with_late_threads
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="sets priorities as Linux has them")
def test_ranks_end_in_order_with_threads_that_run_late(corpus, tmp_path):
    """Gloo's threads run only while the main one waits: on a loaded machine the last one is sometimes late."""
    command = by_torchrun(RANKS, pretraining(corpus, "run", 2))
    (tmp_path / "sitecustomize.py").write_text(LATE_THREADS)
    log = tmp_path / "log"
    with started(command, log, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}") as process:
        assert process.wait(120) == 0, log.read_text()[-4000:]


SLOW_DISK = """
import time
import torch
save = torch.save
torch.save = lambda *arguments, **options: (time.sleep(1), save(*arguments, **options))
"""


def test_a_signal_to_one_rank_saves_and_stops_all(corpus, alone, tmp_path):
    """Started and killed as by Slurm's srun --kill-on-bad-exit, on a slow disk; then resumed on one rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        slurm = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "SLURM_NTASKS": str(RANKS)}
    command = pretraining(corpus, "run", UPDATES, "+distributed=slurm")
    logs = [tmp_path / f"log{rank}" for rank in range(RANKS)]
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(forked(command, log, SLOW_DISK, **slurm, SLURM_PROCID=rank, SLURM_LOCALID=rank))
            for rank, log in zip("01", logs, strict=True)
        ]
        wait_until((tmp_path / "run" / "checkpoint_1_3.pt").is_file)
        os.kill(ranks[1].pid, signal.SIGUSR1)
        wait_until(lambda: any(rank.exitcode is not None for rank in ranks))
        for rank in ranks:
            rank.terminate()
            rank.join(60)
        printed = [log.read_text() for log in logs]
        assert STOPPED in {rank.exitcode for rank in ranks} <= {STOPPED, -signal.SIGTERM}, str(printed)
    (update,) = re.findall(r"^stopped by SIGUSR1 after update (\d+): the same command resumes", printed[0], re.M)
    assert 3 <= int(update) < UPDATES
    assert f"Saved checkpoint run/checkpoint_1_{update}.pt" in printed[0]
    output = run(*pretraining(corpus, "run", UPDATES, TWICE), cwd=tmp_path)
    assert f"Loaded checkpoint run/checkpoint_last.pt (epoch 1 @ {update} updates)" in output
    assert_same_weights(tmp_path / "run" / LAST, alone / LAST)
