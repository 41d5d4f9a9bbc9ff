"""Folders that are renamed when they are complete, and paths that fairseq cannot use."""

import errno
import os
from pathlib import Path

import pytest

from fairseq_linformer import files
from fairseq_linformer.data.prepare.corpus import prepare_corpus
from fairseq_linformer.errors import UserError
from fairseq_linformer.files import check_data_path, check_path, staged_folder


@pytest.mark.parametrize("reason", ["a mount point", "the current folder"])
def test_a_folder_that_cannot_be_replaced_is_rejected_at_the_start(tmp_path, monkeypatch, reason):
    """Renaming would leave the shell in a removed folder."""
    out = tmp_path / "out"
    out.mkdir()
    if reason == "a mount point":
        monkeypatch.setattr(os.path, "ismount", lambda path: path == out)
    else:
        monkeypatch.chdir(out)
    with pytest.raises(UserError, match=reason), staged_folder(out, "mark"):
        pytest.fail("the work began")
    assert list(tmp_path.iterdir()) == [out]


def test_a_result_that_cannot_be_renamed_is_kept(tmp_path):
    """Its name was taken while it was written."""
    with pytest.raises(OSError, match=r"out\.partial"), staged_folder(tmp_path / "out", "mark") as (folder, mark):
        (folder / "data").write_text("result")
        mark.write("whole")
        (tmp_path / "out" / "other").mkdir(parents=True)
    partial = tmp_path / "out.partial"
    assert ((partial / "data").read_text(), (partial / "mark").read_text()) == ("result", "whole")


def test_the_error_of_a_full_disk_names_the_folder(tmp_path):
    """The system names no file if it is an open one."""
    with pytest.raises(OSError, match=f"'{tmp_path}/out'$"), staged_folder(tmp_path / "out", "mark"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_file_of_the_user_is_overwritten(tmp_path):
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    for folder in (out, partial):
        folder.mkdir()
        (folder / "mine").write_text("mine")
        with pytest.raises(UserError, match=f"^{folder} exists"), staged_folder(out, "mark"):
            pytest.fail("the work began")
        assert (folder / "mine").read_text() == "mine"
        (folder / "mine").unlink()
    with staged_folder(out, "mark") as (_, mark):  # both are empty now
        mark.write("whole")
    assert (out / "mark").read_text() == "whole" and not partial.exists()


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_is_followed(tmp_path, exists):
    """A folder cannot be renamed to a link."""
    out, target = tmp_path / "out", tmp_path / "disk" / "target"
    target.parent.mkdir()
    out.symlink_to(target)
    if exists:
        target.mkdir()
    with staged_folder(out, "mark") as (folder, mark):
        mark.write("whole")
    assert folder == tmp_path / "disk" / "target.partial"
    assert (out / "mark").read_text() == "whole" and out.is_symlink() and [*tmp_path.glob("**/*.partial")] == []


def test_a_run_that_finishes_while_another_begins_stays_complete(tmp_path, monkeypatch):
    """The second run opened the mark, which the first one then renamed with its folder."""
    partial, out = tmp_path / "out.partial", tmp_path / "out"
    partial.mkdir()
    (partial / "mark").write_text("of the first run")
    monkeypatch.setattr(files, "lock", lambda *_: partial.rename(out))
    with pytest.raises(FileNotFoundError), staged_folder(out, "mark"):
        pytest.fail("the work began")
    assert (out / "mark").read_text() == "of the first run"


@pytest.mark.parametrize("name", ["/a:b/c", "a:", "a${b}", "\\${", "a\n${b", "a\nb:c"])
def test_paths_that_no_data_folder_can_have(name):
    with pytest.raises(UserError) as raised:
        check_data_path(Path(name))
    assert str(raised.value).startswith(" ".join(name.split())), "in one line"
    if ":" in name:
        check_path(name)
    check_data_path(Path("/a b/$c{d}/{$}/é'\"\\,=/%20"))


def test_such_a_path_is_rejected_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="a:b"):
        prepare_corpus([Path("none")], [Path("none")], Path("a:b"))
    assert not list(tmp_path.iterdir())
