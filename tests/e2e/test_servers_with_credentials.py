"""Servers behind URLs that answer no request without a credential, so that only sessions can ask them anything."""

import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import MCPError
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.scripted_http_server import (
    Reply,
    ScriptedServer,
    Seen,
    discovered,
    result_of,
    running_scripted_server,
)

pytestmark = pytest.mark.anyio

TOKENS = {"alice": "token-of-alice", "bob": "token-of-bob", "carol": "revoked"}
KEYS = {name: f"key-of-{name}" for name in TOKENS}


def with_credentials(answer: Callable[[Seen], Reply]) -> Callable[[Seen], Reply]:
    """A server that answers 401 to whoever has no valid bearer token."""

    def script(seen: Seen) -> Reply:
        if seen.headers.get("authorization") not in {f"Bearer {TOKENS[name]}" for name in ("alice", "bob")}:
            return Reply(status=401, headers={"www-authenticate": "Bearer"})
        if seen.method == "GET":
            return Reply(status=405)
        return answer(seen) if "id" in (seen.body or {}) else Reply(status=202)

    return script


def whose(seen: Seen) -> str:
    return seen.headers["authorization"].rpartition("-")[2]


def error_of(seen: Seen, code: int) -> Any:
    return {"jsonrpc": "2.0", "id": seen.body["id"], "error": {"code": code, "message": "Method not found"}}


def modern_only(seen: Seen) -> Reply:
    """Has a tool and instructions of its own for each user."""
    if "mcp-method" not in seen.headers:
        return Reply(status=404, body=error_of(seen, -32601))
    results: dict[str, Any] = {
        "server/discover": {**discovered(), "instructions": f"Instructions for {whose(seen)}"},
        "tools/list": {"tools": [{"name": f"tool_of_{whose(seen)}", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": f"{whose(seen)} called"}]},
    }
    hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    return Reply(body=result_of(seen, {**hints, **results[seen.body["method"]]}))


def legacy_only(seen: Seen) -> Reply:
    info = {"name": "old", "version": "1"}
    results: dict[str, Any] = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info},
        "tools/list": {"tools": [{"name": f"old_of_{whose(seen)}", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": f"{whose(seen)} called the old one"}]},
    }
    result = results.get(seen.body["method"])
    return Reply(status=400, body=error_of(seen, -32601)) if result is None else Reply(body=result_of(seen, result))


@contextmanager
def gateway_to(folder: Path, **remotes: ScriptedServer) -> Iterator[InProcessGateway]:
    for name, token in TOKENS.items():
        (folder / name).write_text(token)
    headers = {"Authorization": "Bearer ${secret:token}"}
    options = {
        "api_keys": {name: sha256(key) for name, key in KEYS.items()},
        "secrets": {"token": {"file": str(folder / "{subject}")}},
    }
    servers = {name: {"url": remote.url, "headers": headers} for name, remote in remotes.items()}
    with in_process_gateway(servers, options=options) as gateway:
        yield gateway


@asynccontextmanager
async def connected(url: str, name: str, mode: Any) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=bearer(KEYS[name])) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def used(url: str, name: str, mode: Any) -> list[str]:
    """The tools that a user sees, each with what it says when it is called."""
    async with connected(url, name, mode) as client:
        assert "Instructions for" not in (client.instructions or ""), "they are for whoever has asked"
        found = []
        for tool in (await client.list_tools()).tools:
            (content,) = (await client.call_tool(tool.name, {})).content
            found.append(f"{tool.name}: {content.text}")  # type: ignore[union-attr]
        return sorted(found)


@requirement("up.era-credentials", "ctx.credentials", "spec.bridge")
@pytest.mark.parametrize(("mode", "other"), [("auto", "legacy"), ("legacy", "auto")])
async def test_a_server_that_refuses_the_gateway_itself_serves_users_with_credentials(
    tmp_path: Path, mode: str, other: str
) -> None:
    with (
        running_scripted_server(with_credentials(modern_only)) as new,
        running_scripted_server(with_credentials(legacy_only)) as old,
        gateway_to(tmp_path, new=new, old=old) as gateway,
    ):
        alone = f"{gateway.base}/servers/new/mcp"
        with pytest.raises((MCPError, ExceptionGroup)) as refused:
            await used(alone, "carol", mode)
        assert "server 'new' answered 401 Unauthorized" in "".join(traceback.format_exception(refused.value))
        assert await used(alone, "alice", mode) == ["tool_of_alice: alice called"], gateway.stderr()
        assert await used(alone, "bob", other) == ["tool_of_bob: bob called"]
        asked = [seen.headers.get("authorization") for seen in new.posted("server/discover")]
        assert set(asked) == {None, "Bearer revoked", f"Bearer {TOKENS['alice']}"}, (
            "what she has learned counts for bob"
        )

        assert await used(f"{gateway.base}/servers/old/mcp", "bob", mode) == ["old_of_bob: bob called the old one"]
        for each in (mode, other):
            assert await used(gateway.url, "alice", each) == [
                "new__tool_of_alice: alice called",
                "old__old_of_alice: alice called the old one",
            ]
        assert not any(token in gateway.stderr() for token in TOKENS.values())
