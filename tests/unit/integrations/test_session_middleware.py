"""Sessions for an app: what clients get, and when."""

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from gateway import SessionMiddleware
from gateway.config.configuration_errors import ConfigurationError
from gateway.config.sessions import SessionSettings
from gateway.integrations import app_session_store
from gateway.integrations.app_session import AppSession, SessionNotLoaded
from gateway.integrations.app_session_store import AppSessions
from gateway.integrations.session_middleware import backend_of, ring_of, settings_of
from session_store import (
    ANONYMOUS,
    KeyRing,
    MemoryBackend,
    NoSession,
    Principal,
    SessionGone,
    StoreError,
    current_session,
)
from session_store.app_store import DocumentBackend
from session_store.current_tool_session import current_session_id
from session_store.testing import ALICE, FakeClock
from tests.requirements import requirement
from tests.unit.integrations.apps import KEY, Answer, Client, FailingStore, app_of, count, nothing

GIVEN = {b"set-cookie", b"mcp-gateway-session", b"cache-control"}


async def look(session: AppSession) -> Any:
    return await session.state.get("visits", "nothing")


@requirement("app.middleware", "ctx.scope")
async def test_a_session_is_given_once_and_comes_back_by_cookie_and_by_header() -> None:
    app = app_of(count)
    client = Client(app)
    first = await client.get()
    assert first.body == b"1" and {name for name, _ in first.headers} >= GIVEN
    assert (await Client(app).get()).body == b"1"
    by_header = Client(app, mcp_gateway_session=first.header("mcp-gateway-session"))
    for number, carrying in enumerate((client, by_header), 2):
        answer = await carrying.get()
        assert answer.body == b"%d" % number and {name for name, _ in answer.headers} & GIVEN == set()


@requirement("app.lazy")
async def test_a_known_session_costs_one_question_and_an_untouched_one_none_so_that_an_outage_does_not_matter() -> None:
    store = FailingStore()
    client = Client(app_of(count, store=store))
    await client.get()
    asked = store.asked
    for number in (1, 2, 3):
        await client.get()
        assert store.asked == asked + number
    client.app, store.is_cut_off = app_of(nothing, store=store), True
    assert (await client.get()).status == 200 and store.asked == asked + 3


@requirement("app.middleware", "id.carriers")
async def test_an_unknown_session_is_404_by_header_and_replaced_by_cookie() -> None:
    store = FailingStore()
    app = app_of(count, store=store)
    client, other, forging = Client(app), Client(app), Client(app)
    token = (await client.get()).header("mcp-gateway-session")
    await other.get()
    store.forget_all()
    for bad in (token, "forged", token[:-1] + "A"):
        refused = await Client(app, mcp_gateway_session=bad).get()
        assert refused.status == 404 and b"Session not found" in refused.body
    assert len(store.sessions.records) == 0, "the app does not run"
    forging.cookie = "mcp_session_id=forged"
    for each in (client, other, forging):  # the second is one that this process still remembers
        held = each.cookie
        assert (await each.get()).body == b"1" and each.cookie not in ("", held)


@requirement("app.principal", "id.bound")
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_session_answers_only_the_principal_that_opened_it(is_async: bool) -> None:
    async def later(scope: Any) -> Any:
        return scope.get("user")

    async def whose(session: AppSession) -> str:
        visits = await session.state.increment("visits")
        return f"{visits} {(await session.load()).principal}"

    client = Client(app_of(whose, principal=later if is_async else lambda scope: scope.get("user")))
    token = (await client.get(user="ada")).header("mcp-gateway-session")
    held = client.cookie
    for user, body in (
        ("ada", b"2 app:ada"),
        ("eve", b"1 app:eve"),  # a stolen cookie, or another sign-in
        (Principal(issuer="app", subject="ada"), b"3 app:ada"),
        (None, b"1 anonymous"),
    ):
        client.cookie = held
        assert (await client.get(user=user)).body == body
    stolen = Client(client.app, mcp_gateway_session=token)
    assert (await stolen.get(user="eve")).status == 404 and (await stolen.get(user="ada")).body == b"4 app:ada"
    with pytest.raises(TypeError, match="gave int"):
        await client.get(user=7)


