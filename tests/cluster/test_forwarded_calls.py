"""Calls of clients that stay on one connection to a replica which does not own their session."""

from collections.abc import Iterator
from typing import NamedTuple

import httpx
import pytest

from tests.cluster.test_replicas import SERVERS
from tests.e2e.test_connection_memory import ON, Counted
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway, replicas
from tests.support.mcp_clients import Legacy, Modern, error_of, messages, tool_text
from tests.support.redis_server import RunningRedis


class Pair(NamedTuple):
    """Two replicas, and a session whose process the first one has."""

    owner: RunningGateway
    front: RunningGateway


@pytest.fixture(scope="module")
def pair(redis_server: RunningRedis) -> Iterator[Pair]:
    with replicas(redis_server.url, SERVERS, **ON) as (owner, front):
        yield Pair(owner, front)


def opened(pair: Pair, path: str = "probe", **more: str) -> Legacy:
    """A client whose session the first replica owns, and which calls the second."""
    with httpx.Client(timeout=30) as http:
        client = Legacy(f"{pair.owner.base}/servers/{path}/mcp", http, **more).open()
        tool_text(client.tool("pid" if path == "probe" else "count"))
    client.url = f"{pair.front.base}/servers/{path}/mcp"
    client.http = httpx.Client(timeout=30)
    return client


@requirement("hot.forwarded", "rep.any")
def test_calls_on_one_connection_are_answered_from_its_memory(pair: Pair) -> None:
    client, counted = opened(pair, "demo"), Counted(pair.front)
    assert [tool_text(client.tool("count")) for _ in range(20)] == [str(n) for n in range(2, 22)]
    assert counted("direct", "fast") >= 16
    modern = Modern(f"{pair.owner.base}/servers/demo/mcp", client.http)
    token = modern.tool("count").headers["mcp-gateway-session"]
    modern.url = f"{pair.front.base}/servers/demo/mcp"
    modern.headers |= {"MCP-Gateway-Session": token}
    counted = Counted(pair.front)
    answers = [modern.tool("count") for _ in range(20)]
    assert [tool_text(answer) for answer in answers] == [str(n) for n in range(2, 22)] and counted(
        "direct", "fast"
    ) >= 16
    names = {k: v for k, v in answers[-1].request.headers.items() if k not in ("host", "content-length")}
    local = modern.http.post(f"{pair.owner.base}/servers/demo/mcp", content=answers[-1].request.content, headers=names)
    assert dict(local.headers) | {"date": ""} == dict(answers[-1].headers) | {"date": ""}, (
        "as the owner answers its own clients"
    )
    assert error_of(modern.tool("unknown"))["code"] == -32602
    client.http.close()


@requirement("hot.forwarded", "rep.any")
def test_large_answers_streams_and_errors_come_through_as_they_are(pair: Pair) -> None:
    client = opened(pair)
    for _ in range(4):
        tool_text(client.tool("pid"))
    for size in (60_000, 70_000, 3_000_000):
        assert tool_text(client.tool("giant", {"size": size})) == "g" * size
    answer = client.tool("giant", {"size": 200_000, "say": True})
    assert answer.headers["content-type"].startswith("text/event-stream") and len(messages(answer)) == 2
    assert tool_text(client.tool("giant", {"size": 100_000, "pad": "x" * 100_000})) == "g" * 100_000, "a large call"
    client.headers["Origin"] = pair.front.base
    for _ in range(4):
        answer = client.tool("pid")
        assert answer.headers.get_list("access-control-allow-origin") == [pair.front.base]
    assert tool_text(client.tool("pid")) and client.delete().status_code == 200
    assert client.tool("pid").status_code == 404, "its owner says so"
    client.http.close()
