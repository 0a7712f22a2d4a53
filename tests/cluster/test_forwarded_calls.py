"""Calls of clients that stay on one connection to a replica which does not own their session."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.cluster.test_replicas import SERVERS, in_background, retried
from tests.e2e.test_connection_memory import ON, Counted, Raw, became
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway, replicas
from tests.support.mcp_clients import Legacy, Modern, error_of, messages, restarted, tool_text
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.waiting import eventually


class Pair(NamedTuple):
    """Two replicas, and a session whose process the first one has."""

    owner: RunningGateway
    front: RunningGateway


@contextlib.contextmanager
def alone(*names: str) -> Iterator[Pair]:
    """Two replicas with a store of their own: beside others with a newer file they would claim nothing."""
    with running_redis() as redis, two(redis, *names) as found:
        yield found


@contextlib.contextmanager
def two(redis: RunningRedis, *names: str) -> Iterator[Pair]:
    with replicas(redis.url, {name: SERVERS[name] for name in names}, **ON) as (owner, front):
        yield Pair(owner, front)


@pytest.fixture(scope="module")
def pair(redis_server: RunningRedis) -> Iterator[Pair]:
    with two(redis_server, *SERVERS) as found:
        yield found


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


@requirement("hot.forwarded", "rep.honest")
def test_a_modern_client_that_leaves_cancels_its_call_at_the_owner(pair: Pair, tmp_path: Path) -> None:
    with httpx.Client(timeout=30) as http:
        token = Modern(f"{pair.owner.base}/mcp", http).tool("probe__pid").headers["mcp-gateway-session"]
    raw, counted = Raw(pair.front, modern=token), Counted(pair.front)
    for _ in range(6):
        assert raw.call("probe__pid").status == 200
    assert counted("direct", "fast") >= 2
    raw.send(raw.request("probe__hang"))
    raw.close()
    assert eventually(lambda: "error -32016" in pair.owner.stderr())


@requirement("hot.forwarded", "rep.takeover", "rep.honest")
def test_the_death_of_the_owner_loses_no_call_that_had_not_begun(tmp_path: Path) -> None:
    with alone("probe") as pair:
        clients = [opened(pair) for _ in range(4)]
        for client in clients:
            for _ in range(4):
                tool_text(client.tool("pid"))
        note = tmp_path / "note"
        call = in_background(lambda: clients[0].tool("sleep", {"seconds": 30, "note": str(note)}))
        assert eventually(note.exists)
        pair.owner.kill()
        for client in clients[1:]:
            answer = retried(lambda client=client: client.tool("pid"), within_s=5)
            assert restarted(answer) == {"reason": "takeover"}
        assert error_of(call.result(15))["code"] == -32014 and note.read_text() == "called\n"
        before = became(pair.front)["direct"]
        for _ in range(6):
            tool_text(clients[1].tool("pid"))
        assert became(pair.front)["direct"] > before, "now it owns the session"
        for client in clients:
            client.http.close()
