"""Folders of sessions: private, gone with the session, and gone after a process was killed."""

import os
import resource
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.context.session_folders import SessionFolders
from tests.requirements import requirement

pytestmark = requirement("ctx.temp-dir")


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path("/tmp") / f"f{os.getpid()}{tmp_path_factory.mktemp('x').name[-4:]}"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
async def folders(base: Path) -> AsyncIterator[SessionFolders]:
    """Those of one process. Nothing is left of them when it has ended."""
    found = SessionFolders()
    yield found
    await found.close()
    assert within("*/*") == []


def within(pattern: str) -> list[Path]:
    """What there is in the folder for temporary files."""
    return [*Path(tempfile.gettempdir()).glob(pattern)]


def end(folders: SessionFolders, session_id: str) -> None:
    """The session ends, and with it its last link."""
    folders.release(session_id)
    folders.forget(session_id)


async def test_a_folder_is_private_and_ends_with_the_last_link_of_an_ended_session(folders: SessionFolders) -> None:
    one, other = folders.path("s1"), folders.path("s2")
    assert one != other and not one.exists()
    folders.use("s1")
    assert [path.stat().st_mode & 0o777 for path in (one, one.parent, one.parent.parent, *within("*"))] == [0o700] * 4
    (one / "file").write_text("x")
    folders.release("s1")
    assert (one / "file").exists(), "the session lives on, and its server may start again"
    folders.use("s1")
    folders.use("s1")
    folders.forget("s1")
    folders.release("s1")
    assert one.exists(), "a link is still open"
    folders.release("s1")
    assert not one.exists()


async def test_whatever_a_server_leaves_is_removed_and_a_session_that_comes_back_at_once_gets_an_empty_folder(
    tmp_path: Path, folders: SessionFolders
) -> None:
    (tmp_path / "kept").write_text("x")
    folders.use("s1")
    folder = folders.path("s1")
    (folder / "link").symlink_to(tmp_path)
    (folder / "closed").mkdir()
    (folder / "closed" / "file").write_text("x")
    (folder / "closed").chmod(0)
    end(folders, "s1")
    folders.use("s1")
    assert [*folder.iterdir()] == []
    await folders.close()
    assert (tmp_path / "kept").exists()


async def test_deep_folders_are_removed_with_few_descriptors(folders: SessionFolders) -> None:
    folders.use("s1")
    deep = os.open(folders.path("s1"), os.O_RDONLY)
    for _ in range(1_100):  # the path is longer than a path may be, and deeper than a recursion
        os.mkdir("d" * 9, dir_fd=deep)
        below = os.open("d" * 9, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.mkdir("closed", 0, dir_fd=deep)
    end(folders, "s1")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (deep + 40, hard))
    try:
        await folders.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(deep)


async def test_the_next_process_removes_what_a_killed_one_left_and_nothing_of_a_living_one(
    folders: SessionFolders,
) -> None:
    living, killed = SessionFolders(), SessionFolders()
    for each in (living, killed):
        each.use("s1")
    os.close(killed._lock)  # what the end of a process does
    await folders.clean()
    assert living.path("s1").exists() and not killed.path("s1").parent.parent.exists()
    assert {path.stem for path in within("*/*.lock")} == {each.sockets.parent.name for each in (living, folders)}
    await living.close()


async def test_a_folder_that_somebody_else_has_made_is_not_used(
    base: Path, folders: SessionFolders, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = base / f"mcp-session-gateway-{os.geteuid()}"
    theirs.mkdir(mode=0o755)
    used = base / folders.path("s1").relative_to(base).parts[0]
    assert used != theirs and used.name.startswith("mcp-session-") and "open to others" in caplog.text


@requirement("box.own-folder")
async def test_each_server_of_a_session_has_a_folder_of_its_own_that_ends_with_the_session(
    folders: SessionFolders,
) -> None:
    notes, files = folders.use_own("s1", "notes"), folders.use_own("s1", "files")
    other, nobodys = folders.use_own("s2", "notes"), folders.use_own("", "notes")
    assert len({notes, files, other, nobodys}) == 4 and not notes.is_relative_to(folders.path("s1"))
    assert {path.name: path.stat().st_mode & 0o777 for path in notes.iterdir()} == {"home": 0o700, "tmp": 0o700}
    assert len(str(notes / "tmp")) < len(tempfile.gettempdir() + "/mcp-session-gateway-65534/12345678/o/12345/tmp")
    (notes / "home/file").write_text("x")
    folders.release("s1")
    assert folders.use_own("s1", "notes") == notes and (notes / "home/file").exists(), "its server has started again"
    end(folders, "s1")
    assert notes.exists(), "a link is still open"
    folders.release("s1")
    assert not notes.exists() and not files.exists() and other.exists()
