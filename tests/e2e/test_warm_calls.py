"""A call of a session at hand is decided and sent without a coroutine, with everything configured that a call meets."""

import hashlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.config.settings import Settings
from gateway.relay.pipeline import Pipeline
from gateway.serving.app import create_app
from gateway.sessions import cached_record
from tests.requirements import requirement
from tests.support.mcp_clients import ACCEPT, CURL, modern_body, modern_headers
from transports.inbound_port import Answer, Request
from transports.soon import Soon, is_there

pytestmark = pytest.mark.anyio

KEY = {"Authorization": "Bearer key"}
TRACED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
DEMO: dict[str, Any] = {
    "command": sys.executable,
    "args": ["-m", "gateway.demo_server"],
    "permissions": ["use"],
    "tools": {"c*": {"permissions": ["write"], "blocked": [r"drop\s+table"], "slow_s": 5, "operation": "write"}},
}
SUPPORT = Path(__file__).parents[1] / "support"
TELLING = {  # of the modern era, and notifies of changes
    "command": sys.executable,
    "args": [str(SUPPORT / "probe_server.py"), "modern-only", "notifies"],
    "permissions": ["use"],
}


def of_one_era(era: str) -> dict[str, Any]:
    return DEMO | {"args": [str(SUPPORT / "single_era_server.py"), era, sys.executable, *DEMO["args"]]}


EVERYTHING = {
    "api_keys": {"ada": hashlib.sha256(b"key").hexdigest()},
    "tracing": True,
    "result_meta": True,
    "audit": {"calls": True},
    "context": {"fields": {"tier": {"value": "gold", "to": ["meta", "log", "audit"]}}},
    "policy": {
        "rules": [
            {"principals": ["nobody"], "trust": "sandboxed"},
            {"principals": ["api-key:*"], "workspace": "red", "permissions": ["use", "write"]},
        ],
        "workspaces": {"blue-*": {}, "red": {"servers": ["*"], "tools": ["*__c*", "*__state"]}},
        "session_rate": {"per_s": 1_000, "burst": 1_000},
        "principal_rate": {"per_s": 1_000, "burst": 1_000},
        "principal_sessions": 10,
        "principal_processes": 20,
    },
}


@pytest.fixture(autouse=True)
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans of a provider that this program has, for as long as the test runs."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call, whether its answer was there at once."""
    monkeypatch.setattr(cached_record, "CACHED_FOR_S", 60.0)  # however slow this machine is
    found, call = list[bool](), Pipeline.call

    def noting(pipeline: Pipeline, request: Request) -> Soon[Answer]:
        answer = call(pipeline, request)
        found.append(is_there(answer))
        return answer

    monkeypatch.setattr(Pipeline, "call", noting)
    return found


@asynccontextmanager
async def running(store: str) -> AsyncIterator[httpx.AsyncClient]:
    servers = {"one": DEMO, "two": DEMO, "old": of_one_era("legacy"), "new": of_one_era("modern"), "telling": TELLING}
    app = create_app(Settings.model_validate({"mcpServers": servers, "gateway": {"store": store, **EVERYTHING}}))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http,
    ):
        http.headers.update(KEY | TRACED | ACCEPT)
        yield http


async def legacy_session(http: httpx.AsyncClient) -> dict[str, str]:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    body: Any = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    opened = await http.post("/mcp", json=body)
    session = {"Mcp-Session-Id": opened.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
    await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
    return session


async def call_legacy(http: httpx.AsyncClient, tool: str, session: dict[str, str]) -> Any:
    params = {"name": tool, "arguments": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return (await http.post("/mcp", json=body, headers=session)).json()


async def modern_session(http: httpx.AsyncClient) -> dict[str, str]:
    body = modern_body("tools/call", {"name": "one__count", "arguments": {}})
    opened = await http.post("/mcp", json=body, headers=modern_headers(body))
    return {"MCP-Gateway-Session": opened.headers["mcp-gateway-session"]}


async def default_session(http: httpx.AsyncClient) -> dict[str, str]:
    """Of a client that brings nothing back."""
    return CURL


async def cookie_session(http: httpx.AsyncClient) -> dict[str, str]:
    """Of a client that brings back its cookie."""
    await modern_session(http)
    return {"Cookie": f"mcp_session_id={http.cookies['mcp_session_id']}"}


async def call_modern(http: httpx.AsyncClient, tool: str, session: dict[str, str]) -> Any:
    http.cookies.clear()
    body = modern_body("tools/call", {"name": tool, "arguments": {}})
    return (await http.post("/mcp", json=body, headers=modern_headers(body) | session)).json()


@requirement("hot.warm-call")
async def test_a_warm_call_makes_no_coroutine_with_everything_configured(
    tmp_path: Path, outcomes: list[bool], spans: InMemorySpanExporter
) -> None:
    ways: list[tuple[Any, Any]] = [
        (legacy_session, call_legacy),
        *((session_of, call_modern) for session_of in (modern_session, default_session, cookie_session)),
    ]
    async with running(f"sqlite:///{tmp_path}/sessions.db") as http:
        for session_of, call in ways:
            session = await session_of(http)
            for tool in ("one__count", "two__count"):  # the servers' lists, the use of each and the rates are recorded
                assert "result" in await call(http, tool, session)
            outcomes.clear()
            spans.clear()
            for tool in ("one__count", "two__count", "one__count"):
                answer = await call(http, tool, session)
                assert not answer["result"].get("isError"), answer
            assert outcomes == [True] * 3
            assert len(spans.get_finished_spans()) == 6, "of each request, and of each call"
            refused = await call(http, "one__whoami", session)
            assert "error" in refused and "whoami" in refused["error"]["message"], "what policy hides"


@requirement("hot.warm-call-between-eras")
async def test_a_warm_call_between_the_eras_makes_no_coroutine(tmp_path: Path, outcomes: list[bool]) -> None:
    ways: list[tuple[Any, Any, str]] = [
        (legacy_session, call_legacy, "new__count"),
        (legacy_session, call_legacy, "telling__state"),
        (modern_session, call_modern, "old__count"),
    ]
    async with running(f"sqlite:///{tmp_path}/sessions.db") as http:
        for session_of, call, tool in ways:
            session = await session_of(http)
            for _ in range(2):  # the server has started, and has the subscription
                assert "result" in await call(http, tool, session)
            outcomes.clear()
            for _ in range(3):
                answer = await call(http, tool, session)
                assert not answer["result"].get("isError"), answer
            assert outcomes == [True] * 3, tool
