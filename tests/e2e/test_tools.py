"""The same tool in the gateway's process, in a mounted app and in a stdio child: it sees the same session."""

import contextlib
import json
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from starlette.testclient import TestClient

from gateway.config.settings import ConfigurationError, Settings
from gateway.integrations.mounted_gateway_middleware import GatewaySessionMiddleware
from gateway.serving.app import Gateway, create_app
from session_store.current_tool_session import current_session
from tests.requirements import requirement
from tests.support import mcp_clients, session_tool
from tests.support.asgi import served
from tests.support.concurrent_clients import AsyncModern, run_concurrently
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import TOOL, server
from tests.support.in_process_gateway import RING, InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, error_of, failed_text, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.stdio_client import Typed

OBJECT = {"in_process": "tests.support.session_tool:server"}
TOO_LARGE = "the value of 'a' is 70002 bytes of JSON, more than 65536"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SESSIONS = 20
PROCESSES = 3
"""Sessions whose tool is a process of its own. Each of them takes a second of processor time to start."""


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """An ASGI app under uvicorn, as somebody else's program would serve it; gives its base URL."""
    with served(app, lifespan="on") as url:
        yield url.removesuffix("/mcp")


@pytest.fixture(scope="module")
def tools(redis_server: RunningRedis) -> Iterator[InProcessGateway]:
    """The tool as a stdio child, and as an object in the gateway's process."""
    metadata = {"team": "t-{principal}", "client": "{agent}", "owner": "Bearer abcdefghijklmnop"}
    options = {"store": redis_server.url, "session": {"metadata": metadata}}
    with in_process_gateway({"child": server(TOOL), "object": OBJECT}, options=options, ring=RING) as gateway:
        yield gateway


def expected(n: int, visits: int) -> Any:
    return {"workspace": f"w{n}", "same": True, "visits": visits, "names": [f"{n}.{v}" for v in range(visits)]}


@requirement("ctx.state", "ctx.isolated", "ctx.scope")
@pytest.mark.parametrize(("kinds", "sessions"), [(["object"], SESSIONS), (["child", "object"], PROCESSES)])
def test_sessions_at_once_each_see_their_own(tools: InProcessGateway, kinds: list[str], sessions: int) -> None:
    """A child and an object of one session share its state."""
    urls = [f"{tools.base}/servers/{kind}/mcp" for kind in kinds * 4]

    async def visiting(http: httpx.AsyncClient, n: int) -> list[Any]:
        client = AsyncModern(http, workspace=f"w{n}")
        visits = [{"name": f"{n}.{v}", "pause_s": 0.01} for v in range(4)]
        return [json.loads(await client.tool(url, "visit", visit)) for url, visit in zip(urls, visits, strict=False)]

    for n, answers in enumerate(run_concurrently(visiting, sessions)):
        assert answers == [expected(n, visits) for visits in range(1, 5)]


@requirement("ctx.metadata")
def test_metadata_comes_from_rules_and_from_tools_in_the_process_only(
    tools: InProcessGateway, http: httpx.Client
) -> None:
    client = Legacy(f"{tools.base}/mcp", http).open()
    secret = "Bearer abcdefghijklmnop"
    written = json.loads(tool_text(client.tool("object__annotate", {"name": "note", "value": f"see {secret}"})))
    rules = {"client": mcp_clients.client_name, "team": "t-anonymous", "owner": "[redacted]"}
    assert written == {**rules, "note": "see [redacted]"}
    assert tool_text(client.tool("child__annotate", {"name": "a", "value": "b"})).startswith("refused: ")
    too_large = client.tool("object__annotate", {"name": "a", "value": "x" * 11_000})
    assert "10240" in tool_text(too_large)


