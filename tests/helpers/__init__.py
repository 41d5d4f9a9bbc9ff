"""Helpers of several test files. A test file imports from here, never from another test file."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
