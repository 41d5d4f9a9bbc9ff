"""Number of threads while other programs run."""

import os

import pytest
import torch

from fairseq_linformer import processes


@pytest.fixture
def idle(monkeypatch):
    """Function that replaces the machine by one of two cores, the second of which is busy for a share of the time."""

    def machine(share):
        seconds = iter((0.0, 0.2))
        ticks = iter((0, round(0.2 * os.sysconf("SC_CLK_TCK") * (2 - share))))
        monkeypatch.setattr(processes, "available_cores", lambda: 2)
        monkeypatch.setattr(processes, "_idle_ticks", lambda: next(ticks))
        monkeypatch.setattr(processes.time, "monotonic", lambda: next(seconds))
        monkeypatch.setattr(processes.time, "sleep", lambda duration: None)

    return machine


@pytest.mark.skipif(not processes.PROC_STAT.is_file(), reason="only Linux tells how long cores have been idle")
@pytest.mark.parametrize(("busy", "threads"), [(0.0, 2), (0.2, 2), (1.0, 1), (2.0, 1)])
def test_a_training_uses_the_cores_that_are_idle(busy, threads, idle, monkeypatch):
    chosen = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    idle(busy)
    processes.use_idle_cores()
    assert chosen == [threads]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    processes.use_idle_cores()
    assert chosen == [threads]


def test_idle_time_is_that_of_available_cores():
    assert 1 <= processes.idle_cores() <= processes.available_cores()
