"""What a link gets in a sandbox: walls, a folder of its own, and nothing that outlives it."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.sandbox import Sandbox
from gateway.config.settings import GatewaySettings
from gateway.config.upstreams import UpstreamSettings
from gateway.context.link_resources import LinkResources
from gateway.context.session_folders import SessionFolders
from gateway.sandbox.enclosures import enclosures_of
from gateway.sandbox.packages import PackageInUse
from gateway.upstreams.enclosed import Enclosing
from gateway.upstreams.session_resources import PrestartedProcess, SessionResources
from session_store.testing import FakeClock, a_session
from session_store.tool_session import SOCKET_VARIABLE
from tests.requirements import requirement
from tests.unit.upstreams.parts import returning
from transports.upstream.walls.spec import Walls
from transports.upstream_port import ConnectOptions, UpstreamUnavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
async def folders() -> AsyncIterator[SessionFolders]:
    found = SessionFolders()
    yield found
    await found.close()


class Enclosed:
    """A server in a sandbox whose links have ended as `ended` says."""

    def __init__(self, folders: SessionFolders, sandbox: Any, name: str = "notes", *, is_fetched: bool = False) -> None:
        self.ended: list[str] = []
        package = PackageInUse(
            argv=("/usr/bin/env", "x"),
            env={"A": "package", "B": "package"},
            path=("/usr/games",),
            code=("/usr/share/doc",),
            release=lambda: self.ended.append("released"),
        )
        settings = UpstreamSettings.model_validate({"command": "cat", "sandbox": sandbox})
        enclosures = enclosures_of(name, settings, GatewaySettings())
        self.enclosing = Enclosing(name, enclosures, folders, returning(package if is_fetched else None))

    async def link(self, session: str = "s1", trust: str = "direct", **env: str) -> LinkResources:
        given = LinkResources(given=ConnectOptions(env=env), close=lambda: self.ended.append("closed"))
        return await self.enclosing.of_session(given, session, self.enclosing.sandbox(trust))


def walls_of(link: LinkResources) -> Walls:
    assert link.given.walls is not None
    return link.given.walls


def is_folder(path: str) -> bool:
    return Path(path).is_dir()


@requirement("box.own-folder")
async def test_two_sessions_and_two_servers_have_no_folder_in_common(folders: SessionFolders) -> None:
    written = []
    for session, name in (("s1", "notes"), ("s2", "notes"), ("s1", "files")):
        server = Enclosed(folders, "standard", name)
        link = await server.link(session, **{SOCKET_VARIABLE: f"/run/{session}"})
        walls = walls_of(link)
        assert walls.reach is not None and walls.reach.sockets[0] == f"/run/{session}"
        written += [Path(grant.path) for grant in walls.grants if "w" in grant.mode and grant.path[:5] != "/dev/"]
        assert is_folder(link.given.env["HOME"]) and link.given.cwd == "~"
        link.close()
        assert server.ended == ["closed"]
    assert len(set(written)) == len(written) == 3
    assert not any(one.is_relative_to(other) for one in written for other in written if one != other)
    folders.forget("s1")
    assert [path.exists() for path in written] == [False, True, False]


@requirement("box.own-folder")
async def test_the_folder_of_the_whole_session_is_written_if_a_variable_names_it(folders: SessionFolders) -> None:
    shared = str(folders.path("s1"))
    for env, is_granted in (({"TMPDIR": shared}, True), ({}, False)):
        link = await Enclosed(folders, "strict").link(**env)
        assert (shared in {grant.path for grant in walls_of(link).grants}) is is_granted
        assert (link.given.env["TMPDIR"] == shared) is is_granted, "what the operator sets wins"


@requirement("box.trust", "box.package-once")
async def test_without_walls_a_link_is_left_as_it_was_and_nothing_is_fetched(folders: SessionFolders) -> None:
    server = Enclosed(folders, {"direct": "off", "sandboxed": "strict"}, is_fetched=True)
    link = await server.link(A="session")
    assert link.given == ConnectOptions(env={"A": "session"})
    link.close()
    assert server.ended == ["closed"]
    assert walls_of(await server.enclosing.shared()), "such a process has the walls of the least trusted session"


@requirement("box.package-once", "box.package-equal")
async def test_a_fetched_package_is_started_in_place_of_the_command_and_only_read(folders: SessionFolders) -> None:
    server = Enclosed(folders, "standard", is_fetched=True)
    link = await server.link(A="session")
    assert (link.given.argv, link.given.path) == (("/usr/bin/env", "x"), ("/usr/games",))
    assert (link.given.env["A"], link.given.env["B"]) == ("session", "package")
    assert {grant.mode for grant in walls_of(link).grants if grant.path == "/usr/share/doc"} == {"rx"}
    link.close()
    assert sorted(server.ended) == ["closed", "released"]


@requirement("box.package-shared")
async def test_a_folder_that_cannot_be_made_releases_the_link_and_the_package(
    folders: SessionFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    server = Enclosed(folders, "standard", is_fetched=True)
    monkeypatch.setattr(folders, "use_own", refuse)
    with pytest.raises(UpstreamUnavailable, match="no folder for the session: No space left"):
        await server.link()
    assert sorted(server.ended) == ["closed", "released"]


@requirement("box.keys")
async def test_no_process_starts_when_a_granted_folder_has_come_to_hold_keys(
    folders: SessionFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "private").mkdir()
    (data / "keys").symlink_to(tmp_path / "private" / "keys")
    monkeypatch.setenv("MCP_GATEWAY_KEYS_FILE", str(data / "keys"))
    server = Enclosed(folders, {"direct": {"profile": "standard", "read": [str(data)]}, "sandboxed": "strict"})
    (await server.link()).close()
    (data / "keys").unlink()  # the operator puts the file itself where the link was
    for session in ("s1", "s2"):
        with pytest.raises(UpstreamUnavailable, match="grants files of the gateway") as refused:
            await server.link(session)
        assert str(tmp_path) not in str(refused.value), "clients learn no paths"
        (await server.link(session, "sandboxed")).close()
    assert server.ended == ["closed"] * 5 and len(caplog.messages) == 1, "each start is refused, and one line says why"
    assert f"server notes is not started: its sandbox grants {data}, and with it {data / 'keys'}" in caplog.text


SANDBOXES = {"direct": Sandbox(profile="standard"), "sandboxed": Sandbox(profile="strict")}


@requirement("box.trust", "proc.warm")
@pytest.mark.parametrize(("trust", "is_taken"), [("direct", True), ("sandboxed", False)])
async def test_a_process_with_the_walls_of_another_trust_is_not_taken(trust: str, is_taken: bool) -> None:
    closed = []

    async def close() -> None:
        closed.append("link")

    link: Any = SimpleNamespace(is_unheard=True, close=close)
    before, now = (LinkResources(given=ConnectOptions(env={"MADE": made})) for made in ("before", "now"))
    environment = {"A": "b"}  # it says nothing of the trust
    parts: Any = {
        "grants": SimpleNamespace(for_child=returning(now)),
        "assertions": None,
        "credentials": None,
        "environment": SimpleNamespace(of=returning(environment), facts=lambda *_: {}, comparable=dict),
        "quotas": SimpleNamespace(process=returning(lambda: None)),
        "take_prestarted": lambda _: PrestartedProcess(before, link, environment, SANDBOXES["direct"], lambda: None),
        "enclosing": SimpleNamespace(sandbox=SANDBOXES.__getitem__, of_session=returning(now)),
    }
    session = a_session(FakeClock())
    live: Any = SimpleNamespace(session=replace(session, context=replace(session.context, trust=trust)))
    found = await SessionResources(UpstreamSettings(command="cat"), **parts).of(live, "", "")
    assert (found.given.started is link) is is_taken and found.given.env == {"MADE": "before" if is_taken else "now"}
    assert closed == ([] if is_taken else ["link"])
