"""The folder that appears when it is whole: what happens at its ends, and when two runs meet."""

import os
from pathlib import Path

import pytest

from fairseq_linformer.data import staging
from fairseq_linformer.data.staging import staged_folder


def test_a_mount_point_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == out)
    with (
        pytest.raises(ValueError, match=r"out is a mount point, .* name a folder inside it"),
        staged_folder(out, "mark"),
    ):
        pytest.fail("the work began")
    assert list(tmp_path.iterdir()) == [out]


def test_a_result_that_cannot_be_renamed_is_kept(tmp_path: Path) -> None:
    """The name has been taken meanwhile."""
    with (
        pytest.raises(OSError, match=r"out: .* the complete result lies in .*/out\.partial: move it"),
        staged_folder(tmp_path / "out", "mark") as (folder, mark),
    ):
        (folder / "data").write_text("result")
        mark.write("whole")
        (tmp_path / "out" / "other").mkdir(parents=True)
    partial = tmp_path / "out.partial"
    assert ((partial / "data").read_text(), (partial / "mark").read_text()) == ("result", "whole")


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="disk"), staged_folder(tmp_path / "out", "mark") as (folder, _):
        (folder / "data").write_text("half")
        raise RuntimeError("disk")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("followed_by_a_third", [False, True])
def test_a_run_that_finishes_while_another_waits_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed_by_a_third: bool
) -> None:
    """The second run opened the mark that the first then renamed with its folder."""
    partial, out = tmp_path / "out.partial", tmp_path / "out"
    partial.mkdir()
    (partial / "mark").write_text("of the first run")

    def first_run_finishes(*_: object) -> None:
        partial.rename(out)
        if followed_by_a_third:
            partial.mkdir()
            (partial / "mark").write_text("of the third run")

    monkeypatch.setattr(staging, "lock", first_run_finishes)
    with (
        pytest.raises(ValueError, match=r"out\.partial: another run has just finished there"),
        staged_folder(out, "mark"),
    ):
        pytest.fail("the work began")
    assert (out / "mark").read_text() == "of the first run"
    assert not followed_by_a_third or (partial / "mark").read_text() == "of the third run"
