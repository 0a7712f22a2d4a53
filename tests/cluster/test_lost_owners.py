"""What becomes of calls and streams whose owner is lost while they are under way, and of sessions without a store."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.cluster.test_replicas import KEYS, LEASE_S, SERVERS, Wandering, owner_of, replica, restarted, retried
from tests.requirements import requirement
from tests.support.free_ports import free_port
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.mcp_clients import Legacy, events, messages, tool_text
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.tcp_relay import Relay, running_relay
from tests.support.waiting import descendants, eventually, gone


@pytest.fixture
def three(redis_server: RunningRedis) -> Iterator[list[RunningGateway]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(replica(redis_server)) for _ in range(3)]


def through(gateway: RunningGateway, path: str, client: Legacy) -> Legacy:
    """The same client, at that replica, with connections of its own."""
    other = Legacy(f"{gateway.base}/servers/{path}/mcp", httpx.Client(timeout=30))
    other.session = client.session
    return other


def demo_owner(gateways: list[RunningGateway]) -> RunningGateway:
    """Who has a process of a session's (each has one that answers what needs no session)."""
    return next(g for g in gateways if any(p.environ().get("MCP_SESSION_ID") for p in descendants(g.pid)))


@requirement("rep.honest")
def test_a_call_that_may_be_repeated_is_made_again_where_the_session_goes(
    three: list[RunningGateway], http: httpx.Client, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    client = Wandering(three, "probe", http).open()
    owner = owner_of(three, client)
    calling = through(next(g for g in three if g is not owner), "probe", client)
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(calling.tool("nap", {"seconds": 2, "note": str(note)})))
    thread.start()
    assert eventually(note.exists, within_s=5)
    owner.kill()
    thread.join(15)
    calling.http.close()
    assert tool_text(answers[0]) == "slept" and restarted(answers[0]) == {"reason": "takeover"}
    assert note.read_text() == "called\n" * 2


@requirement("rep.honest", "spec.legacy")
def test_an_answer_that_had_begun_goes_on_in_the_same_stream(three: list[RunningGateway], http: httpx.Client) -> None:
    client = Wandering(three, "demo", http).open()
    tool_text(client.tool("count"))
    owner = demo_owner(three)
    calling = through(next(g for g in three if g is not owner), "demo", client)
    body = {"name": "slow", "arguments": {"steps": 6, "interval_s": 0.3}, "_meta": {"progressToken": "p"}}
    request = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": body}
    seen: list[Any] = []
    with calling.http.stream("POST", calling.url, json=request, headers=calling.request_headers()) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                seen.append(json.loads(line.removeprefix("data: ")))
                if len(seen) == 2:
                    owner.kill()
    calling.http.close()
    steps = [m["params"]["progress"] for m in seen if m.get("method") == "notifications/progress"]
    assert steps[-6:] == [1, 2, 3, 4, 5, 6] and 1 in steps[:-6], "and all of it once more"
    assert seen[-1]["id"] == 5 and seen[-1]["result"]["content"][0]["text"] == "done"


@requirement("rep.honest", "spec.legacy")
def test_a_question_dies_with_its_owner_and_the_call_says_so(three: list[RunningGateway], http: httpx.Client) -> None:
    client = Wandering(three, "demo", http).open(capabilities={"elicitation": {}})
    tool_text(client.tool("count"))
    owner = demo_owner(three)
    edge = next(g for g in three if g is not owner)
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "ask", "arguments": {}}}
    calling = through(edge, "demo", client)
    seen: list[Any] = []
    with calling.http.stream("POST", calling.url, json=body, headers=calling.request_headers()) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                seen.append(json.loads(line.removeprefix("data: ")))
                if "method" in seen[-1]:
                    owner.kill()
                    result = {"action": "accept", "content": {"name": "Ada"}}
                    client.urls = [calling.url]
                    assert client.post({"jsonrpc": "2.0", "id": seen[-1]["id"], "result": result}).status_code == 202
    calling.http.close()
    assert seen[-1]["id"] == 7 and seen[-1]["error"]["code"] == -32014


