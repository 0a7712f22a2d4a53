"""Silent calls of legacy clients: when their event stream begins, and what becomes of the result if it is cut."""

import contextlib
import json
from time import monotonic
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.legacy_task_client import Tasks
from tests.support.mcp_clients import Legacy, Modern, events, tool_text
from tests.support.redis_server import RunningRedis

SIGNING = {"MCP_GATEWAY_KEYS": "k" * 40}
SERVERS = {"probe": server(PROBE)}


def cut_call(client: Legacy, seconds: float, *, task: str = "") -> tuple[str, float]:
    """A silent call, or the wait for that task, whose connection is cut after the first event: the id of that event,
    and when it came."""
    params = {"taskId": task} if task else {"name": "sleep", "arguments": {"seconds": seconds}}
    method = "tasks/result" if task else "tools/call"
    body = {"jsonrpc": "2.0", "id": 5, "method": method, "params": params}
    began = monotonic()
    with httpx.Client(timeout=20) as own:
        with own.stream("POST", client.url, json=body, headers=client.request_headers()) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            text = ""
            for chunk in response.iter_text():
                text += chunk
                if "\n\n" in text:
                    break
            after_s = monotonic() - began
    event_id, data = next(events(text))
    assert event_id and data == "", "a priming event"
    return event_id, after_s


def fetched(client: Legacy, event_id: str) -> Any:
    with client.get(last_event_id=event_id) as resumed:
        assert resumed.status_code == 200
        return json.loads(list(events("".join(resumed.iter_text())))[-1][1])


@requirement("spec.priming", "rep.any")
def test_the_result_of_a_cut_silent_call_is_fetched_from_any_replica(
    redis_server: RunningRedis, http: httpx.Client
) -> None:
    with contextlib.ExitStack() as stack:
        options = {"store": redis_server.url}
        one, two = (stack.enter_context(running_gateway(SERVERS, options=options, env=SIGNING)) for _ in range(2))
        client = Legacy(one.url, http).open()
        assert tool_text(client.tool("pid"))
        event_id, after_s = cut_call(client, 2.0)
        assert after_s > 0.9, "after a second"
        client.url = two.url
        for _ in range(2):  # while the call is running, and afterwards
            answer = fetched(client, event_id)
            assert answer["id"] == 5 and answer["result"]["content"][0]["text"] == "slept"
        quick = client.tool("pid")
        assert quick.headers["content-type"] == "application/json", "no stream where there is an answer"

        old = Legacy(one.url, http, version="2025-06-18").open()
        for slow in (old.tool("sleep", {"seconds": 1.4}), Modern(one.url, http).tool("sleep", {"seconds": 1.4})):
            assert slow.headers["content-type"] == "application/json" and tool_text(slow) == "slept"


@requirement("spec.priming")
@pytest.mark.parametrize("after_s", [0, None])
def test_a_stream_begins_at_once_or_not_before_a_message(after_s: float | None, http: httpx.Client) -> None:
    with in_process_gateway(SERVERS, options={"limits": {"priming_after_s": after_s}}) as gateway:
        client = Legacy(gateway.url, http).open()
        assert tool_text(client.tool("pid"))
        if after_s is None:
            assert client.tool("sleep", {"seconds": 1.4}).headers["content-type"] == "application/json"
        else:
            event_id, came_s = cut_call(client, 2.0)
            assert came_s < 1.8 and fetched(client, event_id)["id"] == 5
            assert tool_text(client.tool("pid")), "a quick one too"


@requirement("spec.priming", "task.asked")
def test_the_wait_for_a_task_is_resumed_as_any_call_and_each_wait_has_its_own_stream(
    tasked: RunningGateway, http: httpx.Client
) -> None:
    client = Tasks(tasked.at("legacy"), http, headers=bearer(KEYS["alice"]))
    cut: dict[str, str] = {}
    for job in ("one", "two"):
        task = client.begin("work", job=job, seconds=2.0)["taskId"]
        cut[job], after_s = cut_call(client.client, 0.0, task=task)
        assert 0.9 < after_s < 1.9, "after a second, and not with the result"
    for job, event_id in cut.items():
        assert fetched(client.client, event_id)["result"]["content"][0]["text"] == f"done {job}"
        with client.client.get(last_event_id=event_id) as resumed:
            told = [json.loads(data) for _, data in events("".join(resumed.iter_text())) if data]
        assert [message["id"] for message in told if "id" in message] == [5], "though both have the same id"