@requirement("app.outage", "rep.store-down")
@pytest.mark.parametrize("status", [0, 500, 200], ids=["raises", "answers 500", "answers itself"])
async def test_with_the_store_gone_the_answer_is_503_where_the_session_is_needed(status: int) -> None:
    async def careful(session: AppSession) -> Any:
        try:
            return await count(session)
        except Exception:
            if not status:
                raise
            return "sorry"

    store = FailingStore()
    await Client(app_of(count, store=store)).get()
    store.is_cut_off = True
    answer = await Client(app_of(careful, store=store, status=status)).get()
    if status == 200:
        assert (answer.status, answer.body) == (200, b"sorry")
    else:
        assert answer.status == 503 and answer.header("retry-after") == "1" and b"not lost" in answer.body
        assert [event["type"] for event in answer.events] == ["http.response.start", "http.response.body"]


@requirement("app.outage")
async def test_an_id_that_cannot_be_stored_is_not_given_away() -> None:
    store = FailingStore()

    async def name(session: AppSession) -> str:
        await session.load()
        store.is_cut_off = True
        return session.id

    answer = await Client(app_of(name, store=store)).get()
    assert answer.status == 503 and b"set-cookie" not in dict(answer.headers)


@requirement("app.cache-control")
async def test_an_answer_with_a_token_is_not_stored_and_others_are_the_apps() -> None:
    said = [(b"cache-control", b"public, max-age=60")]
    client = Client(app_of(count, headers=said))
    assert (await client.get()).header("cache-control") == "public, max-age=60, no-store"
    second = await client.get()
    assert second.header("cache-control") == "public, max-age=60" and "Cookie" in second.header("vary")
    opened = await Client(app_of(look, headers=said)).get()
    assert {name for name, _ in opened.headers} & GIVEN == {b"cache-control"}, "reading opens no session"
    assert (await Client(app_of(nothing, headers=said)).get()).headers == said


@requirement("app.sign-out")
async def test_at_sign_out_the_session_ends_and_the_cookie_goes() -> None:
    store = FailingStore()

    async def leave(session: AppSession) -> str:
        await session.end()
        return str(await look(session))

    client = Client(app_of(count, store=store))
    await client.get()
    held, client.app = client.cookie, app_of(leave, store=store)
    answer = await client.get()
    assert answer.body == b"nothing" and "Max-Age=0" in answer.header("set-cookie") and client.cookie == ""
    client.cookie, client.app = held, app_of(look, store=store)
    assert (await client.get()).body == b"nothing" and len(store.sessions.records) == 0


@requirement("app.websocket")
async def test_a_websocket_gets_its_session_with_the_handshake() -> None:
    client = Client(app_of(count))
    first = await client.connect()
    assert first.events[0]["type"] == "websocket.accept" and first.header("set-cookie")
    assert first.events[1]["text"] == "1"
    second = await client.connect()
    assert second.events[1]["text"] == "2" and second.headers == []
    assert (await client.get()).body == b"3", "the session is the same over HTTP"
    token = first.header("mcp-gateway-session")
    assert (await Client(client.app, mcp_gateway_session=token).connect()).events[1]["text"] == "4"
    elsewhere = Client(client.app, origin="https://evil.example")
    elsewhere.cookie = held = client.cookie
    assert (await elsewhere.connect()).events[1]["text"] == "1" and elsewhere.cookie == held, "of another site"


@requirement("app.websocket")
@pytest.mark.parametrize("can_answer", [True, False], ids=["with a response", "by closing"])
async def test_a_handshake_that_names_no_session_is_refused(can_answer: bool) -> None:
    more: Any = {"extensions": {"websocket.http.response": {}}} if can_answer else {}
    refused = await Client(app_of(count), mcp_gateway_session="forged").connect(**more)
    store = FailingStore()
    store.is_cut_off = True
    later = await Client(app_of(count, store=store)).connect(**more)
    if can_answer:
        assert refused.events[0]["type"] == "websocket.http.response.start"
        assert (refused.status, later.status, later.header("retry-after")) == (404, 503, "1")
    else:
        assert refused.events == [{"type": "websocket.close", "code": 1008}]
        assert later.events == [{"type": "websocket.close", "code": 1013}]


@requirement("app.middleware")
async def test_nothing_of_the_session_is_left_for_the_connections_next_request() -> None:
    sent: list[str] = []

    async def send(event: Any) -> None:
        sent.append(event["type"])
        if event["type"] == "http.response.body":
            with pytest.raises(NoSession):
                current_session()

    app = app_of(nothing)
    await app(Client(app).scope("http"), lambda: None, send)  # type: ignore[arg-type,return-value]  # nothing comes
    assert sent == ["http.response.start", "http.response.body"]
    with pytest.raises(NoSession):
        current_session()


