"""A configured server: which conversation a session has with it."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gateway.calls.conversation import Conversation
from gateway.calls.lifecycles import Deadlines
from gateway.config.configuration_errors import ConfigurationError
from gateway.config.sandbox import Sandbox
from gateway.config.upstreams import UpstreamSettings
from gateway.context.resources_for_links import LinkResources
from gateway.context.session_folders import SessionFolders
from gateway.errors import StartRefused
from gateway.protocol.client_capabilities import ClientDeclaration
from gateway.upstreams import prestart
from gateway.upstreams.configured_upstream import MAX_CONVERSATIONS, ConfiguredUpstream
from gateway.upstreams.factory import load_object
from gateway.upstreams.link_env_and_headers import (
    PrestartedProcess,
    SessionResources,
    secrets_in,
    secrets_in_command,
    secrets_of_link,
)
from gateway.upstreams.prestart import PrestartedProcesses, PrestartPool
from gateway.upstreams.result_cache import ResultCache
from gateway.upstreams.shared_conversations import SharedConversations
from session_store import Session
from session_store.testing import BOB, FakeClock, a_session
from session_store.tool_session import FACTS_VARIABLE, SOCKET_VARIABLE
from tests.requirements import requirement
from tests.support.fake_upstream import FakeLink, a_live
from tests.unit.upstreams.parts import Enclosed, returning, walls_of
from transports.era import LEGACY, Era
from transports.inbound_port import Refused
from transports.upstream_port import ConnectOptions, LinkEvents, UpstreamUnavailable


def upstream(name: str) -> ConfiguredUpstream:
    anything: Any = SimpleNamespace(results=ResultCache(0))
    links: dict[str, Any] = {"is_gateway": False, "permits": None, "start_times_s": (), "starts": {}, "restarts": {}}
    parts: Any = SimpleNamespace(name=name, **links)
    names = ("start", "facts", "discovery", "era_for", "answered", "learn", "log_first_answer")
    probe: Any = SimpleNamespace(**dict.fromkeys(names))
    probe.era_now = lambda _: LEGACY
    deadlines = Deadlines(call_s=1.0, start_s=1.0, noise_s=1.0, suspended_s=1.0, idle_stop_s=None)
    rest = {"lists": anything, "known": anything, "shared": anything, "probe": probe, "deadlines": deadlines}
    return ConfiguredUpstream(UpstreamSettings(command="c"), anything, parts, **rest)


@requirement("ext.relay")
async def test_other_extension_settings_are_another_connection_up_to_a_limit() -> None:
    live, server = a_live(), upstream("s")

    def declaration(settings: int) -> ClientDeclaration:
        return ClientDeclaration(b'{"name":"c","version":"1"}', b'{"extensions":{"com.acme/a":{"n":%d}}}' % settings)

    def conversation(server: ConfiguredUpstream, settings: int) -> Conversation:
        return server.conversation(live, LEGACY, "c", declaration(settings))

    opened = [conversation(server, n) for n in range(MAX_CONVERSATIONS)]
    assert len({id(each) for each in opened}) == MAX_CONVERSATIONS and conversation(server, 3) is opened[3]
    with pytest.raises(UpstreamUnavailable, match="16 different sets of capabilities"):
        conversation(server, MAX_CONVERSATIONS)
    assert conversation(upstream("other"), 99) not in opened
    for method, settings, held in (
        ("tools/call", 3, opened[3]),  # whose lists decide the call
        ("tools/call", 99, opened[0]),  # whose tools decide the call that opens its own
        ("prompts/get", 99, None),
    ):
        call: Any = SimpleNamespace(live=live, method=method, declaration=declaration(settings))
        assert server.conversation_at_hand(call, Era.MODERN) is held


@requirement("proc.last-words")
async def test_the_words_of_a_server_are_known_while_it_runs_and_ends_and_is_tried_again() -> None:
    links: list[FakeLink] = []

    async def connect(_: object, events: LinkEvents) -> FakeLink:
        links.append(FakeLink(events))
        return links[-1]

    source: Any = SimpleNamespace(name="fake", connect=connect, resources=SimpleNamespace(), is_gateway=False)
    source.resources.shared = returning(LinkResources())
    source.started = source.answered = source.failed = lambda *_: None
    source.known = SimpleNamespace(handshake=lambda: None)
    shared = SharedConversations(source, Deadlines(start_s=5.0, call_s=30.0, suspended_s=30.0, idle_stop_s=None))
    assert shared.output_tail == ()
    await shared.of(Era.MODERN).ready()
    link: Any = links[0]
    newest, known = tuple(f"line {n}" for n in range(20, 60)), []
    link.output_tail, end = [f"line {n}" for n in range(60)], link.close

    async def close() -> None:
        known.append(shared.output_tail)
        await end()

    link.close = close
    assert shared.output_tail == newest, "while its process runs"
    await shared.discard(Era.MODERN)
    assert known == [newest], "while its process ends"
    assert shared.output_tail == newest, "until the next process writes something"
    await shared.close()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `operators_module` that can be imported; a test writes it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "operators_module", raising=False)
    return tmp_path / "operators_module.py"


@requirement("ops.check")
@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("missing:app", "", "ModuleNotFoundError: No module named 'missing' (modules are looked for in "),
        ("operators_module:other", "app = 1\n", "AttributeError: module 'operators_module' has no attribute 'other'"),
        ("operators_module:app", "import missing\n", "No module named 'missing' ({file}, line 1)"),
        ("operators_module:app", "app = 1\n\n1 / 0\n", "ZeroDivisionError: division by zero ({file}, line 3)"),
    ],
)
def test_a_target_that_does_not_import_is_told_with_the_line_that_failed(
    name: str, source: str, fault: str, module: Path
) -> None:
    module.write_text(source, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_object("mine", name)
    assert str(caught.value).startswith(f"mcpServers.mine.in_process: {name}: ")
    assert fault.format(file=module) in str(caught.value)


@requirement("ops.check")
def test_a_target_may_be_within_another_and_without_the_sdk_it_is_an_error_that_names_the_extra(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.write_text("class Servers:\n    first = 'found'\n", encoding="utf-8")
    assert load_object("mine", "operators_module:Servers.first") == "found"
    for name in ("mcp", "mcp.server"):
        monkeypatch.setitem(sys.modules, name, None)
    sys.modules.pop("operators_module", None)
    module.write_text("import mcp.server\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"mine\.in_process needs .* pip install 'mcp-session-gateway\[mcp\]'"):
        load_object("mine", "operators_module:server")


@requirement("ops.frames")
def test_secrets_of_a_link_and_of_the_configuration_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = json.dumps({"workspace": "acme", "permissions": ["read"]})
    env = {FACTS_VARIABLE: facts, "WORKSPACE": "acme", "WHATEVER": "a value of the session"}
    given = ConnectOptions(env=env, headers=lambda: {"x": "Bearer of-the-session"})
    assert secrets_of_link(given) == {"a value of the session", "Bearer of-the-session", "of-the-session"}
    monkeypatch.setenv("SERVICE_TOKEN", "from the environment")
    env = {"API_KEY": "of the variable", "MODE": "from the environment", "LEVEL": "info"}
    command = UpstreamSettings(command="x", args=("--token", "of the command"), env=env)
    assert secrets_in_command(command) == {"of the command", "from the environment"}
    assert secrets_in(command) == {"of the command", "from the environment", "of the variable"}
    url = UpstreamSettings(url="http://example.com/mcp", headers={"Authorization": "Bearer of-the-header"})
    assert secrets_in(url) == {"Bearer of-the-header", "of-the-header"}


# -- Which session gets a prestarted process, and what becomes of the others


CLOCK = FakeClock()
SESSION = a_session(CLOCK)


class Process:
    """A process that was started for a session."""

    is_good = is_unheard = True
    is_closed = False

    def __init__(self, session: Session) -> None:
        self.session = session

    async def close(self) -> None:
        self.is_closed = True


class Pooled:
    """A pool for one server, which is this."""

    name = "demo"

    def __init__(self, prestarted: int = 1) -> None:
        self.settings = SimpleNamespace(warm=prestarted)
        self.started: list[Process] = []
        self.is_busy = False
        self.given = PrestartedProcesses()
        self.pool = PrestartPool(self.given, lambda *_: [cast("ConfiguredUpstream", self)], CLOCK)

    async def prestart(self, session: Session) -> Any:
        if self.is_busy:
            raise UpstreamUnavailable("busy")
        self.started.append(Process(session))
        return self.started[-1]

    async def open(self, **fields: Any) -> Session:
        """Open a session; what is made for the next one is ready afterwards."""
        with self.pool.beginning(a_session(CLOCK, **fields)) as session:
            self.pool.opened(session)
        await self.settled()
        return session

    async def settled(self) -> None:
        """Until what is being made or closed is made or closed."""
        await self.pool._tasks.settled()
        await self.given._tasks.settled()


@pytest.fixture
async def pooled() -> AsyncIterator[Pooled]:
    """With a process for the next session."""
    found = Pooled()
    await found.open()
    yield found
    await found.pool.close()


async def test_the_next_session_of_the_same_environment_gets_the_process_once(pooled: Pooled) -> None:
    [process] = pooled.started
    session = await pooled.open()
    assert session.id == process.session.id, "the process has its session's id"
    taken: Any = [pooled.given.take(session, name) for name in ("other", "demo", "demo")]
    assert taken == [None, process, None]
    assert len(pooled.started) == 2, "and one is made for the next"
    await pooled.pool.close()
    assert not process.is_closed and pooled.started[1].is_closed


async def test_a_process_does_not_get_the_age_of_the_session_that_it_was_started_like() -> None:
    pooled = Pooled()
    await pooled.open(created_at=CLOCK() - 80_000)
    assert pooled.started[0].session.created_at == CLOCK()
    await pooled.pool.close()


@pytest.mark.parametrize(
    "other",
    [
        {"principal": BOB},
        {"endpoint": "/servers/demo/mcp"},
        {"context": replace(SESSION.context, workspace="another")},
        {"client": replace(SESSION.client, name="another")},
        {"token_hash": "another"},
    ],
)
async def test_a_session_that_differs_in_anything_a_process_learns_gets_none(
    pooled: Pooled, other: dict[str, Any]
) -> None:
    session = await pooled.open(**other)
    assert session.id not in [process.session.id for process in pooled.started]


async def test_a_session_that_was_not_opened_leaves_no_process(pooled: Pooled) -> None:
    with pytest.raises(ValueError, match="refused"), pooled.pool.beginning(a_session(CLOCK)) as session:
        raise ValueError("refused")
    await pooled.settled()
    assert pooled.started[0].is_closed and pooled.given.take(session, "demo") is None


@pytest.mark.parametrize("has_exited", [False, True])
async def test_a_process_that_has_exited_or_was_not_used_by_its_session_ends(pooled: Pooled, has_exited: bool) -> None:
    pooled.started[0].is_good = not has_exited
    session = await pooled.open()
    if has_exited:
        assert pooled.given.take(session, "demo") is None
    else:
        pooled.given.forget(session.id)
        await pooled.settled()
    assert pooled.started[0].is_closed


async def test_there_are_pools_for_so_many_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestart, "MAX_ENVIRONMENTS", 2)
    pooled = Pooled()
    for workspace in ("a", "b", "a", "c"):
        await pooled.open(context=replace(SESSION.context, workspace=workspace))
    closed = [process.session.context.workspace for process in pooled.started if process.is_closed]
    assert closed == ["b"], "the one that was not used for longest"
    await pooled.pool.close()
    assert all(process.is_closed for process in pooled.started)


async def test_a_pool_that_is_not_used_is_closed(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_closed in (False, True):
        pooled.pool.sweep()
        await pooled.settled()
        assert pooled.started[0].is_closed is is_closed
        monkeypatch.setattr(prestart, "UNUSED_S", -1.0)


async def test_a_server_that_cannot_start_leaves_the_pool_empty() -> None:
    pooled = Pooled(prestarted=2)
    for pooled.is_busy, count in ((True, 0), (False, 2)):
        await pooled.open()
        assert len(pooled.started) == count


# -- What a link gets in a sandbox: walls, a folder of its own, and nothing that outlives it


@requirement("box.own-folder")
async def test_two_sessions_and_two_servers_have_no_folder_in_common(folders: SessionFolders) -> None:
    written = []
    for session, name in (("s1", "notes"), ("s2", "notes"), ("s1", "files")):
        server = Enclosed(folders, "standard", name)
        link = await server.link(session, **{SOCKET_VARIABLE: f"/run/{session}"})
        walls = walls_of(link)
        assert walls.reach is not None and walls.reach.sockets[0] == f"/run/{session}"
        written += [Path(grant.path) for grant in walls.grants if "w" in grant.mode and grant.path[:5] != "/dev/"]
        assert link.given.env["HOME"].startswith(str(written[-1])) and link.given.cwd == "~"
        link.close()
        assert server.ended == ["closed"]
    assert len(set(written)) == len(written) == 3
    assert not any(one.is_relative_to(other) for one in written for other in written if one != other)
    folders.forget("s1")
    assert [path.exists() for path in written] == [False, True, False]


@requirement("ops.memory")
async def test_too_little_memory_refuses_a_process_and_releases_what_it_was_given(folders: SessionFolders) -> None:
    server = Enclosed(folders, "standard", limit_mb=1)
    with pytest.raises(Refused, match="it needs more memory"):
        await server.link()
    assert server.ended == ["closed"]
    with pytest.raises(StartRefused, match="it needs more memory") as failed:
        await server.sandboxed.shared({})
    assert failed.value.refused.data["retryAfter"] == 30
    parts: Any = dict.fromkeys(
        ("grants", "assertions", "credentials", "environment", "quotas", "take_prestarted"), SimpleNamespace()
    )
    resources = SessionResources(UpstreamSettings(command="cat"), **parts, sandboxed=server.sandboxed)
    with pytest.raises(UpstreamUnavailable, match="memory is short"):
        await resources.prestart(a_session(CLOCK), cast("Any", None))
    assert not [*server.memory]


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
    link.given.began(1)
    assert server.began == [None], "what is not below it may do its work"
    assert replace(link.given, began=print) == ConnectOptions(env={"A": "session"}, began=print)
    link.close()
    assert server.ended == ["closed"]
    assert walls_of(await server.sandboxed.shared({})), "such a process has the walls of the least trusted session"


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
    link = Process(a_session(CLOCK))
    before, now = (LinkResources(given=ConnectOptions(env={"MADE": made})) for made in ("before", "now"))
    environment = {"A": "b"}  # it says nothing of the trust
    prestarted = PrestartedProcess(before, cast("Any", link), environment, SANDBOXES["direct"], lambda: None)
    parts: Any = {
        "grants": SimpleNamespace(for_child=returning(now)),
        "assertions": None,
        "credentials": None,
        "environment": SimpleNamespace(
            of=returning(environment),
            facts=SimpleNamespace(all_of=lambda *_: {}),
            comparable=dict,
            overriding=lambda _: frozenset(),
        ),
        "quotas": SimpleNamespace(hold_process=returning(lambda: None)),
        "take_prestarted": lambda _: prestarted,
        "sandboxed": SimpleNamespace(
            by_trust=SimpleNamespace(sandbox=SANDBOXES.__getitem__), of_session=returning(now)
        ),
    }
    live: Any = SimpleNamespace(session=a_session(CLOCK, context=replace(SESSION.context, trust=trust)), token=None)
    found = await SessionResources(UpstreamSettings(command="cat"), **parts).of(live, live.session.context, "", "")
    assert (found.given.started is link) is is_taken and found.given.env == {"MADE": "before" if is_taken else "now"}
    assert link.is_closed is not is_taken
