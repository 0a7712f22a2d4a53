"""Folders of the tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder whose path has no symlink."""
    return Path(os.path.realpath(tmp_path))
