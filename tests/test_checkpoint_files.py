"""Checkpoint files: atomic writing, rejection of damaged files, and replacement of a last checkpoint."""

import io
import itertools

import pytest
import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu, torch_persistent_save
from fairseq.file_io import PathManager

from fairseq_linformer.checkpoint import mend_last_checkpoint, read_progress
from fairseq_linformer.checkpoint_files import DamagedCheckpointError, UnfinishedFile
from fairseq_linformer.errors import UserError
from tests.helpers.checkpoints import state
from tests.helpers.processes import no_space


def test_a_copy_that_fails_leaves_the_former_file(tmp_path):
    """fairseq copies its best checkpoint to the last one in place; a kill or a full disk would leave half a file."""
    best, last = tmp_path / "checkpoint_best.pt", tmp_path / "checkpoint_last.pt"
    torch_persistent_save(state(2), str(best))
    torch_persistent_save(state(1), str(last))
    with no_space(), pytest.raises(OSError, match="too large"):
        PathManager.copy(str(best), str(last), overwrite=True)
    assert read_progress(last).updates == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_best.pt", "checkpoint_last.pt"]


def test_a_checkpoint_that_does_not_fit_on_the_disk_is_named_and_leaves_the_last_one(tmp_path):
    """torch raises a RuntimeError for it, and fairseq would write to the same file again."""
    last = tmp_path / "checkpoint_last.pt"
    torch_persistent_save(state(1), str(last))
    with no_space(), pytest.raises(OSError, match="too large") as raised:
        torch_persistent_save(state(2), str(last))
    assert raised.value.filename == f"{last}.tmp"
    assert read_progress(last).updates == 1 and list(tmp_path.iterdir()) == [last]


@pytest.mark.parametrize("piece", [1, 5, 11])
def test_a_checkpoint_whose_writing_is_interrupted_leaves_the_last_one(tmp_path, monkeypatch, piece):
    """torch raises a RuntimeError for Ctrl-C, and fairseq writes the checkpoint again, to the same file."""
    last, pieces = tmp_path / "checkpoint_last.pt", itertools.count()
    torch_persistent_save(state(1), str(last))

    def write(stream, data):
        if next(pieces) == piece:
            raise KeyboardInterrupt
        return io.BufferedWriter.write(stream, data)

    monkeypatch.setattr(UnfinishedFile, "write", write)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises((KeyboardInterrupt, InterruptedError)):
        torch_persistent_save(state(2), str(last))
    assert read_progress(last).updates == 1 and list(tmp_path.iterdir()) == [last]


def test_a_checkpoint_of_an_older_torch_is_read(tmp_path):
    torch.save(state(5), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert read_progress(tmp_path / "old.pt").updates == 5
    assert load_checkpoint_to_cpu(str(tmp_path / "old.pt"))["model"]["weight"][0] == 5


def test_progress_is_read_from_a_checkpoint(tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    torch_persistent_save(state(7, task_state={"vocabulary": {"dictionary": "abc"}}), str(path))
    progress = read_progress(path)
    assert (progress.updates, progress.next_epoch, progress.seconds, progress.best) == (7, 3, 60.0, 4.5)
    assert progress.task_state["vocabulary"] == {"dictionary": "abc"}
    torch.save([1, 2], path)
    with pytest.raises(UserError, match="is not a fairseq checkpoint"):
        read_progress(path)


def test_the_newest_complete_checkpoint_replaces_a_damaged_last_one(tmp_path):
    for name, updates in (("checkpoint_best.pt", 4), ("checkpoint_1_6.pt", 6), ("checkpoint_last.pt", 8)):
        torch_persistent_save(state(updates), str(tmp_path / name))
    (tmp_path / "checkpoint_1_7.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "checkpoint_best.pt.tmp").write_bytes(b"of a killed run")
    mend_last_checkpoint(tmp_path)
    assert read_progress(tmp_path / "checkpoint_last.pt").updates == 8
    (tmp_path / "checkpoint_last.pt").write_bytes(b"")
    mend_last_checkpoint(tmp_path)
    assert read_progress(tmp_path / "checkpoint_last.pt").updates == 6
    assert (tmp_path / "checkpoint_last.pt.damaged").read_bytes() == b""
    assert not list(tmp_path.glob("*.tmp"))


MADE = {"config": "", "configuration": {}, "data": "d", "checkpoint": None, "command": None}


def test_the_newest_checkpoint_replaces_a_missing_last_one_if_the_run_keeps_one(tmp_path):
    """fairseq writes the last one after the others, and may be killed in between."""
    for name, updates in (("checkpoint_best.pt", 4), ("checkpoint_1_6.pt", 6), ("checkpoint_average.pt", 6)):
        torch_persistent_save(state(updates, task_state={"made_of": MADE}), str(tmp_path / name))
    mend_last_checkpoint(tmp_path, kept=False)
    assert not (tmp_path / "checkpoint_last.pt").exists()
    mend_last_checkpoint(tmp_path)
    content = (tmp_path / "checkpoint_last.pt").read_bytes()
    assert content == (tmp_path / "checkpoint_1_6.pt").read_bytes(), "not an average of as many updates"


@pytest.mark.parametrize(
    ("name", "made_of"), [("checkpoint.pt", MADE), ("checkpoint_average.pt", MADE), ("checkpoint_best.pt", None)]
)
def test_no_run_resumes_from_other_checkpoints(name, made_of, tmp_path):
    """A converted model, an average, fairseq's own: a run would ignore its initial checkpoint."""
    torch_persistent_save(state(6, task_state={"made_of": made_of}), str(tmp_path / name))
    mend_last_checkpoint(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("damaged", [True, False])
def test_a_checkpoint_of_another_training_is_rejected_before_the_folder_is_changed(damaged, tmp_path):
    if damaged:
        (tmp_path / "checkpoint_last.pt").write_bytes(b"half")
        with pytest.raises(DamagedCheckpointError, match="no other checkpoint"):
            mend_last_checkpoint(tmp_path)
    torch_persistent_save(state(6, task_state={"made_of": MADE}), str(tmp_path / "checkpoint_best.pt"))

    def reject(path, progress):
        raise UserError(f"{path.stem} has other settings")

    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match="checkpoint_best has other settings"):
        mend_last_checkpoint(tmp_path, check_same=reject)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
