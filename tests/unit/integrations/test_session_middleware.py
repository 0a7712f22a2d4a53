"""Sessions for an app: what clients get, and when."""

from pathlib import Path
from typing import Any

import pytest

from gateway import SessionMiddleware
from gateway.config.load import ConfigurationError
from gateway.integrations.app_session import AppSession
from gateway.integrations.session_middleware import backend_of, ring_of, settings_of
from session_store import KeyRing, MemoryBackend, NoSession, Principal, current_session
from session_store.small_store import SmallBackend
from tests.requirements import requirement
from tests.unit.integrations.apps import Client, FailingStore, app_of, count, nothing

pytestmark = pytest.mark.anyio

GIVEN = {b"set-cookie", b"mcp-gateway-session", b"cache-control"}


async def look(session: AppSession) -> Any:
    return await session.state.get("visits", "nothing")


@requirement("app.middleware", "ctx.scope")
async def test_a_session_is_given_once_and_comes_back() -> None:
    app = app_of(count)
    client, other = Client(app), Client(app)
    first = await client.get()
    assert first.body == b"1" and {name for name, _ in first.headers} >= GIVEN
    second = await client.get()
    assert second.body == b"2" and {name for name, _ in second.headers} & GIVEN == set()
    assert (await other.get()).body == b"1"
    by_header = Client(app, mcp_gateway_session=first.header("mcp-gateway-session"))
    answer = await by_header.get()
    assert answer.body == b"3" and {name for name, _ in answer.headers} & GIVEN == set()


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
    ran: list[bool] = []

    async def noted(session: AppSession) -> Any:
        ran.append(True)
        return await count(session)

    app = app_of(noted, store=store)
    client, other = Client(app), Client(app)
    token = (await client.get()).header("mcp-gateway-session")
    await other.get()
    for session in list(store.sessions.records.scan()):
        store.sessions.records.remove(session.id)
    for bad in (token, "forged", token[:-1] + "A"):
        refused = await Client(app, mcp_gateway_session=bad).get()
        assert refused.status == 404 and b"Session not found" in refused.body
    assert ran == [True] * 2, "the app does not run"
    forging = Client(app)
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
    assert (await client.get(user="ada")).body == b"2 app:ada"
    held = client.cookie
    assert (await client.get(user="eve")).body == b"1 app:eve", "a stolen cookie, or another sign-in"
    client.cookie = held
    assert (await client.get(user=Principal(issuer="app", subject="ada"))).body == b"3 app:ada"
    client.cookie = held
    assert (await client.get()).body == b"1 anonymous"
    stolen = Client(client.app, mcp_gateway_session=token)
    assert (await stolen.get(user="eve")).status == 404 and (await stolen.get(user="ada")).body == b"4 app:ada"


async def test_a_principal_that_is_none_is_a_mistake_of_the_app() -> None:
    with pytest.raises(TypeError, match="gave int"):
        await Client(app_of(count, principal=lambda scope: 7)).get()


@requirement("app.outage", "rep.store-down")
@pytest.mark.parametrize("framework", ["raises", "answers 500", "answers itself"])
async def test_with_the_store_gone_the_answer_is_503_where_the_session_is_needed(framework: str) -> None:
    async def careful(session: AppSession) -> Any:
        try:
            return await count(session)
        except Exception:
            if framework == "raises":
                raise
            return "sorry"

    store = FailingStore()
    client = Client(app_of(careful, store=store, status=500 if framework == "answers 500" else 200))
    await Client(app_of(count, store=store)).get()
    store.is_cut_off = True
    answer = await client.get()
    if framework == "answers itself":
        assert (answer.status, answer.body) == (200, b"sorry")
        return
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
    for handler in (nothing, look):
        opened = await Client(app_of(handler, headers=said)).get()
        assert {name for name, _ in opened.headers} & GIVEN == {b"cache-control"}, "reading opens no session"
    assert (await Client(app_of(nothing, headers=said)).get()).headers == said


@requirement("app.sign-out")
async def test_at_sign_out_the_session_ends_and_the_cookie_goes() -> None:
    store = FailingStore()

    async def leave(session: AppSession) -> str:
        await session.end()
        return await look(session)  # type: ignore[no-any-return]

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

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        assert current_session() is scope["mcp.session"]

    async def send(event: Any) -> None:
        sent.append(event["type"])
        if event["type"] == "http.response.body":
            with pytest.raises(NoSession):
                current_session()

    middleware = app_of(nothing)
    middleware._app = app
    await middleware(Client(middleware).scope("http"), lambda: None, send)  # type: ignore[arg-type,return-value]
    assert sent == ["http.response.start", "http.response.body"]
    with pytest.raises(NoSession):
        current_session()


@requirement("app.middleware")
async def test_the_store_is_opened_and_closed_with_the_app() -> None:
    class Noting(FailingStore):
        log = ""

        async def open(self) -> None:
            self.log += "open "

        async def close(self) -> None:
            self.log += "close "

    async def lifespan(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    store = Noting()
    app = app_of(count, store=store)
    await Client(app).get()
    assert store.log == "open ", "at the first use, where no lifespan comes by"
    app._app = lifespan
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event["type"])

    await app({"type": "lifespan"}, lambda: None, send)  # type: ignore[arg-type,return-value]
    assert store.log == "open close " and sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


KEY = "k" * 40


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORE", "STORE_FILE", "KEYS", "KEYS_FILE", "SESSION__IDLE_TTL_S"):
        monkeypatch.delenv(f"MCP_GATEWAY_{name}", raising=False)


@requirement("app.settings")
def test_the_environment_gives_what_no_argument_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_GATEWAY_STORE", "redis://there:6379/0")
    monkeypatch.setenv("MCP_GATEWAY_SESSION__IDLE_TTL_S", "60")
    monkeypatch.setenv("MCP_GATEWAY_SESSION__COOKIE", "false")
    monkeypatch.setenv("MCP_GATEWAY_PORT", "of a gateway, not of an app")
    settings = settings_of(None, {"idle_ttl_s": None, "max_age_s": 90.0})
    assert settings.store == "redis://there:6379/0" and not settings.session.cookie
    assert (settings.session.idle_ttl_s, settings.session.max_age_s) == (60.0, 90.0)
    settings = settings_of("memory://", {"idle_ttl_s": 5.0})
    assert settings.store == "memory://" and settings.session.idle_ttl_s == 5.0


@requirement("app.settings")
def test_the_stores_url_may_be_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("redis://:secret@there:6379/0\n")
    monkeypatch.setenv("MCP_GATEWAY_STORE_FILE", str(file))
    assert settings_of(None, {}).store == "redis://:secret@there:6379/0"
    assert settings_of("memory://", {}).store == "memory://"


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
    shared: Any = SmallBackend(None)  # type: ignore[arg-type]  # nothing asks it
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
def test_the_memory_store_keeps_as_many_sessions_as_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_GATEWAY_SESSION__MAX_SESSIONS", "3")
    backend = backend_of(settings_of("memory://", {}))
    assert backend.sessions._max_sessions == 3


@requirement("app.settings")
def test_a_variable_that_is_no_setting_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MCP_GATEWAY_WEATHER", "fair")
    SessionMiddleware(None, store="memory://")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "SessionMiddleware: the variable MCP_GATEWAY_WEATHER is ignored: it is no setting")
    ]
