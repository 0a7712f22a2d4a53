"""What a link gets in a sandbox: walls, a folder of its own, and nothing that outlives it."""

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
from session_store import Session
from session_store.testing import FakeClock, a_session
from session_store.tool_session import SOCKET_VARIABLE
from tests.requirements import requirement
from transports.upstream_port import ConnectOptions, UpstreamUnavailable

pytestmark = pytest.mark.anyio


async def using(package: PackageInUse | None) -> PackageInUse | None:
    return package


def enclosing(
    folders: SessionFolders, sandbox: Any, name: str = "notes", package: PackageInUse | None = None
) -> Enclosing:
    settings = UpstreamSettings.model_validate({"command": "cat", "sandbox": sandbox})
    return Enclosing(name, enclosures_of(name, settings, GatewaySettings()), folders, lambda: using(package))


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
        found = await one.of_session(
            resources(closed, **{SOCKET_VARIABLE: f"/run/{session}"}), session, one.sandbox("direct")
        )
        walls = found.given.walls
        assert walls is not None and walls.reach is not None and walls.reach.sockets[0] == f"/run/{session}"
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
        found = await one.of_session(resources([], **env), "s1", one.sandbox("direct"))
        assert found.given.walls is not None
        assert (shared in {grant.path for grant in found.given.walls.grants}) is is_granted
        assert (found.given.env["TMPDIR"] == shared) is is_granted, "what the operator sets wins"
    await folders.close()


@requirement("box.trust", "box.package-once")
async def test_without_walls_a_link_is_left_as_it_was_and_nothing_is_fetched() -> None:
    folders, ended = SessionFolders(), list[str]()
    one = enclosing(folders, {"direct": "off", "sandboxed": "strict"}, package=package(ended))
    given = resources(ended)
    assert await one.of_session(given, "s1", one.sandbox("direct")) is given and not ended
    of_nobody = await one.shared()
    assert of_nobody.given.walls is not None, "such a process has the walls of the least trusted session"
    await folders.close()


@requirement("box.package-shared")
async def test_a_folder_that_cannot_be_made_releases_the_link_and_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    folders, ended = SessionFolders(), list[str]()
    one = enclosing(folders, "standard", package=package(ended))
    monkeypatch.setattr(folders, "use_own", refuse)
    with pytest.raises(UpstreamUnavailable, match="no folder for the session: No space left"):
        await one.of_session(resources(ended), "s1", one.sandbox("direct"))
    assert sorted(ended) == ["closed", "released"]
    await folders.close()


def package(released: list[str]) -> PackageInUse:
    return PackageInUse(
        argv=("/usr/bin/env", "x"),
        env={"A": "package", "B": "package"},
        path=("/usr/games",),
        code=("/usr/share/doc",),
        release=lambda: released.append("released"),
    )


@requirement("box.package-once", "box.package-equal")
async def test_a_fetched_package_is_started_in_place_of_the_command_and_only_read() -> None:
    folders, ended = SessionFolders(), list[str]()
    one = enclosing(folders, "standard", package=package(ended))
    found = await one.of_session(resources(ended, A="session"), "s1", one.sandbox("direct"))
    assert (found.given.argv, found.given.path) == (("/usr/bin/env", "x"), ("/usr/games",))
    assert (found.given.env["A"], found.given.env["B"]) == ("session", "package")
    walls = found.given.walls
    assert walls is not None and {grant.mode for grant in walls.grants if grant.path == "/usr/share/doc"} == {"rx"}
    found.close()
    assert sorted(ended) == ["closed", "released"]
    await folders.close()


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