@requirement("ctx.tool-session")
def test_a_tool_learns_the_times_the_credential_and_the_call_of_its_session(http: httpx.Client) -> None:
    servers = {"object": OBJECT, "child": server(TOOL, env={"PYTHONPATH": "."})}
    options = {"api_keys": {"alice": sha256("key")}, "policy": {"rules": [{"idle_ttl_s": 1_234}]}}
    with in_process_gateway(servers, options=options) as gateway:
        before = time.time()
        client = Legacy(gateway.url, http, headers=bearer("key")).open()
        correlations = []
        traced = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        for name, meta in (("object", traced), ("object", traced), ("child", {}), ("object", {})):
            created, active, idle_ttl_s, max_age_s, token_hash, correlation = json.loads(
                tool_text(client.tool(f"{name}__times", meta=meta))
            )
            assert before - 1 <= created <= active <= time.time() + 1
            assert (idle_ttl_s, max_age_s) == (1_234, 86_400)
            assert token_hash == sha256("key")[:16]
            assert len(correlation) == 32
            correlations.append(correlation)
        assert correlations[:2] == [TRACE] * 2, "calls of one trace of the client share its id"
        assert len(set(correlations)) == 3, "each other call has its own, and none stays"


@requirement("ctx.limits")
def test_what_a_tool_cannot_store_its_caller_reads_in_the_words_of_the_limit(http: httpx.Client) -> None:
    servers = {
        "object": {"in_process": "tests.support.sdk_servers:filling"},
        "low": {"in_process": "tests.support.sdk_servers:lowlevel"},
        "child": server((sys.executable, "-m", "tests.support.sdk_servers"), env={"PYTHONPATH": "."}),
    }
    with in_process_gateway(servers) as gateway:
        client = Legacy(gateway.url, http).open()
        for kind in ("object", "child"):
            large = client.tool(f"{kind}__fill", {"key": "a", "size": 70_000})
            assert failed_text(large) == f"Error executing tool fill: {TOO_LARGE}"
            assert tool_text(client.tool(f"{kind}__fill", {"key": f"{kind}0", "size": 10})) == "stored", "it lives on"
            assert failed_text(client.tool(f"{kind}__fail")) == "Error executing tool fail", "others stay hidden"
        read = error_of(client.call("resources/read", {"uri": "filling://too-large"}))
        assert "70002 bytes of JSON, more than 65536" in read["message"]
        low = error_of(client.tool("low__fill", {"size": 70_000}))
        assert low["message"] == TOO_LARGE.replace("'a'", "'low'")
        modern = Modern(gateway.url, http).tool("object__fill", {"key": "a", "size": 70_000})
        assert failed_text(modern) == f"Error executing tool fill: {TOO_LARGE}"


@requirement("ctx.isolated", "ctx.scope")
def test_in_a_mounted_fastapi_app_sessions_at_once_see_their_own() -> None:
    settings = Settings.model_validate({"gateway": {"host": "127.0.0.1"}})
    gateway = Gateway(settings, servers={"object": session_tool.server})
    api = FastAPI(lifespan=gateway.lifespan)
    api.get("/visit/{name}")(session_tool.visit)
    api.mount("/gateway", create_app(settings, gateway=gateway))
    api.add_middleware(GatewaySessionMiddleware, gateway=gateway)
    with serving(api) as base:

        async def visiting(http: httpx.AsyncClient, n: int) -> list[Any]:
            client = AsyncModern(http, workspace=f"w{n}")
            answers = [json.loads(await client.tool(f"{base}/gateway/mcp", "visit", {"name": f"{n}.0"}))]
            for visit in range(1, 4):
                headers = {"MCP-Gateway-Session": client.token}
                response = await http.get(f"{base}/visit/{n}.{visit}?pause_s=0.01", headers=headers)
                answers.append(json.loads(response.json()))
            return answers

        for n, answers in enumerate(run_concurrently(visiting, SESSIONS)):
            assert answers == [expected(n, visits) for visits in range(1, 5)]


