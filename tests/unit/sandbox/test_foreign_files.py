"""What a package has left in its folder leads the gateway nowhere else, and holds it up nowhere."""

import os
from pathlib import Path

import pytest

from gateway.sandbox.foreign_files import plain, read_plain, write_new
from gateway.sandbox.npm_settings import without_keys
from gateway.sandbox.package_folder import remove
from tests.requirements import requirement


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of the gateway's user, with a file and a folder that nobody may enter."""
    folder = tmp_path / "victim"
    (folder / "closed").mkdir(parents=True)
    (folder / "closed").chmod(0o500)
    (folder / "file").write_text("kept", encoding="utf-8")
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    return folder


@requirement("box.package-whole")
def test_a_note_that_is_no_plain_file_is_not_read(copy: Path, victim: Path) -> None:
    os.mkfifo(copy / "pipe")
    (copy / "link").symlink_to(victim / "file")
    (copy / "endless").symlink_to("/dev/zero")
    (copy / "folder").mkdir()
    (copy / "away").symlink_to(victim)
    (copy / "long").write_bytes(b"x" * 11)
    for name in ("pipe", "link", "endless", "folder", "away/file", "long"):
        with pytest.raises(OSError):
            read_plain(copy, copy / name, 10)
    (copy / "short").write_bytes(b"x" * 10)
    assert read_plain(copy, copy / "short", 10) == b"x" * 10
    assert plain(copy, copy / "a/b") and not plain(copy, copy / "away/closed")


@requirement("box.package-whole")
def test_a_file_is_written_in_place_of_a_link_and_not_through_it(copy: Path, victim: Path) -> None:
    (copy / "npmrc").symlink_to(victim / "file")
    without_keys({}, "/nonexistent", copy)
    assert (victim / "file").read_text("utf-8") == "kept" and not (copy / "npmrc").is_symlink()
    (copy / "away").symlink_to(victim)
    with pytest.raises(OSError):
        write_new(copy, copy / "away/file", "changed")


@requirement("box.package-whole")
def test_what_a_link_leads_to_is_neither_removed_nor_changed(copy: Path, victim: Path) -> None:
    (copy / "home").symlink_to(victim)
    (copy / "inside").mkdir()
    (copy / "inside/link").symlink_to(victim)
    before = [(path, path.lstat().st_mode) for path in sorted(victim.rglob("*"))]
    for folder in (copy / "home", copy):
        remove(folder)
        assert not os.path.lexists(folder)
    assert [(path, path.lstat().st_mode) for path in sorted(victim.rglob("*"))] == before
