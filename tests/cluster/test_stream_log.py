"""Events of streams, whose owner is killed between the client and the store."""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis

from tests.requirements import requirement
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, events
from tests.support.redis_server import RunningRedis

SERVERS = {"demo": server(DEMO), "probe": server(PROBE)}
KEYS = {"MCP_GATEWAY_KEYS": "k" * 40}
TICKS = {"name": "tick", "arguments": {"steps": 60, "interval_s": 0.2}, "_meta": {"progressToken": 1}}
SLOW = {"name": "slow", "arguments": {"steps": 15, "interval_s": 0.2}, "_meta": {"progressToken": 1}}


@pytest.fixture
def two(redis_server: RunningRedis) -> Iterator[list[RunningGateway]]:
    """Two replicas of a test's own, which it may kill."""
    with contextlib.ExitStack() as stack:
        running = running_gateway
        options = {"store": redis_server.url}
        yield [stack.enter_context(running(SERVERS, options=options, env=KEYS, must_stop=False)) for _ in range(2)]


def seen_until(chunks: Iterator[str], text: str, count: int) -> str:
    """What has come of a stream when it has that many events."""
    while text.count("\n\n") < count:
        text += next(chunks)
    return text


def resumed_to_its_end(client: Legacy, event_id: str) -> list[tuple[str, dict[str, Any]]]:
    """The ids and messages behind that event."""
    with client.get(last_event_id=event_id) as resumed:
        assert resumed.status_code == 200, resumed.read()
        begun = time.monotonic()
        text = ""
        for chunk in resumed.iter_text():
            text += chunk
            assert time.monotonic() - begun < 20, "it has no end"
    return [(name, json.loads(data)) for name, data in events(text) if data]


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
            store.execute_command("CLIENT", "PAUSE", 3_000, "WRITE")  # type: ignore[no-untyped-call]  # no hint
            text = seen_until(chunks, text, text.count("\n\n") + 2)
            owner.kill()
            store.execute_command("CLIENT", "UNPAUSE")  # type: ignore[no-untyped-call]  # no hint
    return [event_id for event_id, _ in events(text)]


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
        answers[event_id] = resumed_to_its_end(client, event_id)
        answer = answers[event_id][-1][1]
        assert (answer["id"], answer["error"]["code"]) == ("call/5", -32014)
    assert len(answers[ids[-1]]) == 1, "one answer: its events are lost"
    assert len(answers[ids[0]]) > 1 and "method" in answers[ids[0]][0][1], "what was stored is there"
    answered = answers[ids[-1]][-1][0]
    assert resumed_to_its_end(client, answered) == [], "the stream ends with its answer"
    nonce, _, rest = answered.partition("-")
    ahead = f"{nonce}-{int(rest.partition('.')[0]) + 5_000}.NQ"  # above the owner's numbers, and reserved by it
    for _ in range(2):
        ((_, answer),) = resumed_to_its_end(client, ahead)
        assert (answer["id"], answer["error"]["code"]) == (5, -32014)
    made_up = ids[-1].partition("-")[0] + "-99999999.NQ"
    with client.get(last_event_id=made_up) as refused:
        assert refused.status_code == 404


@requirement("spec.stream-log", "rep.honest")
def test_a_client_whose_last_events_died_with_their_owner_gets_those_of_the_call_that_is_made_again(
    two: list[RunningGateway], redis_server: RunningRedis, http: httpx.Client
) -> None:
    owner, other = two
    client = Legacy(f"{owner.base}/servers/demo/mcp", http).open()
    ids = killed_while_its_store_stands_still(owner, client, SLOW, redis_server)
    client.url = f"{other.base}/servers/demo/mcp"
    own = resumed_to_its_end(client, ids[-1])
    steps = [message["params"]["progress"] for _, message in own if message.get("method") == "notifications/progress"]
    assert steps == [*range(1, 16)], "only what it has not got"
    assert own[-1][1]["id"] == "call/5" and own[-1][1]["result"]["content"][0]["text"] == "done"
    assert resumed_to_its_end(client, ids[-1]) == own, "the same stream, with the same events"
    assert resumed_to_its_end(client, ids[0])[-len(own) :] == own
