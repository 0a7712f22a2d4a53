"""GOSESSION: a session follows its cookie, tools find it in their scope, and each has state of its own."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway import SessionMiddleware
from tests.designs.agents import Open, StdioAgent, example, failed_text, opener, refused_text, serving, text_of
from tests.requirements import requirement
from tests.support.gateway_process import TOOL, RunningGateway, server
from tests.support.mcp_clients import ACCEPT, Legacy, Modern, error_of, messages, tool_text

COOKIE = "mcp_session_id"
INSIDE = {
    "mcpServers": {
        "object": {"in_process": "tests.support.session_tool:server"},
        "child": server(TOOL, env={"PYTHONPATH": "."}),
    },
    "gateway": {"sse": True, "session": {"cookie": True}},
}


@pytest.fixture(scope="module")
def basket() -> Iterator[RunningGateway]:
    with serving(example("cookies")) as running:
        yield running


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gosession") / "mcp.json"
    path.write_text(json.dumps(INSIDE), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def inside(config: Path) -> Iterator[RunningGateway]:
    with serving(config) as running:
        yield running


@pytest.fixture
def start(inside: RunningGateway, http: httpx.Client) -> Open:
    return opener(inside, http)


@requirement("id.carriers", "id.cookie-flags", "ctx.isolated")
def test_the_cookie_finds_the_session_and_no_other(basket: RunningGateway) -> None:
    with httpx.Client(timeout=20) as one, httpx.Client(timeout=20) as two:
        for count in range(1, 4):
            said = [tool_text(Modern(basket.url, http).tool("add", {"item": "apple"})) for http in (one, two)]
            assert said == [", ".join(["apple"] * count)] * 2
        assert one.cookies[COOKIE] and one.cookies[COOKIE] != two.cookies[COOKIE]
        forged = {"Cookie": f"{COOKIE}={one.cookies[COOKIE][:-4]}AAAA"}
    with httpx.Client(timeout=20) as stranger:
        answer = Modern(basket.url, stranger, headers=forged).tool("add", {"item": "pear"})
        assert tool_text(answer) == "pear", "a forged cookie is ignored, and replaced"
        flags = answer.headers["set-cookie"].lower()
        assert flags.startswith(f"{COOKIE}=") and "httponly" in flags and "samesite=strict" in flags


@requirement("ctx.stdio-front", "ctx.isolated")
def test_on_stdio_each_initialize_is_a_session() -> None:
    with StdioAgent(example("cookies")) as agent:
        for _ in range(2):
            agent.open()
            assert [text_of(agent.tool("add", {"item": "apple"})) for _ in range(2)] == ["apple", "apple, apple"]


@requirement("ctx.scope", "ctx.state", "ctx.isolated")
def test_tools_find_the_session_of_their_call(start: Open) -> None:
    agents = [start(meta={"orbit": {"workspace": f"w{n}"}}) for n in range(2)]
    for visit in (1, 2):
        for n, agent in enumerate(agents):
            for place, kind in enumerate(("object", "child")):
                seen = json.loads(text_of(agent.tool(f"{kind}__visit", {"name": f"{n}"})))
                count = 2 * visit - 1 + place
                assert seen == {"workspace": f"w{n}", "same": True, "visits": count, "names": [f"{n}"] * count}


@requirement("ctx.limits")
def test_state_that_is_too_large_is_a_clear_error(start: Open) -> None:
    agent = start()
    assert "10240" in text_of(agent.tool("object__annotate", {"name": "a", "value": "x" * 11_000}))
    assert text_of(agent.tool("object__bump", {"key": "a"})) == "1", "the session lives on"


@requirement("spec.sse")
def test_the_old_transport_is_served_where_it_is_switched_on(inside: RunningGateway, basket: RunningGateway) -> None:
    with httpx.Client(timeout=20) as http:
        assert http.get(f"{basket.base}/sse", headers=ACCEPT).status_code == 404
        with http.stream("GET", f"{inside.base}/sse", headers={"Accept": "text/event-stream"}) as stream:
            assert stream.status_code == 200
            lines = stream.iter_lines()
            assert next(lines) == "event: endpoint" and next(lines).startswith("data: /")


@requirement("pol.errors", "id.bound")
def test_a_session_that_is_unknown_is_told_in_one_way(inside: RunningGateway, http: httpx.Client) -> None:
    ended = Legacy(inside.url, http).open()
    assert ended.delete().status_code in (200, 204)
    forged = Legacy(inside.url, http).open()
    forged.session = "no-such-token"
    answers = [client.tool("object__bump", {"key": "a"}) for client in (ended, forged)]
    assert [answer.status_code for answer in answers] == [404, 404]
    errors = [error_of(answer) for answer in answers]
    assert errors[0]["code"] == errors[1]["code"] and errors[0]["message"] == errors[1]["message"]
    agent = Legacy(inside.url, http).open()
    assert "Unknown tool" in failed_text(messages(agent.tool("object__nothing"))[-1]), "the words of the SDK's server"
    assert "Unknown tool" in refused_text(messages(agent.tool("no-such-server__nothing"))[-1])


class DictSessions:
    """A store that an app brings: the four methods of the design, over a dictionary."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}

    async def get(self, session_id: str) -> bytes | None:
        return self.documents.get(session_id)

    async def create(self, session_id: str, document: bytes, ttl_s: float) -> None:
        self.documents[session_id] = document

    async def save(self, session_id: str, document: bytes, ttl_s: float, replaces: bytes) -> bool:
        if self.documents.get(session_id) != replaces:
            return False
        self.documents[session_id] = document
        return True

    async def delete(self, session_id: str) -> None:
        self.documents.pop(session_id, None)


async def visits(request: Request) -> JSONResponse:
    session = request.scope["mcp.session"]
    if request.method == "DELETE":
        await session.end()
        return JSONResponse({})
    return JSONResponse({"visits": await session.state.increment("visits")})


@requirement("app.middleware", "app.small-store", "ctx.scope", "ctx.isolated", "id.carriers")
@pytest.mark.anyio
async def test_any_app_has_sessions_in_a_store_of_its_own() -> None:
    store = DictSessions()
    routes = [Route("/visits", visits, methods=["GET", "DELETE"])]
    # Two processes of the app: they have the store and the keys in common.
    apps = [SessionMiddleware(Starlette(routes=routes), store=store, keys="k" * 40) for _ in range(2)]
    clients = [
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://app.example")
        for app in (*apps, apps[0])
    ]
    async with clients[0] as one, clients[1] as same, clients[2] as other:
        assert [(await one.get("/visits")).json()["visits"] for _ in range(2)] == [1, 2]
        same.cookies.update(one.cookies)
        assert (await same.get("/visits")).json()["visits"] == 3
        assert (await other.get("/visits")).json()["visits"] == 1
        assert len(store.documents) == 2 and all(COOKIE in name for client in (one, other) for name in client.cookies)
        await one.delete("/visits")
        assert len(store.documents) == 1 and (await same.get("/visits")).json()["visits"] == 1
