"""The folder that appears when it is whole: what happens at its ends, and when two runs meet."""

import errno
import os
from pathlib import Path

import pytest

from fairseq_linformer import files as staging
from fairseq_linformer.data.prepare.corpus import prepare_corpus
from fairseq_linformer.errors import UserError
from fairseq_linformer.files import check_data_path, check_path, staged_folder


@pytest.mark.parametrize("what", ["a mount point", "the current folder"])
def test_a_folder_that_cannot_be_replaced_is_refused_at_the_start(tmp_path, monkeypatch, what):
    """Renaming would leave the shell in a folder that is gone."""
    out = tmp_path / "out"
    out.mkdir()
    if what == "a mount point":
        monkeypatch.setattr(os.path, "ismount", lambda path: path == out)
    else:
        monkeypatch.chdir(out)
    with (
        pytest.raises(ValueError, match=f"out is {what}, .* name a folder inside it"),
        staged_folder(out, "mark"),
    ):
        pytest.fail("the work began")
    assert list(tmp_path.iterdir()) == [out]


def test_a_result_that_cannot_be_renamed_is_kept(tmp_path):
    """The name has been taken meanwhile."""
    with (
        pytest.raises(OSError, match=r"out: .* the complete result is in .*/out\.partial: move it"),
        staged_folder(tmp_path / "out", "mark") as (folder, mark),
    ):
        (folder / "data").write_text("result")
        mark.write("whole")
        (tmp_path / "out" / "other").mkdir(parents=True)
    partial = tmp_path / "out.partial"
    assert ((partial / "data").read_text(), (partial / "mark").read_text()) == ("result", "whole")


def test_a_full_disk_says_where(tmp_path):
    """The system names no file where it is one that is open."""
    named = pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/out'$")
    with named, staged_folder(tmp_path / "out", "mark"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for own in (OSError("the program ended with status 1"), FileNotFoundError(errno.ENOENT, "gone", "a.txt")):
        with pytest.raises(OSError) as raised, staged_folder(tmp_path / "out", "mark"):
            raise own
        assert raised.value is own


def test_nothing_of_the_users_is_overwritten(tmp_path):
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    for place, said in (
        (out, "exists and is not an empty folder: nothing was changed"),
        (partial, "is in the way: it"),
    ):
        place.mkdir()
        (place / "mine").write_text("mine")
        with pytest.raises(ValueError, match=said), staged_folder(out, "mark"):
            pytest.fail("the work began")
        assert (place / "mine").read_text() == "mine"
        (place / "mine").unlink()
    with staged_folder(out, "mark") as (_, mark):  # from an empty folder into an empty one
        mark.write("whole")
    assert (out / "mark").read_text() == "whole" and not partial.exists()


@pytest.mark.parametrize("there", [False, True])
def test_a_link_stays_one(tmp_path, there):
    """To an empty folder, or to one that is not there yet: a folder cannot be renamed to a link."""
    out, place = tmp_path / "out", tmp_path / "disk" / "place"
    place.parent.mkdir()
    out.symlink_to(place)
    if there:
        place.mkdir()
    with staged_folder(out, "mark") as (folder, mark):
        mark.write("whole")
    assert folder == tmp_path / "disk" / "place.partial", "on the disk that the link names"
    assert (out / "mark").read_text() == "whole" and out.is_symlink() and [*tmp_path.glob("**/*.partial")] == []
    said = f"^{place} exists and is not an empty folder"
    with pytest.raises(ValueError, match=said), staged_folder(out, "mark"):
        pytest.fail("the work began")


@pytest.mark.parametrize("followed_by_a_third", [False, True])
def test_a_run_that_finishes_while_another_waits_stays_whole(tmp_path, monkeypatch, followed_by_a_third):
    """The second run opened the mark that the first then renamed with its folder."""
    partial, out = tmp_path / "out.partial", tmp_path / "out"
    partial.mkdir()
    (partial / "mark").write_text("of the first run")

    def first_run_finishes(*_):
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


@pytest.mark.parametrize("name", ["/a:b/c", "a:", "a${b}", "a${", "\\${", "a\n${b", "a\nb:c"])
def test_names_that_no_data_folder_of_fairseqs_can_have(name):
    with pytest.raises(UserError) as raised:
        check_data_path(Path(name))
    assert str(raised.value).startswith(" ".join(name.split())), "in one line"
    if ":" in name:
        check_path(name)


def test_odd_names_that_it_can_have():
    check_data_path(Path("/a b/$c{d}/{$}/é'\"\\,=/%20"))


def test_such_a_name_is_rejected_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="a:b"):
        prepare_corpus([Path("none")], [Path("none")], Path("a:b"))
    assert not list(tmp_path.iterdir())
