"""Calls of handshake-era clients to 2026-07-28 servers that ask back: in flight, though the server has none of them."""

import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, messages, tool_text
from tests.support.waiting import eventually

SERVERS = {"new": server((*PROBE, "modern-only"))}
LIMITS = {"call_timeout_s": 2.0}


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    with in_process_gateway(SERVERS, options={"limits": LIMITS}) as running:
        yield running


class Call:
    """A call under way: its events, as they come; None when its stream has ended."""

    def __init__(self, client: Legacy, tool: str, arguments: Any = None) -> None:
        self._client = client
        self._body = {"jsonrpc": "2.0", "id": 77, "method": "tools/call"}
        self._body["params"] = {"name": tool, "arguments": arguments or {}}
        self._events: queue.Queue[tuple[str, Any] | None] = queue.Queue()
        self.last_id = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        headers = self._client.request_headers()
        with httpx.Client(timeout=30) as http, contextlib.suppress(httpx.HTTPError):
            with http.stream("POST", self._client.url, json=self._body, headers=headers) as response:
                for event in read(response):
                    self._events.put(event)
        self._events.put(None)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come that was not asked for with `next`."""
        return self._events.empty()

    def next(self) -> Any:
        """The next message; None at the end."""
        event = self._events.get(timeout=10)
        while event is not None and not event[1]:
            self.last_id, event = event[0], self._events.get(timeout=10)
        if event is None:
            return None
        self.last_id = event[0]
        return event[1]


def read(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """(id, message) of each event; the message of a priming event is None."""
    event_id = ""
    for line in response.iter_lines():
        if line.startswith("id: "):
            event_id = line[4:]
        elif line.startswith("data:"):
            yield event_id, json.loads(line[5:]) if line[5:].strip() else None


@pytest.fixture
def client(gateway: InProcessGateway, http: httpx.Client) -> Legacy:
    return Legacy(gateway.url, http).open(capabilities={"elicitation": {}})


def answer(client: Legacy, question: Any) -> None:
    told = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}}}
    assert client.post(told).status_code == 202


@requirement("spec.bridge", "rep.honest")
def test_a_client_that_does_not_answer_hears_of_its_deadline_and_so_does_the_server(client: Legacy) -> None:
    call = Call(client, "want")
    question = call.next()
    assert question["method"] == "elicitation/create"
    withdrawn, error = call.next(), call.next()
    assert withdrawn["method"] == "notifications/cancelled" and withdrawn["params"]["requestId"] == question["id"]
    assert (
        error["id"] == 77 and error["error"]["code"] == -32015 and "client did not answer" in error["error"]["message"]
    )
    assert call.next() is None, "the stream ends"
    assert eventually(lambda: json.loads(tool_text(client.tool("cancelled"))) == ["timed out"], 5)


@requirement("spec.bridge", "life.end")
def test_a_question_ends_with_its_session(client: Legacy) -> None:
    calls = [Call(client, "want"), Call(client, "want", {"questions": 3})]
    assert [call.next()["method"] for call in calls] == ["elicitation/create"] * 2
    assert client.delete().status_code == 200
    for call in calls:
        heard = []
        while (message := call.next()) is not None:
            heard.append(message)
        assert heard[-1]["id"] == 77 and "session has ended" in heard[-1]["error"]["message"]


@requirement("spec.bridge", "spec.cancelled")
def test_a_question_ends_when_its_call_is_cancelled(client: Legacy) -> None:
    call = Call(client, "want", {"questions": 2})
    asked = [call.next(), call.next()]
    assert client.notify("notifications/cancelled", {"requestId": 77, "reason": "never mind"}).status_code == 202
    assert [call.next()["params"]["requestId"] for _ in asked] == [question["id"] for question in asked]
    assert call.next()["error"]["code"] == -32800
    assert call.next() is None
    assert eventually(lambda: json.loads(tool_text(client.tool("cancelled"))) == ["never mind"], 5)
    answer(client, asked[0])  # too late: taken, and without effect
    assert json.loads(tool_text(client.tool("echo", {"a": 1}))) == {"a": 1}


@requirement("spec.bridge", "proc.crash")
def test_a_server_that_dies_while_its_question_is_open_is_started_again_for_the_answer(client: Legacy) -> None:
    call = Call(client, "want", {"rounds": 2})
    question = call.next()
    crash = client.tool("crash")
    assert "whether the call took effect is unknown" in crash.text
    answer(client, question)
    second = call.next()
    assert second["params"]["message"] == "question 1"
    answer(client, second)
    assert json.loads(call.next()["result"]["content"][0]["text"])["q0"]["action"] == "accept"


@requirement("spec.bridge")
def test_a_server_that_asks_for_too_much_at_once_is_refused(client: Legacy) -> None:
    refused = messages(client.tool("want", {"questions": 33}))[-1]
    assert "more than 32 inputs" in refused["error"]["message"]


@requirement("spec.bridge", "spec.legacy")
def test_a_stream_that_waits_for_an_answer_is_looked_after_and_goes_on_where_it_was_left(http: httpx.Client) -> None:
    """Signs of life and polls come from the same look at calls in flight."""
    with in_process_gateway(SERVERS, options={"limits": {"poll_after_s": 0.5}}) as gateway:
        client = Legacy(gateway.url, http).open(capabilities={"elicitation": {}})
        call = Call(client, "want", {"rounds": 2})
        question = call.next()
        assert call.next() is None, "its connection is closed, for the client to poll"
        with client.get(call.last_id) as rest:
            events = read(rest)
            answer(client, question)
            second = next(events)[1]
            assert second["params"]["message"] == "question 1"
            answer(client, second)
            assert next(events)[1]["id"] == 77
