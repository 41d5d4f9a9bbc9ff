"""Several ranks: gradients are the mean over their batches, a run has the weights of one rank's, whoever is killed."""

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
from fairseq_linformer.training.task import freeze_lm_head
from tests.helpers import ROOT
from tests.helpers.checkpoints import assert_same_weights
from tests.helpers.commands import as_flags, by_torchrun, run, with_flags, with_hydra
from tests.helpers.models import OFFLOADED, RECOMPUTED, small, tokens
from tests.helpers.processes import started, wait_until

RANKS = 2
STOPPED = 128 + signal.SIGUSR1
UPDATES = 24
TWICE = "optimization.update_freq=[2]"  # one rank, as many rows per update as two
GROWING = ["task.lengths=[8:0.45,32:0.55]", "dataset.batch_size=64"]
GROWING += ["checkpoint.save_interval_updates=1", "checkpoint.keep_interval_updates=-1"]
JOINED = {"distributed_init_method": "env://", "distributed_world_size": RANKS, "distributed_rank": -1}
JOINED |= {"distributed_backend": "undefined"}  # as flags, what configs/distributed/torchrun.yaml says


# What is trained (an option of the model, or the classification head alone, as fine-tuning does), and by which wrapper.
TRAININGS = {
    "pretraining, recomputed": ({"sharing": "layerwise", **RECOMPUTED}, None, "pytorch_ddp"),
    "pretraining, offloaded": ({"sharing": "layerwise", **OFFLOADED}, None, "pytorch_ddp"),
    "fine-tuning, recomputed": ({"sharing": "layerwise", **RECOMPUTED}, "head", "pytorch_ddp"),
    "layerdrop, legacy": ({"encoder_layerdrop": 0.5, "sharing": "layerwise"}, None, "legacy_ddp"),
}


def model_and_step(options, head, rank):
    """A model, and a function that makes a backward pass with a seed and a batch of that rank through a wrapper."""
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
    """What a rank does: every training, two backward passes of it; gradients, or the error, are left in the folder."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    results = {}
    for name, (options, head, wrapper) in TRAININGS.items():
        model, step = model_and_step(options, head, rank)
        if wrapper == "legacy_ddp":
            wrapped = LegacyDistributedDataParallel(model, distributed.group.WORLD)
        else:
            wrapped = DistributedDataParallel(model, find_unused_parameters=wrapper == "find_unused")
        try:
            for _ in range(2):
                model.zero_grad()
                step(wrapped)
                if wrapper == "legacy_ddp":
                    wrapped.all_reduce_grads()
            results[name] = gradients(model)
        except RuntimeError as error:
            results[name] = str(error)
    torch.save(results, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The results of the ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(train, (folder,), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_gradients_of_two_ranks_are_the_mean_over_their_batches(trained, name):
    """With dropout, and beside a model that keeps its activations: recomputation draws the masks of the first time."""
    options, head, _ = TRAININGS[name]
    kept = {option: value for option, value in options.items() if option not in OFFLOADED}
    alone = []
    for rank in range(RANKS):
        model, step = model_and_step(kept, head, rank)
        step(model)
        alone.append(gradients(model))
    for results in trained:
        assert not isinstance(results[name], str), results[name]
        for parameter, gradient in results[name].items():
            mean = sum(own[parameter] for own in alone) / RANKS
            torch.testing.assert_close(gradient, mean, atol=1e-6, rtol=1e-5, msg=parameter)


@pytest.mark.parametrize("attention", sorted(ATTENTIONS))
def test_every_parameter_has_a_gradient(attention):
    """Else PyTorch's wrapper would wait for it: one step of pretraining, and one of fine-tuning."""
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
    said = ["after update 0: rows of 8 tokens, up to update 4", "after update 4: rows of 32 tokens, up to update 9"]
    assert re.findall(r"after update .*", output) == said
    return folder / "run"


@pytest.mark.exhaustive
def test_what_the_first_rank_refuses_is_said_once(corpus, alone, tmp_path):
    """The others end with it, not by a traceback of a connection that was closed."""
    shutil.copytree(alone, tmp_path / "run")
    command = by_torchrun(RANKS, pretraining(corpus, "run", UPDATES, "task.mask_prob=0.4"))
    output = run(*command, cwd=tmp_path, status=1)
    assert output.count("error: run holds a run with other settings") == 1
    assert "Connection closed" not in output and "rank1" not in output


