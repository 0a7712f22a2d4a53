"""`SessionMiddleware` on a real Redis: outages, keys that go by themselves, and a gateway beside the app."""

import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from gateway import AppSession, SessionMiddleware
from session_store import current_session
from tests.requirements import requirement
from tests.support import session_tool
from tests.support.document_blocks import blocks
from tests.support.gateway_process import TOOL, running_gateway, server
from tests.support.mcp_clients import Modern, tool_text
from tests.support.redis_server import RunningRedis, running_redis

KEYS = "k" * 40


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Counts at /visit, tells the count at /visits, and leaves the session alone elsewhere."""
    session: AppSession = scope["mcp.session"]
    body: Any = None
    if scope["path"] == "/visit":
        body = await session.state.increment("visits")
    elif scope["path"] == "/visits":
        body = await session.state.get("visits", 0)
    elif scope["path"].startswith("/tool/"):
        body = json.loads(await session_tool.visit(scope["path"].removeprefix("/tool/")))
    elif scope["path"] == "/leave":
        await current_session().end()  # type: ignore[attr-defined]  # that of an app
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


@asynccontextmanager
async def client_of(*processes: SessionMiddleware) -> AsyncIterator[list[httpx.AsyncClient]]:
    """A client for each process; they share their cookies."""
    clients = [httpx.AsyncClient(transport=httpx.ASGITransport(each), base_url="http://app") for each in processes]
    for client in clients:
        client._cookies = clients[0]._cookies
    try:
        yield clients
    finally:
        for each in processes:
            await each._sessions.close()


@requirement("app.loops")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_loop_of_a_process_has_connections_of_its_own(redis_server: RunningRedis) -> None:
    _visit_in_many_loops(redis_server.url)
    gc.collect()  # the connections of loops that have ended: their warnings belong to this test


def _visit_in_many_loops(url: str) -> None:
    sessions = SessionMiddleware(Starlette(routes=[Mount("/", app)]), store=url, keys=KEYS)
    without_lifespan = TestClient(sessions)  # runs each request in a loop of its own
    assert [without_lifespan.get("/visit").json() for _ in range(3)] == [1, 2, 3]
    with TestClient(sessions) as one, TestClient(sessions) as other:
        assert [client.get("/visit").json() for client in (one, other, one, other)] == [1, 1, 2, 2]
    assert without_lifespan.get("/visit").json() == 4


@requirement("app.small-store")
def test_the_store_of_the_document_keeps_sessions_for_every_loop_and_process(tmp_path: Path) -> None:
    [block] = [one for one in blocks("python") if "class SqlSessions" in one.text]
    names: dict[str, Any] = {}
    exec(block.text, names)
    stores = [names["SqlSessions"](str(tmp_path / "sessions.db")) for _ in range(2)]
    with closing(stores[0].db), closing(stores[1].db):
        one, other = (TestClient(SessionMiddleware(app, store=store, keys=KEYS)) for store in stores)
        assert [one.get("/visit").json() for _ in range(2)] == [1, 2], "each request has a thread of its own"
        other.cookies = one.cookies
        assert [client.get("/visit").json() for client in (other, one)] == [3, 4]
        other.get("/leave")
        assert one.get("/visits").json() == 0


@requirement("app.outage", "rep.store-down")
async def test_a_client_is_not_told_to_repeat_what_the_store_may_execute_late() -> None:
    with running_redis() as redis:
        async with client_of(SessionMiddleware(app, store=redis.url, keys=KEYS)) as [client]:
            assert (await client.get("/visit")).json() == 1
            redis.freeze()
            unknown = await client.get("/visit")  # its command waits at the server
            assert unknown.status_code == 504 and "retry-after" not in unknown.headers
            assert "whether the request took effect is unknown" in unknown.json()["error"]
            refused = await client.get("/visit")  # the server accepts no command on a new connection
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            redis.thaw()
            assert (await client.get("/visits")).json() == 2, "the first of the two"
            redis.freeze()
            refused = await client.get("/visits")
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1", "a read can be repeated"
            redis.thaw()
            assert (await client.get("/visit")).json() == 3


@requirement("app.middleware", "app.sign-out")
async def test_what_one_process_writes_or_ends_every_process_sees(redis_server: RunningRedis) -> None:
    made = [SessionMiddleware(app, store=redis_server.url, keys=KEYS) for _ in range(2)]
    async with client_of(*made) as [one, other]:
        for visits in range(1, 10, 2):
            assert (await one.get("/visit")).json() == visits
            assert (await other.get("/visits")).json() == visits
            assert (await other.get("/visit")).json() == visits + 1
        held = dict(one.cookies)
        token = {"MCP-Gateway-Session": await token_of(made[0])}
        assert (await other.get("/visits", headers=token)).json() == 1
        assert (await one.get("/leave", headers=token)).status_code == 200
        assert (await other.get("/visits", headers=token)).status_code == 404, "ended for all"
        await one.get("/leave")
        assert not dict(one.cookies)
        other.cookies.update(held)
        assert (await other.get("/visits")).json() == 0, "its value is not read either"
        assert (await other.get("/visit")).json() == 1


async def token_of(process: SessionMiddleware) -> str:
    """The token of a new session."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(process), base_url="http://app") as client:
        return str((await client.get("/visit")).headers["mcp-gateway-session"])


@requirement("app.with-gateway", "ctx.state")
async def test_an_app_and_a_gateway_share_the_sessions_of_a_client(
    redis_server: RunningRedis, http: httpx.Client
) -> None:
    options = {"store": redis_server.url}
    with running_gateway({"child": server(TOOL)}, options=options, env={"MCP_GATEWAY_KEYS": KEYS}) as gateway:
        made = SessionMiddleware(app, store=redis_server.url, keys=KEYS, lazy=False)
        async with client_of(made) as [client]:
            first = Modern(gateway.url, http).tool("visit", {"name": "by the tool"})
            header = {"MCP-Gateway-Session": first.headers["mcp-gateway-session"]}
            seen = (await client.get("/tool/by-the-app", headers=header)).json()
            assert seen["names"] == ["by the tool", "by-the-app"] and seen["visits"] == 2
            again = json.loads(tool_text(Modern(gateway.url, http, headers=header).tool("visit", {"name": "again"})))
            assert again["names"] == ["by the tool", "by-the-app", "again"]
            # The other way round: the app has opened the session.
            header = {"MCP-Gateway-Session": (await client.get("/tool/in-the-app")).headers["mcp-gateway-session"]}
            tool = json.loads(tool_text(Modern(gateway.url, http, headers=header).tool("visit", {"name": "tool"})))
            assert tool["names"] == ["in-the-app", "tool"]