@requirement("rep.honest", "spec.legacy")
def test_a_stream_whose_replica_died_ends_with_the_truth_on_another(
    three: list[RunningGateway], http: httpx.Client
) -> None:
    client = Wandering(three, "demo", http).open(capabilities={"elicitation": {}})
    tool_text(client.tool("count"))
    owner = demo_owner(three)
    body = {"jsonrpc": "2.0", "id": "mine", "method": "tools/call", "params": {"name": "ask", "arguments": {}}}
    calling = through(owner, "demo", client)
    text = ""
    with contextlib.suppress(httpx.HTTPError):
        with calling.http.stream("POST", calling.url, json=body, headers=calling.request_headers()) as stream:
            for piece in stream.iter_text():
                text += piece
                if "elicitation/create" in text:
                    owner.kill()
    calling.http.close()
    event_id = next(event_id for event_id, data in events(text) if "elicitation/create" in data)
    client.url = f"{next(g for g in three if g is not owner).base}/servers/demo/mcp"
    with client.get(event_id) as stream:
        rest = [json.loads(data) for _, data in events(stream.read().decode()) if data]
    assert [(m["id"], m["error"]["code"]) for m in rest if "id" in m] == [("mine", -32014)]


@requirement("rep.store-down", "rep.any")
def test_an_owner_goes_on_without_the_store_for_as_long_as_its_lease(http: httpx.Client) -> None:
    with running_redis() as redis, contextlib.ExitStack() as stack:
        gateways = [stack.enter_context(replica(redis)) for _ in range(2)]
        client = Wandering(gateways, "demo", http).open()
        assert tool_text(client.tool("count")) == "1"
        owner = demo_owner(gateways)
        here, there = (through(g, "demo", client) for g in (owner, next(g for g in gateways if g is not owner)))
        redis.stop()
        stopped_at = time.monotonic()
        good = 1
        while (answer := here.tool("count")).status_code == 200:
            good += 1
            assert tool_text(answer) == str(good)
            assert time.monotonic() - stopped_at < LEASE_S + 1, "beyond its lease another may own the session"
            time.sleep(0.05)
        assert time.monotonic() - stopped_at > LEASE_S - 2 and good > 10
        for refused in (answer, there.tool("count")):
            assert refused.status_code == 503 and refused.headers["retry-after"]
        redis.start()
        assert tool_text(retried(lambda: there.tool("count"), within_s=10)) == str(good + 1)
        for other in (here, there):
            other.http.close()


@contextlib.contextmanager
def behind_a_relay(redis: RunningRedis) -> Iterator[tuple[RunningGateway, Relay]]:
    """A replica that the others can be cut off from, while it has its store."""
    port = free_port()
    with running_relay(port) as relay:
        options = {"store": redis.url, "advertise": f"127.0.0.1:{relay.port}", "internal": f"127.0.0.1:{port}"}
        with running_gateway(SERVERS, options=options, env=KEYS, must_stop=False) as gateway:
            yield gateway, relay


@requirement("rep.takeover", "rep.fence", "rep.honest")
def test_an_owner_that_is_cut_off_from_the_others_is_replaced_and_told(
    redis_server: RunningRedis, http: httpx.Client, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    with behind_a_relay(redis_server) as (alone, relay), replica(redis_server) as other:
        client = Legacy(f"{alone.base}/servers/probe/mcp", http).open()
        old = tool_text(client.tool("pid"))
        far = through(other, "probe", client)
        assert tool_text(far.tool("pid")) == old
        calls: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: calls.append(far.tool("sleep", {"seconds": 30, "note": str(note)})))
        thread.start()
        assert eventually(note.exists, within_s=5)
        child = psutil.Process(int(old))
        relay.cut()
        began = time.monotonic()
        near = through(other, "probe", client)
        unknown = retried(lambda: near.tool("pid"), within_s=LEASE_S + 5)
        assert messages(unknown)[-1]["error"]["code"] == -32014, "it was sent before anybody knew of the cut"
        answer = near.tool("pid")
        assert restarted(answer) == {"reason": "takeover"} and tool_text(answer) != old
        assert time.monotonic() - began < LEASE_S + 4
        thread.join(15)
        assert messages(calls[0])[-1]["error"]["code"] == -32014
        assert tool_text(client.tool("pid")) == tool_text(answer), "the old owner forwards now"
        assert gone([child], within_s=5) and note.read_text() == "called\n"
        for each in (far, near):
            each.http.close()
