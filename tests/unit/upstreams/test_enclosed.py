"""What a link gets in a sandbox: walls, a folder of its own, and nothing that outlives it."""

from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import GatewaySettings
from gateway.config.upstreams import UpstreamSettings
from gateway.context.link_resources import LinkResources
from gateway.context.session_folders import SessionFolders
from gateway.sandbox.enclosures import enclosures_of
from gateway.upstreams.enclosed import Enclosing
from session_store.tool_session import SOCKET_VARIABLE
from tests.requirements import requirement
from transports.upstream_port import ConnectOptions, UpstreamUnavailable

pytestmark = pytest.mark.anyio


def enclosing(folders: SessionFolders, sandbox: Any, name: str = "notes") -> Enclosing:
    settings = UpstreamSettings.model_validate({"command": "cat", "sandbox": sandbox})
    return Enclosing(name, enclosures_of(name, settings, GatewaySettings()), folders)


def is_folder(path: str) -> bool:
    return Path(path).is_dir()


def resources(closed: list[str], **env: str) -> LinkResources:
    return LinkResources(given=ConnectOptions(env=env), close=lambda: closed.append("closed"))


@requirement("box.own-folder")
async def test_two_sessions_and_two_servers_have_no_folder_in_common() -> None:
    folders, closed = SessionFolders(), list[str]()
    written = []
    for session, name in (("s1", "notes"), ("s2", "notes"), ("s1", "files")):
        one = enclosing(folders, "standard", name)
        found = one.of_session(
            resources(closed, **{SOCKET_VARIABLE: f"/run/{session}"}), session, one.sandbox("direct")
        )
        walls = found.given.walls
        assert walls is not None and walls.reach is not None and walls.reach.sockets == (f"/run/{session}",)
        written += [Path(grant.path) for grant in walls.grants if "w" in grant.mode and grant.path[:5] != "/dev/"]
        assert is_folder(found.given.env["HOME"]) and found.given.cwd == "~"
        found.close()
    assert len(set(written)) == len(written) == 3 and closed == ["closed"] * 3
    assert not any(one.is_relative_to(other) for one in written for other in written if one != other)
    folders.forget("s1")
    assert [path.exists() for path in written] == [False, True, False]
    await folders.close()


@requirement("box.own-folder")
async def test_the_folder_of_the_whole_session_is_written_if_a_variable_names_it() -> None:
    folders = SessionFolders()
    one = enclosing(folders, "strict")
    shared = str(folders.path("s1"))
    for env, is_granted in (({"TMPDIR": shared}, True), ({}, False)):
        found = one.of_session(resources([], **env), "s1", one.sandbox("direct"))
        assert found.given.walls is not None
        assert (shared in {grant.path for grant in found.given.walls.grants}) is is_granted
        assert (found.given.env["TMPDIR"] == shared) is is_granted, "what the operator sets wins"
    await folders.close()


@requirement("box.trust")
async def test_without_walls_a_link_is_left_as_it_was() -> None:
    folders = SessionFolders()
    one = enclosing(folders, {"direct": "off", "sandboxed": "strict"})
    given = resources([])
    assert one.of_session(given, "s1", one.sandbox("direct")) is given
    assert one.shared().given.walls is not None, "a process of nobody has the walls of the least trusted session"
    await folders.close()


async def test_a_folder_that_cannot_be_made_releases_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: str) -> Path:
        raise OSError(28, "No space left on device")

    folders, closed = SessionFolders(), list[str]()
    monkeypatch.setattr(folders, "use_own", full)
    one = enclosing(folders, "standard")
    with pytest.raises(UpstreamUnavailable, match="no folder for the session: No space left"):
        one.of_session(resources(closed), "s1", one.sandbox("direct"))
    assert closed == ["closed"]
