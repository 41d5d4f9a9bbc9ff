"""Fixtures that several test files share."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real texts that LINFORMER_DATA names (default ../shared/data beside the checkout)."""
    folder = Path(os.environ.get("LINFORMER_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "books" / "valid.txt.xz").is_file():
        pytest.skip(f"no real data: {folder} holds no books/valid.txt.xz (LINFORMER_DATA names another folder)")
    return folder
