"""What becomes of calls and streams whose owner is lost while they are under way, and of sessions without a store."""

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis

from tests.cluster.test_replicas import (
    KEYS,
    LEASE_S,
    SERVERS,
    Wandering,
    in_background,
    owner_of,
    replica,
    replicas,
    retried,
    through,
)
from tests.requirements import requirement
from tests.support.free_ports import free_port
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.mcp_clients import RESTARTED, Legacy, error_of, events, restarted, tool_text
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.tcp_relay import Relay, running_relay
from tests.support.waiting import descendants, eventually, gone


@pytest.fixture
def two(request: pytest.FixtureRequest, redis_server: RunningRedis) -> Iterator[list[RunningGateway]]:
    """Two replicas of a test's own, which it may kill, with the server that it names."""
    with replicas(redis_server, 2, request.param) as gateways:
        yield gateways


probe = pytest.mark.parametrize("two", ["probe"], indirect=True)
demo = pytest.mark.parametrize("two", ["demo"], indirect=True)


def demo_owner(gateways: list[RunningGateway]) -> RunningGateway:
    """Who has a process of a session's (each has one that answers what needs no session)."""
    return next(g for g in gateways if any(p.environ().get("MCP_SESSION_ID") for p in descendants(g.pid)))


@probe
@requirement("rep.honest")
def test_a_call_that_may_be_repeated_is_made_again_where_the_session_goes(
    two: list[RunningGateway], http: httpx.Client, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    client = Wandering(two, "probe", http).open()
    owner = owner_of(two, client)
    calling = through(next(g for g in two if g is not owner), "probe", client)
    call = in_background(lambda: calling.tool("nap", {"seconds": 2, "note": str(note)}))
    assert eventually(note.exists)
    owner.kill()
    assert tool_text(call.result(15)) == "slept" and restarted(call.result()) == {"reason": "takeover"}
    assert note.read_text() == "called\n" * 2


@demo
@requirement("rep.honest", "spec.legacy")
def test_an_answer_that_had_begun_goes_on_in_the_same_stream(two: list[RunningGateway], http: httpx.Client) -> None:
    client = Wandering(two, "demo", http).open()
    tool_text(client.tool("count"))
    owner = demo_owner(two)
    calling = through(next(g for g in two if g is not owner), "demo", client)
    body = {"name": "slow", "arguments": {"steps": 6, "interval_s": 0.3}, "_meta": {"progressToken": "p"}}
    seen: list[Any] = []
    with calling.streaming("tools/call", body, 5) as coming:
        for message in coming:
            seen.append(message)
            if len(seen) == 2:
                owner.kill()
    steps = [m["params"]["progress"] for m in seen if m.get("method") == "notifications/progress"]
    assert steps[-6:] == [1, 2, 3, 4, 5, 6] and 1 in steps[:-6], "and all of it once more"
    assert seen[-1]["id"] == 5 and seen[-1]["result"]["content"][0]["text"] == "done"


@demo
@requirement("rep.honest", "spec.legacy")
def test_a_question_dies_with_its_owner_and_the_call_says_so(two: list[RunningGateway], http: httpx.Client) -> None:
    client = Wandering(two, "demo", http).open(capabilities={"elicitation": {}})
    tool_text(client.tool("count"))
    owner = demo_owner(two)
    edge = next(g for g in two if g is not owner)
    calling = through(edge, "demo", client)
    with calling.streaming("tools/call", {"name": "ask", "arguments": {}}) as coming:
        for message in coming:
            if "method" in message:
                owner.kill()
                client.urls = [calling.url]
                client.reply(message, result={"action": "accept", "content": {"name": "Ada"}})
    assert message["id"] == 7 and message["error"]["code"] == -32014


@requirement("rep.store-down", "rep.any")
def test_an_owner_goes_on_without_the_store_for_as_long_as_its_lease(http: httpx.Client) -> None:
    with running_redis() as redis, contextlib.ExitStack() as stack:
        gateways = stack.enter_context(replicas(redis, 2, "demo"))
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


@contextlib.contextmanager
def behind_a_relay(redis: RunningRedis) -> Iterator[tuple[RunningGateway, Relay]]:
    """A replica that the others can be cut off from, while it has its store."""
    port = free_port()
    with running_relay(port) as relay:
        options = {"store": redis.url, "advertise": f"127.0.0.1:{relay.port}", "internal": f"127.0.0.1:{port}"}
        with running_gateway({"probe": SERVERS["probe"]}, options=options, env=KEYS, must_stop=False) as gateway:
            yield gateway, relay


@requirement("rep.takeover", "rep.fence", "rep.honest")
def test_an_owner_that_is_cut_off_from_the_others_is_replaced_and_told(
    redis_server: RunningRedis, http: httpx.Client, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    with behind_a_relay(redis_server) as (alone, relay), replica(redis_server, "probe") as other:
        client = Legacy(f"{alone.base}/servers/probe/mcp", http).open()
        old = tool_text(client.tool("pid"))
        far = through(other, "probe", client)
        assert tool_text(far.tool("pid")) == old
        call = in_background(lambda: far.tool("sleep", {"seconds": 30, "note": str(note)}))
        assert eventually(note.exists)
        child = psutil.Process(int(old))
        relay.cut()
        began = time.monotonic()
        near = through(other, "probe", client)
        unknown = retried(lambda: near.tool("pid"), within_s=LEASE_S + 5)
        assert error_of(unknown)["code"] == -32014, "it was sent before anybody knew of the cut"
        answer = near.tool("pid")
        assert restarted(answer) == {"reason": "takeover"} and tool_text(answer) != old
        assert time.monotonic() - began < LEASE_S + 4
        assert error_of(call.result(15))["code"] == -32014
        assert tool_text(client.tool("pid")) == tool_text(answer), "the old owner forwards now"
        assert gone([child]) and note.read_text() == "called\n"


# -- streams that are resumed at another owner


def killed_in_a_call(owner: RunningGateway, client: Legacy, tool: str, note: Path) -> str:
    """Send a call through the owner of a session, and kill the owner while the tool works. Returns the id of the event
    that begins the answer."""
    arguments = {"seconds": 2, "note": str(note)}
    body = {"jsonrpc": "2.0", "id": "mine", "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    text = ""
    with httpx.Client(timeout=20) as own:
        with own.stream("POST", client.url, json=body, headers=client.request_headers()) as stream:
            chunks = stream.iter_text()
            while "id: " not in text or "\n\n" not in text:
                text += next(chunks)
            begun = next(event_id for event_id, _ in events(text) if event_id)
            assert eventually(note.exists)
            with client.get(begun) as resumed:  # so the event is in the store
                assert resumed.status_code == 200
            owner.kill()
    return begun


def rest_of(client: Legacy, event_id: str) -> list[tuple[str, Any]]:
    """The ids and messages behind that event."""
    with client.get(last_event_id=event_id) as resumed:
        assert resumed.status_code == 200, resumed.read()
        begun = time.monotonic()
        text = ""
        for chunk in resumed.iter_text():
            text += chunk
            assert time.monotonic() - begun < 20, "it has no end"
    return [(name, json.loads(data)) for name, data in events(text) if data]


@requirement("rep.honest", "spec.stream-log")
def test_a_call_that_may_be_repeated_is_made_again_once_when_its_client_comes_back(
    redis_server: RunningRedis, http: httpx.Client, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    with replicas(redis_server, 3, "probe") as (owner, *others):
        client = Legacy(f"{owner.base}/servers/probe/mcp", http).open()
        begun = killed_in_a_call(owner, client, "nap", note)

        def resume(gateway: RunningGateway) -> list[tuple[str, Any]]:
            with httpx.Client(timeout=20) as own:
                return rest_of(through(gateway, "probe", client, own), begun)

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(resume, others * 2))
        whole = resume(others[0])
        assert whole in answers and all(answer in ([], whole) for answer in answers), "the newest follows the stream"
        ((event_id, answer),) = whole
        assert answer["id"] == "mine" and answer["result"]["content"][0]["text"] == "slept"
        assert answer["result"]["_meta"][RESTARTED] == {"reason": "takeover"}
        assert note.read_text() == "called\n" * 2
        assert rest_of(through(others[1], "probe", client, http), event_id) == []


@probe
@requirement("rep.honest", "rep.no-retry", "spec.stream-log")
def test_a_call_that_may_not_be_repeated_is_executed_once(
    two: list[RunningGateway], http: httpx.Client, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    client = Legacy(f"{two[0].base}/servers/probe/mcp", http).open()
    begun = killed_in_a_call(two[0], client, "sleep", note)
    ((_, answer),) = rest_of(through(two[1], "probe", client, http), begun)
    assert (answer["id"], answer["error"]["code"]) == ("mine", -32014) and note.read_text() == "called\n"


TICKS = {"name": "tick", "arguments": {"steps": 60, "interval_s": 0.2}, "_meta": {"progressToken": 1}}
SLOW = {"name": "slow", "arguments": {"steps": 15, "interval_s": 0.2}, "_meta": {"progressToken": 1}}


def seen_until(chunks: Iterator[str], text: str, count: int) -> str:
    """What has come of a stream when it has that many events."""
    while text.count("\n\n") < count:
        text += next(chunks)
    return text


def killed_while_its_store_stands_still(
    owner: RunningGateway, client: Legacy, call: dict[str, Any], redis_server: RunningRedis
) -> list[str]:
    """The ids of what a client has got of a call, the last of which died with the owner of its session."""
    body = {"jsonrpc": "2.0", "id": "call/5", "method": "tools/call", "params": call}
    store = redis.Redis.from_url(redis_server.url)
    with contextlib.closing(store), httpx.Client(timeout=20) as own:
        with own.stream("POST", client.url, json=body, headers=client.request_headers()) as response:
            chunks = response.iter_text()
            text = seen_until(chunks, "", 3)
            with client.get(last_event_id=next(events(text))[0]) as resumed:  # so those before are in the store
                assert resumed.status_code == 200
            store.execute_command("CLIENT", "PAUSE", 30_000, "WRITE")  # type: ignore[no-untyped-call]  # no hint
            text = seen_until(chunks, text, text.count("\n\n") + 2)
            owner.kill()
            store.execute_command("CLIENT", "UNPAUSE")  # type: ignore[no-untyped-call]  # no hint
    return [event_id for event_id, _ in events(text[: text.rindex("\n\n")])]  # without one that is cut off


@probe
@requirement("spec.stream-log", "rep.honest", "spec.priming")
def test_a_client_whose_events_died_with_their_owner_is_told_that_the_outcome_is_unknown(
    two: list[RunningGateway], redis_server: RunningRedis, http: httpx.Client
) -> None:
    owner, other = two
    client = Legacy(f"{owner.base}/servers/probe/mcp", http).open()
    ids = killed_while_its_store_stands_still(owner, client, TICKS, redis_server)
    client.url = f"{other.base}/servers/probe/mcp"
    answers = {}
    for event_id in (ids[-1], ids[0], ids[-1]):
        answers[event_id] = rest_of(client, event_id)
        answer = answers[event_id][-1][1]
        assert (answer["id"], answer["error"]["code"]) == ("call/5", -32014)
    assert len(answers[ids[-1]]) == 1, "one answer: its events are lost"
    assert len(answers[ids[0]]) > 1 and "method" in answers[ids[0]][0][1], "what was stored is there"
    answered = answers[ids[-1]][-1][0]
    assert rest_of(client, answered) == [], "the stream ends with its answer"
    nonce, _, rest = answered.partition("-")
    ahead = f"{nonce}-{int(rest.partition('.')[0]) + 5_000}.NQ"  # above the owner's numbers, and reserved by it
    for _ in range(2):
        ((_, answer),) = rest_of(client, ahead)
        assert (answer["id"], answer["error"]["code"]) == (5, -32014)
    made_up = ids[-1].partition("-")[0] + "-99999999.NQ"
    with client.get(last_event_id=made_up) as refused:
        assert refused.status_code == 404


@demo
@requirement("spec.stream-log", "rep.honest")
def test_a_client_whose_last_events_died_with_their_owner_gets_those_of_the_call_that_is_made_again(
    two: list[RunningGateway], redis_server: RunningRedis, http: httpx.Client
) -> None:
    owner, other = two
    client = Legacy(f"{owner.base}/servers/demo/mcp", http).open()
    ids = killed_while_its_store_stands_still(owner, client, SLOW, redis_server)
    client.url = f"{other.base}/servers/demo/mcp"
    own = rest_of(client, ids[-1])
    steps = [message["params"]["progress"] for _, message in own if message.get("method") == "notifications/progress"]
    assert steps == [*range(1, 16)], "only what it has not got"
    assert own[-1][1]["id"] == "call/5" and own[-1][1]["result"]["content"][0]["text"] == "done"
    assert rest_of(client, ids[-1]) == own, "the same stream, with the same events"
    assert rest_of(client, ids[0])[-len(own) :] == own
