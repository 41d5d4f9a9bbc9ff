"""An export on the Hugging Face Hub: its files, and never any other that lies among them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HFValidationError, HTTPError
from huggingface_hub.utils import validate_repo_id

from ..errors import UserError, check, one_line
from ..system.digests import digest_file
from .exporting import CARD, export


def check_target(name: str, dry_run: bool) -> None:
    """Refuses what cannot be pushed to, before anything is exported.

    Raises:
        UserError: the name is none that a repository can have; or there is no token to push with.
    """
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        check("--push", name, False, f"NAME or OWNER/NAME, letters, digits, -, _ and . alone ({error})")
    if not dry_run and get_token() is None:
        raise UserError(f"--push {name}: there is no token: hf auth login saves one, or HF_TOKEN holds it")


def check_is_export(checkpoint: Path, out: Path, data: Path | None) -> None:
    """Refuses a folder that is not, file by file, what the checkpoint exports; its card may have been edited.

    Raises:
        UserError: it holds another file, a link, or a file with other content; or lacks one.
        FileNotFoundError, UserError: as ``export``.
    """
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder, "exported")
        export(checkpoint, fresh, data)
        remedy = "nothing is pushed: name another OUT to export anew"
        for name in sorted({*_files(fresh), *_files(out)}):
            own, there = fresh / name, out / name
            if not own.is_file():
                raise UserError(f"{there} is not of this export: {remedy}, or move it")
            if there.is_symlink() or not there.is_file():
                raise UserError(f"{there} is missing, or a link: {remedy}")
            if name != CARD and digest_file(own) != digest_file(there):
                raise UserError(f"{there} is not what {checkpoint} exports: {remedy}")


def _files(folder: Path) -> list[str]:
    """Everything below a folder but folders, by its path in there."""
    paths = folder.rglob("*")
    return sorted(path.relative_to(folder).as_posix() for path in paths if path.is_symlink() or not path.is_dir())


def push(out: Path, name: str, private: bool, dry_run: bool) -> Iterator[str]:
    """Makes the repository if there is none, and uploads an export in one commit; says what it does, a line each.

    Args:
        out: the export, and nothing else.
        name: of the repository; without an owner it is the token's.
        private: whether a new repository is private; if not, it is as the Hub makes them for its owner: public, unless
            an organisation has chosen otherwise.
        dry_run: only say it. Needs neither token nor network.

    Raises:
        UserError: the Hub refuses, or cannot be reached.
    """
    files = _files(out)
    for file in files:
        yield f"{(out / file).stat().st_size:>13,} bytes  {file}"
    if dry_run:
        kind = "as a private repository" if private else "as a public one, unless its owner's default is private"
        yield f"dry run: these {len(files)} files would go to the Hub's model {name}, if it is new {kind}"
        return
    try:
        api = HfApi()
        address = api.create_repo(name, private=private or None, exist_ok=True)
        message = "Export by fairseq_linformer"
        api.upload_folder(repo_id=address.repo_id, folder_path=out, allow_patterns=files, commit_message=message)
    except (OSError, ValueError, HTTPError) as error:
        said = one_line(error)[:300]
        raise UserError(f"--push {name}: {said}; {out} is whole, and the same command tries again") from error
    yield f"pushed: {address}"
