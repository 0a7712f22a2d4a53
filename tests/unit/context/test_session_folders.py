"""Folders of sessions: private, gone with the session, and gone after a process was killed."""

import os
import resource
from pathlib import Path

import pytest

from gateway.context.session_folders import SessionFolders
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path("/tmp") / f"f{os.getpid()}{tmp_path_factory.mktemp('x').name[-4:]}"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def within(folder: Path, pattern: str = "*") -> list[Path]:
    return [*folder.glob(pattern)]


@requirement("ctx.temp-dir")
async def test_a_folder_is_private_and_ends_with_the_last_link_of_an_ended_session(base: Path) -> None:
    folders = SessionFolders()
    one, other = folders.path("s1"), folders.path("s2")
    assert one != other and not one.exists()
    folders.use("s1")
    folders.use("s1")
    assert [path.stat().st_mode & 0o777 for path in (one, one.parent, one.parent.parent, *within(base))] == [0o700] * 4
    (one / "file").write_text("x")
    folders.release("s1")
    folders.release("s1")
    assert (one / "file").exists(), "the session lives on, and its server may start again"
    folders.use("s1")
    folders.forget("s1")
    assert one.exists(), "a link is still open"
    folders.release("s1")
    assert not one.exists()
    await folders.close()
    assert not within(base, "*/*")


@requirement("ctx.temp-dir")
async def test_a_session_that_comes_back_at_once_gets_an_empty_folder(base: Path) -> None:
    folders = SessionFolders()
    folders.use("s1")
    (folders.path("s1") / "old").write_text("x")
    folders.release("s1")
    folders.forget("s1")
    folders.use("s1")
    assert [*folders.path("s1").iterdir()] == []
    await folders.close()


@requirement("ctx.temp-dir")
async def test_whatever_a_server_puts_there_is_removed(base: Path) -> None:
    folders, outside = SessionFolders(), base / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    folders.use("s1")
    folder = folders.path("s1")
    (folder / "link").symlink_to(outside)
    (folder / "closed").mkdir()
    (folder / "closed" / "file").write_text("x")
    (folder / "closed").chmod(0)
    folders.release("s1")
    folders.forget("s1")
    await folders.close()
    assert [path.name for path in within(base, "*/*")] == ["kept"]


@requirement("ctx.temp-dir")
async def test_deep_folders_are_removed_with_few_descriptors(base: Path) -> None:
    folders = SessionFolders()
    folders.use("s1")
    deep = os.open(folders.path("s1"), os.O_RDONLY)
    for _ in range(1_100):  # the path is longer than a path may be, and deeper than a recursion
        os.mkdir("d" * 9, dir_fd=deep)
        below = os.open("d" * 9, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.mkdir("closed", 0, dir_fd=deep)
    folders.release("s1")
    folders.forget("s1")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (deep + 40, hard))
    try:
        await folders.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(deep)
    assert within(base, "*/*") == []


@requirement("ctx.temp-dir")
async def test_the_next_process_removes_what_a_killed_one_left_and_nothing_of_a_living_one(base: Path) -> None:
    living, killed, following = SessionFolders(), SessionFolders(), SessionFolders()
    for each in (living, killed):
        each.use("s1")
        (each.path("s1") / "file").write_text("x")
    os.close(killed._lock)  # what the end of a process does
    await following.clean()
    assert living.path("s1").exists() and not killed.path("s1").parent.parent.exists()
    assert sorted(path.name for path in within(base, "*/*.lock")) == sorted(
        f"{each.sockets.parent.name}.lock" for each in (living, following)
    )
    await living.close()
    await following.close()


@requirement("ctx.temp-dir")
async def test_a_folder_that_somebody_else_has_made_is_not_used(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    (base / f"mcp-session-gateway-{os.geteuid()}").mkdir(mode=0o755)
    folders = SessionFolders()
    assert folders.path("s1").parts[len(base.parts)].startswith("mcp-session-") and "open to others" in caplog.text
    assert folders.path("s1").relative_to(base).parts[0] != f"mcp-session-gateway-{os.geteuid()}"
    await folders.close()


@requirement("box.own-folder")
async def test_each_server_of_a_session_has_a_folder_of_its_own_that_ends_with_the_session(base: Path) -> None:
    folders = SessionFolders()
    notes, files = folders.use_own("s1", "notes"), folders.use_own("s1", "files")
    other, nobodys = folders.use_own("s2", "notes"), folders.use_own("", "notes")
    assert len({notes, files, other, nobodys}) == 4 and not notes.is_relative_to(folders.path("s1"))
    assert {path.name: path.stat().st_mode & 0o777 for path in notes.iterdir()} == {"home": 0o700, "tmp": 0o700}
    assert len(str(notes / "tmp")) < len(str(base)) + len("/mcp-session-gateway-65534/12345678/o/12345/tmp")
    (notes / "home/file").write_text("x")
    folders.release("s1")
    assert folders.use_own("s1", "notes") == notes and (notes / "home/file").exists(), "its server has started again"
    folders.forget("s1")
    folders.release("s1")
    assert notes.exists(), "a link is still open"
    folders.release("s1")
    assert not notes.exists() and not files.exists() and other.exists()
    await folders.close()
    assert not within(base, "*/*")