@requirement("app.middleware", "app.outage")
async def test_the_store_is_opened_and_closed_with_the_app_and_opening_it_is_tried_again() -> None:
    class Noting(FailingStore):
        log = ""

        async def open(self) -> None:
            self.log += "open "
            if self.log == "open ":
                raise StoreError("not yet")

        async def close(self) -> None:
            self.log += "close "

    async def lifespan(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    store = Noting()
    app = app_of(count, store=store)
    assert (await Client(app).get()).status == 503
    assert [(await Client(app).get()).status for _ in range(2)] == [200, 200]
    assert store.log == "open open ", "at the first use, where no lifespan comes by"
    app._app = lifespan
    answer = Answer()
    await app({"type": "lifespan"}, lambda: None, answer.send)  # type: ignore[arg-type,return-value]  # nothing comes
    assert store.log == "open open close "
    assert [event["type"] for event in answer.events] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORE", "STORE_FILE", "KEYS", "KEYS_FILE", "SESSION__IDLE_TTL_S"):
        monkeypatch.delenv(f"MCP_GATEWAY_{name}", raising=False)


@requirement("app.settings")
def test_the_environment_gives_what_no_argument_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("IDLE_TTL_S", "60"), ("COOKIE", "false"), ("MAX_SESSIONS", "3")):
        monkeypatch.setenv(f"MCP_GATEWAY_SESSION__{name}", value)
    monkeypatch.setenv("MCP_GATEWAY_STORE", "redis://there:6379/0")
    monkeypatch.setenv("MCP_GATEWAY_PORT", "of a gateway, not of an app")
    settings = settings_of(None, {"idle_ttl_s": None, "max_age_s": 90.0})
    assert settings.store == "redis://there:6379/0" and not settings.session.cookie
    assert (settings.session.idle_ttl_s, settings.session.max_age_s) == (60.0, 90.0)
    settings = settings_of("memory://", {"idle_ttl_s": 5.0})
    assert settings.store == "memory://" and settings.session.idle_ttl_s == 5.0
    assert backend_of(settings).sessions._max_sessions == 3
    monkeypatch.delenv("MCP_GATEWAY_STORE")
    (tmp_path / "url").write_text("redis://:secret@there:6379/0\n")
    monkeypatch.setenv("MCP_GATEWAY_STORE_FILE", str(tmp_path / "url"))
    for given, store in ((None, "redis://:secret@there:6379/0"), ("memory://", "memory://")):
        assert settings_of(given, {}).store == store, "the URL of the store may be in a file"


@requirement("app.settings")
@pytest.mark.parametrize(
    ("arguments", "variable", "words"),
    [
        ({}, "", "needs a store.*MCP_GATEWAY_STORE"),
        ({"store": "redis:///"}, "", "give a host"),
        ({"store": "redis://there"}, "", "needs keys.*MCP_GATEWAY_KEYS"),
        ({"store": "redis://there", "keys": "short"}, "", "keys=….*5 characters"),
        ({"store": "memory://", "idle_ttl_s": 0}, "", "idle_ttl_s=0.*greater than 0"),
        ({"store": "memory://"}, "SESSION__IDLE_TTL_S", "MCP_GATEWAY_SESSION__IDLE_TTL_S.*number"),
        ({"store": "memory://"}, "STOR", "MCP_GATEWAY_STOR: .*did you mean MCP_GATEWAY_STORE"),
    ],
    ids=["no store", "bad store", "no keys", "bad keys", "bad argument", "bad variable", "misspelt variable"],
)
def test_what_cannot_be_used_is_named(
    arguments: dict[str, Any], variable: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv(f"MCP_GATEWAY_{variable}", "soon")
    with pytest.raises(ConfigurationError, match=words):
        SessionMiddleware(None, **arguments)


@requirement("app.settings")
def test_keys_are_the_arguments_or_the_environments_or_the_stores_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: Any = DocumentBackend(None)  # type: ignore[arg-type]  # nothing asks it
    ring = KeyRing([KEY])
    assert ring_of(ring, shared) is ring
    for keys in (KEY, [KEY], (KEY, "l" * 40)):
        assert isinstance(ring_of(keys, shared), KeyRing)
    assert isinstance(ring_of(None, MemoryBackend()), KeyRing)
    with pytest.raises(ConfigurationError, match="needs keys"):
        ring_of(None, shared)
    monkeypatch.setenv("MCP_GATEWAY_KEYS", KEY)
    assert isinstance(ring_of(None, shared), KeyRing)


@requirement("app.settings")
def test_a_variable_that_is_no_setting_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MCP_GATEWAY_WEATHER", "fair")
    SessionMiddleware(None, store="memory://")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "SessionMiddleware: the variable MCP_GATEWAY_WEATHER is ignored: it is not a setting")
    ]