@requirement("box.keys")
async def test_no_process_starts_when_a_granted_folder_has_come_to_hold_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys, data, folders, closed = tmp_path / "private" / "keys", tmp_path / "data", SessionFolders(), list[str]()
    keys.parent.mkdir()
    data.mkdir()
    monkeypatch.setenv("MCP_GATEWAY_KEYS_FILE", str(data / "keys"))
    (data / "keys").symlink_to(keys)
    settings = UpstreamSettings.model_validate({"command": "cat", "args": [str(data)], "sandbox": "standard"})
    enclosures = enclosures_of("notes", settings, GatewaySettings())
    one = Enclosing("notes", enclosures, folders, lambda: using(None))
    sandbox = one.sandbox("direct")
    (await one.of_session(resources(closed), "s1", sandbox)).close()
    (data / "keys").unlink()  # the operator puts the file itself where the link was
    for session in ("s1", "s2"):
        with pytest.raises(UpstreamUnavailable, match="grants files of the gateway") as refused:
            await one.of_session(resources(closed), session, sandbox)
        assert str(tmp_path) not in str(refused.value), "clients learn no paths"
    assert closed == ["closed"] * 3 and len(caplog.messages) == 1, "each start is refused, and one line says why"
    assert f"server notes is not started: its sandbox grants {data}, and with it {data / 'keys'}" in caplog.text
    await folders.close()


@requirement("box.keys")
async def test_what_opens_keys_is_logged_once_while_sessions_of_another_trust_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folders = SessionFolders()
    monkeypatch.setenv("MCP_GATEWAY_KEYS_FILE", str(tmp_path / "keys"))
    one = enclosing(folders, {"direct": {"profile": "standard", "read": [str(tmp_path)]}, "sandboxed": "strict"})
    for session in ("s1", "s2", "s3"):
        with pytest.raises(UpstreamUnavailable, match="grants files of the gateway"):
            await one.of_session(resources([]), session, one.sandbox("direct"))
        (await one.of_session(resources([]), session, one.sandbox("sandboxed"))).close()
    assert len(caplog.messages) == 1
    await folders.close()


SANDBOXES = {"direct": Sandbox(profile="standard"), "sandboxed": Sandbox(profile="strict")}


class Parts:
    """What the resources are made of, as far as a process is chosen by it."""

    def __init__(self) -> None:
        self.prestarted: PrestartedProcess | None = None
        self.closed: list[str] = []

    async def environment(self, session: Session, correlation: str) -> dict[str, str]:
        return {"A": "b"}  # it says nothing of the trust

    async def child(self, *_: Any) -> LinkResources:
        return LinkResources(given=ConnectOptions(env={"MADE": "now"}))

    async def enclosed(self, resources: LinkResources, session_id: str, sandbox: Sandbox) -> LinkResources:
        return resources

    async def process(self, session: Session) -> Any:
        return lambda: None

    async def close(self) -> None:
        self.closed.append("link")

    def resources(self) -> SessionResources:
        environment = SimpleNamespace(of=self.environment, facts=lambda *_: {}, comparable=dict)
        enclosing = SimpleNamespace(sandbox=SANDBOXES.__getitem__, of_session=self.enclosed)
        given: Any = {
            "grants": SimpleNamespace(for_child=self.child),
            "assertions": None,
            "credentials": None,
            "environment": environment,
            "quotas": SimpleNamespace(process=self.process),
            "take_prestarted": lambda _: self.prestarted,
            "enclosing": enclosing,
        }
        return SessionResources(UpstreamSettings(command="cat"), **given)


@requirement("box.trust", "proc.warm")
@pytest.mark.parametrize(("trust", "is_taken"), [("direct", True), ("sandboxed", False)])
async def test_a_process_with_the_walls_of_another_trust_is_not_taken(trust: str, is_taken: bool) -> None:
    parts = Parts()
    link: Any = SimpleNamespace(is_unheard=True, close=parts.close)
    grant = LinkResources(given=ConnectOptions(env={"MADE": "before"}))
    parts.prestarted = PrestartedProcess(grant, link, {"A": "b"}, SANDBOXES["direct"], lambda: None)
    session = a_session(FakeClock())
    live: Any = SimpleNamespace(session=replace(session, context=replace(session.context, trust=trust)))
    found = await parts.resources().of(live, "", "")
    assert (found.given.started is link) is is_taken and found.given.env == {"MADE": "before" if is_taken else "now"}
    assert parts.closed == ([] if is_taken else ["link"])
