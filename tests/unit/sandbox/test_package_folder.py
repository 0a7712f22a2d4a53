"""Nobody reads half a package or loses one that is used, and no package leads the gateway elsewhere."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.sandbox.package_fetch import without_keys
from gateway.sandbox.package_folder import RECORD, FetchedPackage, PackageFolder, packages_root, remove, usable_root
from gateway.sandbox.untrusted_files import has_no_links, read_plain, write_new
from tests.requirements import requirement
from tests.unit.sandbox.parts import make

pytestmark = requirement("box.package-whole")


@pytest.fixture
def folder(tmp_path: Path) -> PackageFolder:
    found = PackageFolder(tmp_path / "packages" / "server")
    found.make()
    return found


def fetched(folder: PackageFolder, content: str = "one") -> FetchedPackage:
    """A whole package in a new copy, which no record names yet."""
    copy = folder.new_copy()
    make(copy, "program", text="#!/bin/sh\n", mode=0o700)
    return FetchedPackage(
        argv=(str(copy / "program"),), env={"A": "1"}, path=(str(copy),), read=(str(copy),),
        content=content, copy=copy.name, fetched_at=5.0,
    )  # fmt: skip


def test_a_package_is_there_once_its_record_names_it_and_while_it_is_whole(folder: PackageFolder) -> None:
    package = fetched(folder)
    assert folder.current() is None
    folder.publish(replace(package, argv=("/nonexistent/python", *package.argv)))
    assert folder.current() is None, "without its interpreter"
    for record in (b'{"argv": ["/bin/true"', b'{"argv": "/bin/true"}'):
        (folder.path / RECORD).write_bytes(record)
        assert folder.current() is None, record
    folder.publish(package)
    for part in (Path(package.argv[0]), folder.path / package.copy):
        assert PackageFolder(folder.path).current() == package
        part.rename(folder.path / "elsewhere")
        assert folder.current() is None, f"without {part}"
        (folder.path / "elsewhere").rename(part)


@requirement("box.package-shared")
def test_one_gateway_fetches_at_a_time(folder: PackageFolder) -> None:
    for _ in range(2):
        lock = folder.try_lock()
        assert lock is not None and PackageFolder(folder.path).try_lock() is None
        os.close(lock)


@requirement("box.package-shared")
def test_a_copy_in_use_is_kept_until_it_is_released(folder: PackageFolder) -> None:
    old, new = fetched(folder), fetched(folder, "two")
    folder.publish(old)
    release, again = folder.use(old), folder.use(old)
    folder.publish(new)
    for end in (release, again):
        PackageFolder(folder.path).remove_unused()
        assert old.is_whole
        end()
    PackageFolder(folder.path).remove_unused()
    assert not (folder.path / old.copy).exists()
    assert folder.current() == new


def test_what_a_killed_fetch_has_left_behind_is_removed(folder: PackageFolder) -> None:
    sealed = folder.path / fetched(folder).copy / "sealed"
    make(folder.path, "abc.new", f"{sealed}/file")
    sealed.chmod(0)
    folder.remove_unused()
    assert [*folder.path.iterdir()] == []


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    assert usable_root(root) == ""
    assert root.stat().st_mode & 0o777 == 0o700
    root.chmod(0o777)
    assert "can be written by other users" in usable_root(root)
    (tmp_path / "file").touch()
    assert usable_root(tmp_path / "file" / "b") == f"{tmp_path / 'file' / 'b'}: Not a directory"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of the gateway's user, with a file and a folder that nobody may enter."""
    make(tmp_path, "victim/closed/")
    make(tmp_path, "victim/file", text="kept")
    (tmp_path / "victim/closed").chmod(0o500)
    return tmp_path / "victim"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    make(tmp_path, "copy/")
    return tmp_path / "copy"


def test_a_note_that_is_no_plain_file_is_not_read(copy: Path, victim: Path) -> None:
    os.mkfifo(copy / "pipe")
    (copy / "link").symlink_to(victim / "file")
    (copy / "endless").symlink_to("/dev/zero")
    (copy / "away").symlink_to(victim)
    make(copy, "folder/")
    make(copy, "long", text="x" * 11)
    make(copy, "short", text="x" * 10)
    for name in ("pipe", "link", "endless", "folder", "away/file", "long"):
        with pytest.raises(OSError):
            read_plain(copy, copy / name, 10)
    assert read_plain(copy, copy / "short", 10) == b"x" * 10
    assert has_no_links(copy, copy / "a/b") and not has_no_links(copy, copy / "away/closed")


def test_a_file_is_written_in_place_of_a_link_and_not_through_it(copy: Path, victim: Path) -> None:
    (copy / "npmrc").symlink_to(victim / "file")
    without_keys({}, "/nonexistent", copy)
    assert (victim / "file").read_text("utf-8") == "kept" and not (copy / "npmrc").is_symlink()
    (copy / "away").symlink_to(victim)
    with pytest.raises(OSError):
        write_new(copy, copy / "away/file", "changed")


def test_what_a_link_leads_to_is_neither_removed_nor_changed(copy: Path, victim: Path) -> None:
    (copy / "home").symlink_to(victim)
    (copy / "inside").mkdir()
    (copy / "inside/link").symlink_to(victim)
    before = [(path, path.lstat().st_mode) for path in sorted(victim.rglob("*"))]
    for folder in (copy / "home", copy):
        remove(folder)
        assert not os.path.lexists(folder)
    assert [(path, path.lstat().st_mode) for path in sorted(victim.rglob("*"))] == before


def test_packages_are_in_the_cache_of_the_user_and_below_temporary_files_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for cache, found in ((str(tmp_path / "c"), tmp_path / "c"), ("c", tmp_path / ".cache"), ("", tmp_path / ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        assert packages_root() == found / "mcp-session-gateway/packages"
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    assert packages_root().is_relative_to(tempfile.gettempdir()) and not packages_root().is_relative_to(tmp_path)