# -- The session of one request: when it is looked up, and when it is opened


@requirement("app.lazy")
async def test_facts_are_there_once_the_session_is_loaded() -> None:
    async def facts(session: AppSession) -> str:
        await session.state.increment("n")  # that they are there does not depend on what this process remembers
        assert session.id == session.known_id, "which every operation checks"
        for name in ("principal", "agent", "context"):
            with pytest.raises(SessionNotLoaded, match=rf"{name}.*await session.load\(\)"):
                getattr(session, name)
        assert "not loaded" in repr(session)
        assert session.known_id and current_session_id() == session.known_id, "a log line may have it"
        assert await session.load() is session
        return f"{session.id} {session.principal} {session.context.trust}"

    store = FailingStore()
    client = Client(app_of(facts, store=store))
    first, second = await client.get(), await client.get()
    assert first.body == second.body and first.body.endswith(b" anonymous direct") and len(store.sessions.records) == 1


@requirement("app.lazy")
@pytest.mark.parametrize("operation", [look, count, lambda session: session.metadata(), lambda session: session.load()])
async def test_the_id_can_be_read_after_any_operation_and_before_none(operation: Any) -> None:
    async def read(session: AppSession) -> Any:
        with pytest.raises(SessionNotLoaded, match=r"id is known after .*any other operation"):
            _ = session.id
        await operation(session)
        return session.id

    client = Client(app_of(read))
    first, second = await client.get(), await client.get()
    assert first.body == second.body and len(first.body) > 20 and first.header("set-cookie")


@requirement("app.settings")
async def test_an_app_whose_store_cannot_be_opened_does_not_start_and_ends() -> None:
    async def no_app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.complete"})
        pytest.fail("it would wait for its end here")

    class Closed(MemoryBackend):
        async def open(self) -> None:
            raise StoreError("in use")

    answer = Answer()
    with pytest.raises(StoreError):
        await SessionMiddleware(no_app, store=Closed(), keys=KEY)({"type": "lifespan"}, None, answer.send)  # type: ignore[arg-type]  # nothing comes
    assert answer.events == [{"type": "lifespan.startup.failed", "message": "SessionMiddleware: in use"}]


@requirement("app.lazy")
async def test_what_reads_gives_nothing_without_a_session_and_what_writes_opens_one() -> None:
    async def read(session: AppSession) -> Any:
        state = session.state
        found = [current_session_id() or await state.get("k"), await state.keys(), dict(await session.metadata())]
        return [*found, await state.delete("k"), await state.compare_and_set("k", 1, 2)]

    async def write(session: AppSession) -> Any:
        await session.annotate({"team": "red"})
        await session.state.set("k", [1])
        return [await session.state.get("k"), await session.state.keys(), dict(await session.metadata())]

    store = FailingStore()
    assert (await Client(app_of(read, store=store)).get()).body == b"[None, [], {}, False, False]"
    assert store.asked == 0
    assert (await Client(app_of(write, store=store)).get()).body == b"[[1], ['k'], {'team': 'red'}]"


@requirement("app.lazy")
async def test_concurrent_writes_of_one_request_open_one_session() -> None:
    async def many(session: AppSession) -> Any:
        return sorted(await asyncio.gather(*(session.state.increment("n") for _ in range(20))))[-1]

    store = FailingStore()
    client = Client(app_of(many, store=store))
    assert [(await client.get()).body for _ in range(2)] == [b"20", b"40"]
    assert len(store.sessions.records) == 1


@requirement("app.lazy")
async def test_after_the_response_has_begun_no_session_is_opened() -> None:
    app = app_of(nothing)
    inner = app._app

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)
        session = scope["mcp.session"]
        assert await session.state.get("k") is None
        with pytest.raises(NoSession, match="its response has begun"):
            await session.state.set("k", 1)
        await session.load()
        with pytest.raises(NoSession):
            _ = session.id

    app._app = late
    assert (await Client(app).get()).status == 200