@requirement("ctx.scope", "id.carriers")
def test_the_middleware_opens_a_session_and_the_cookie_brings_it_back() -> None:
    gateway = Gateway(Settings())
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["mcp.session"].id, current_session().id))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"cache-control", b"public")]})
        await send({"type": "http.response.body", "body": b"ok"})

    wrapped = GatewaySessionMiddleware(app, gateway)
    with httpx.Client() as http, serving(_with_lifespan(wrapped, gateway)) as base:
        first, second = http.get(base), http.get(base)
        assert "set-cookie" in first.headers and "set-cookie" not in second.headers
        assert first.headers.get_list("cache-control") == ["no-store"]
        assert len({session_id for pair in seen for session_id in pair}) == 1
        assert first.headers["mcp-gateway-session"] not in str(seen), "what leaves is a token, never the id"
        refused = http.get(base, headers={"MCP-Gateway-Session": "forged"})
        assert refused.status_code == 404 and "error" in refused.json()
        cross_site = http.get(base, headers={"Sec-Fetch-Site": "cross-site"})
        assert cross_site.headers["mcp-gateway-session"] != first.headers["mcp-gateway-session"], "no cookie counts"
        assert "set-cookie" not in cross_site.headers, "the user's own session stays"
    assert len(seen) == 3


def _with_lifespan(app: Any, gateway: Gateway) -> Any:
    outer = FastAPI(lifespan=gateway.lifespan)
    outer.mount("/", app)
    return outer


def test_without_its_lifespan_a_mounted_gateway_says_what_to_do() -> None:
    settings = Settings()
    outer = FastAPI()
    outer.mount("/", create_app(settings))
    with pytest.raises(RuntimeError, match=r"lifespan=gateway\.lifespan"):
        TestClient(outer).post("/mcp")


def test_objects_that_cannot_be_served_are_left_out_with_the_reason() -> None:
    for path, what in (
        ("json:nothing", "AttributeError"),
        ("no_such_module:x", "ModuleNotFound"),
        ("json:dumps", "not a server object"),
    ):
        settings = Settings.model_validate({"mcpServers": {"a": {"in_process": path}}})
        assert re.match(f"mcpServers.a.in_process.*{what}", Gateway(settings).unavailable["a"])


@requirement("app.embedding")
def test_what_a_program_gives_that_a_gateway_cannot_use_is_named() -> None:
    fast = type("FastMCP", (), {"__module__": "fastmcp.server.server"})()
    with pytest.raises(ConfigurationError, match=r"servers\['notes'\]: FastMCP of the package fastmcp .*fastmcp.*run"):
        Gateway(Settings(), servers={"notes": fast})
    four: Any = type("SqlSessions", (), {})()
    with pytest.raises(ConfigurationError, match=r"store=SqlSessions: .*backend_for.*SessionMiddleware only"):
        create_app(Settings(), store=four)


@requirement("app.embedding")
def test_settings_read_variables_when_they_are_loaded_and_a_gateway_names_those_that_are_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MCP_GATEWAY_LOG_LEVEL", "error")
    monkeypatch.setenv("MCP_GATEWAY_SESSION__IDLE_TTL_S", "77")
    loaded = Settings.load().gateway
    assert (loaded.log_level, loaded.session.idle_ttl_s) == ("error", 77)
    Gateway(Settings.load())
    assert "not read" not in caplog.text
    Gateway(Settings())
    assert "MCP_GATEWAY_LOG_LEVEL, MCP_GATEWAY_SESSION__IDLE_TTL_S: not read" in caplog.text
    assert Settings().gateway.session.idle_ttl_s != 77


@requirement("ctx.scope")
def test_a_tool_in_this_process_finds_the_session_in_the_scope_too(http: httpx.Client) -> None:
    scoped = MCPServer("scoped")

    @scoped.tool()
    async def same(ctx: Context) -> str:
        request: Any = ctx.request_context.request
        return str(request.scope["mcp.session"].id == current_session().id)

    gateway = Gateway(Settings(), servers={"scoped": scoped})
    with serving(create_app(Settings(), gateway=gateway)) as base:
        assert tool_text(Modern(f"{base}/mcp", http).tool("same")) == "True"
        assert tool_text(Legacy(f"{base}/mcp", http).open().tool("same")) == "True"


@requirement("app.embedding")
def test_a_program_serves_its_objects_on_stdio() -> None:
    program = (
        "from gateway import Settings, serve_stdio; from tests.support.session_tool import server; "
        "serve_stdio(Settings(), servers={'object': server})"
    )
    client = Typed(argv=[sys.executable, "-c", program])
    client.initialize()
    assert "visit" in json.dumps(client.ask("tools/list"))
    assert client.end() == 0, client.log()