@pytest.mark.parametrize(("done", "ranks"), [pytest.param(2, 2, marks=pytest.mark.exhaustive), (4, 1), (5, 1)])
def test_a_run_whose_rows_grow_goes_on(corpus, growing, tmp_path, done, ranks):
    """From before, where and after they do: to the last bit the same, also with another number of ranks."""
    (tmp_path / "run").mkdir()
    (saved,) = growing.glob(f"checkpoint_?_{done}.pt")
    shutil.copy(saved, tmp_path / "run/checkpoint_last.pt")
    command = pretraining(corpus, "run", 9, *GROWING, *([] if ranks == RANKS else [TWICE]))
    output = run(*(by_torchrun(ranks, command) if ranks == RANKS else command), cwd=tmp_path)
    assert f"@ {done} updates" in output and output.count("complete: 9 updates") == 1
    assert_same_weights(tmp_path / "run" / LAST, growing / LAST)


@pytest.mark.exhaustive
def test_fine_tuning_goes_on_with_another_number_of_ranks(classification, alone, tmp_path):
    settings = [f"task.data={classification}", f"checkpoint.finetune_from_model={alone / 'checkpoint_last.pt'}"]
    settings += ["lr_scheduler.total_num_update=6", "lr_scheduler.warmup_updates=1", "optimization.lr=[0.001]"]
    settings += ["dataset.batch_size=4", "dataset.num_workers=0", "common.cpu=true"]
    command = ["fairseq-hydra-train", "--config-dir", ROOT / "configs/finetune", "--config-name", "finetune", *settings]
    for folder, updates, ranks in (("straight", 6, 1), ("resumed", 3, 2), ("resumed", 6, 1)):
        words = [*command, f"checkpoint.save_dir={folder}", f"optimization.max_update={updates}"]
        run(*(by_torchrun(ranks, words) if ranks == RANKS else [*words, TWICE]), cwd=tmp_path)
    assert_same_weights(tmp_path / "resumed" / LAST, tmp_path / "straight" / LAST)


def pid_of(rank: int, launcher: int) -> int:
    """The process of a rank that torchrun started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    (found,) = (pid for pid in children if f"\0RANK={rank}\0" in f"\0{Path(f'/proc/{pid}/environ').read_text()}")
    return int(found)


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="finds the process of a rank in /proc")
def test_each_rank_is_killed_in_turn(corpus, alone, tmp_path):
    """With flags. torchrun starts both ranks again, and they go on from their last checkpoint."""
    flags = [*as_flags({**JOINED, "total_num_update": UPDATES}), "--distributed-no-spawn"]
    launcher = ["torchrun", "--standalone", "--nproc-per-node", RANKS, "--max-restarts", 2, "--no-python"]
    log = tmp_path / "log"
    # By default torchrun's ranks find the addresses of the former ones: github.com/pytorch/pytorch/issues/135712.
    own_meeting = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with started([*launcher, *with_flags(corpus, "run", UPDATES, *flags)], log, **own_meeting) as process:
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
    """Gloo's own run only while the main one waits: on a loaded machine the last one is late now and then."""
    command = by_torchrun(RANKS, pretraining(corpus, "run", 2))
    (tmp_path / "sitecustomize.py").write_text(LATE_THREADS)
    log = tmp_path / "log"
    with started(command, log, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}") as process:
        assert process.wait(120) == 0, log.read_text()[-4000:]


SLOW_DISK = """
import time
import torch
save = torch.save
torch.save = lambda *arguments, **options: (time.sleep(5), save(*arguments, **options))
"""


def test_a_signal_to_one_rank_saves_and_stops_all(corpus, alone, tmp_path):
    """Started and killed as by Slurm's srun --kill-on-bad-exit, on a slow disk; what it saved goes on."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_DISK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "SLURM_NTASKS": str(RANKS)}
    meeting["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
    command = pretraining(corpus, "run", UPDATES, "+distributed=slurm")
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                started(command, tmp_path / f"log{rank}", **meeting, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
            )
            for rank in range(RANKS)
        ]
        wait_until((tmp_path / "run" / "checkpoint_1_3.pt").is_file)
        os.kill(ranks[1].pid, signal.SIGUSR1)
        printed = [(tmp_path / f"log{rank}").read_text for rank in range(RANKS)]
        wait_until(lambda: any(rank.poll() is not None for rank in ranks))
        for rank in ranks:
            rank.terminate()
        ended = {rank.wait(60) for rank in ranks}
        assert STOPPED in ended <= {STOPPED, -signal.SIGTERM}, printed[0]()[-3000:] + printed[1]()[-3000:]
    (update,) = re.findall(r"^stopped by SIGUSR1 after update (\d+): the same command goes on", printed[0](), re.M)
    assert 3 <= int(update) < UPDATES
    assert f"Saved checkpoint run/checkpoint_1_{update}.pt" in printed[0]()
    output = run(*pretraining(corpus, "run", UPDATES, TWICE), cwd=tmp_path)
    assert f"Loaded checkpoint run/checkpoint_last.pt (epoch 1 @ {update} updates)" in output
    assert_same_weights(tmp_path / "run" / LAST, alone / LAST)