@requirement("app.lazy")
async def test_a_session_that_ends_during_a_request_is_not_replaced_in_it() -> None:
    """Else one request would read from one session and write to another."""
    store = FailingStore()

    async def torn(session: AppSession) -> Any:
        await session.state.increment("n")
        store.forget_all()
        for use in (session.state.increment("n"), session.state.get("n")):
            with pytest.raises(SessionGone):
                await use
        raise SessionGone("as a handler that does not catch it")

    client = Client(app_of(torn, store=store))
    assert [(await client.get()).status for _ in range(2)] == [404, 404], "known or not"


@requirement("app.lazy", "app.sign-out")
async def test_what_is_written_after_the_end_is_written_to_a_new_session() -> None:
    async def renew(session: AppSession) -> Any:
        await session.state.set("old", True)
        old = (await session.load()).id
        await session.end()
        assert await session.state.keys() == []
        await session.state.set("new", True)
        return old != (await session.load()).id and await session.state.keys()

    client = Client(app_of(renew))
    await client.get()
    held = client.cookie
    assert (await client.get()).body == b"['new']" and client.cookie not in ("", held)


@requirement("app.lazy")
async def test_a_request_leaves_nothing_for_the_garbage_collector() -> None:
    """A session and its scope name each other. At thousands of requests a second, collecting them costs a tenth."""
    held: list[weakref.ref[AppSession]] = []

    async def note(session: AppSession) -> None:
        held.append(weakref.ref(session))
        await session.state.get("k")

    client = Client(app_of(note))
    gc.disable()
    try:
        await client.get()
        assert held[0]() is None
    finally:
        gc.enable()


@requirement("app.lazy")
async def test_a_session_that_is_kept_beyond_its_request_is_not_looked_up_any_more() -> None:
    kept: list[AppSession] = []

    async def keep(session: AppSession) -> None:
        if not kept:
            await session.state.increment("n")
        kept.append(session)

    client = Client(app_of(keep))
    for _ in range(2):
        await client.get()
    assert await kept[0].state.get("n") == 1, "what was looked up works on"
    assert await kept[1].state.get("n") is None
    with pytest.raises(NoSession):
        await kept[1].state.set("n", 2)


# -- What one process remembers of an app's sessions, and when it restarts their idle time


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def backend(clock: FakeClock) -> MemoryBackend:
    return MemoryBackend(clock=clock)


@pytest.fixture
def sessions(backend: MemoryBackend, clock: FakeClock) -> AppSessions:
    return AppSessions(backend, SessionSettings(idle_ttl_s=100, max_age_s=1_000), clock=clock, timer=clock)


@requirement("app.ttl", "life.ttl")
async def test_use_restarts_the_idle_time_once_in_a_while(
    sessions: AppSessions, backend: MemoryBackend, clock: FakeClock
) -> None:
    session = sessions.new(ALICE, "192.0.2.1")
    await sessions.open(session)
    used = []
    for _ in range(40):
        clock.pass_time(10 / 4)
        assert sessions.is_known(session.id, ALICE)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = await backend.sessions.peek(session.id)
        assert found is not None, "used all the time"
        used.append(found.used_at)
    assert len(set(used)) == 21, "every 5 s: five of a hundred"
    clock.pass_time(94)
    assert await backend.sessions.peek(session.id) is not None
    clock.pass_time(6)
    assert await sessions.resume(session.id, ALICE) is None and not sessions.is_known(session.id, ALICE)


@requirement("app.ttl")
async def test_a_session_has_an_age_that_use_does_not_extend(sessions: AppSessions, clock: FakeClock) -> None:
    session = sessions.new(ANONYMOUS, "192.0.2.1")
    await sessions.open(session)
    for _ in range(10):
        assert await sessions.resume(session.id, ANONYMOUS) is not None
        clock.pass_time(99.9)
    clock.pass_time(1)
    assert await sessions.resume(session.id, ANONYMOUS) is None


@requirement("app.middleware", "wall.memory")
async def test_what_is_remembered_is_bounded(sessions: AppSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_session_store, "_KNOWN_HELD", 10)
    opened = [sessions.new(ALICE, "") for _ in range(12)]
    for session in opened:
        await sessions.open(session)
    assert [sessions.is_known(session.id, ALICE) for session in opened] == [False] * 2 + [True] * 10


@requirement("app.middleware")
async def test_expired_sessions_leave_the_store_when_others_open(
    sessions: AppSessions, backend: MemoryBackend, clock: FakeClock
) -> None:
    await sessions.open(sessions.new(ALICE, ""))
    clock.pass_time(101)
    await sessions.open(sessions.new(ALICE, ""))
    await sessions.close()
    assert len(backend.sessions.records) == 1
