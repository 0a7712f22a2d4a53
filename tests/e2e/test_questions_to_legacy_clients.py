"""Calls of handshake-era clients to 2026-07-28 servers that ask back: in flight, though the server has none of them."""

import contextlib
import json
import queue
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import SESSION_KEY, Legacy, Modern, messages, result_of, tool_text
from tests.support.stdio_server import tools
from tests.support.table_server import table_server
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
    client.reply(question, result={"action": "accept", "content": {}})


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


# -- what a server that asks and asks can make the gateway keep for a client that does not answer


ROOTS = {"jsonrpc": "2.0", "method": "roots/list"}
ASKING = {
    "era": "legacy",
    "answers": {
        "tools/list": tools("go"),
        "tools/call": [
            *(["send", ROOTS | {"id": f"{number}" + "x" * 2_000}] for number in range(300)),
            ["send", ROOTS | {"id": "short", "params": {"_meta": {"progressToken": "t" * 2_000, "kept": 1}}}],
            ["send", ROOTS | {"id": "last", "params": {"_meta": {"progressToken": "t"}}}],
            {"content": []},
        ],
    },
}


@requirement("wall.memory")
def test_questions_with_long_ids_are_not_kept(http: httpx.Client, tmp_path: Path) -> None:
    """They wait for as long as the session lives, and 256 of them may."""
    table = tmp_path / "asking.json"
    table.write_text(json.dumps(ASKING), encoding="utf-8")
    with in_process_gateway({"asking": table_server(table)}) as running:
        client = Legacy(running.url, http).open()
        *asked, answer = messages(client.call("tools/call", {"name": "go", "arguments": {}}))
        assert "result" in answer
        long_token, short_token = (question["params"]["_meta"] for question in asked)
        assert long_token == {"kept": 1}
        assert set(short_token) == {"progressToken"}


UNCLEAR = """
import json, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

calls, answers = [], {}
for line in sys.stdin:
    heard = json.loads(line)
    if heard.get("method") == "initialize":
        about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        say(id=heard["id"], result={**about, "serverInfo": {"name": "unclear", "version": "1"}})
    elif heard.get("method") == "tools/list":
        say(id=heard["id"], result={"tools": [{"name": "go", "inputSchema": {"type": "object"}}]})
    elif heard.get("method") == "tools/call" and not heard["params"].get("arguments"):
        say(id=heard["id"], result={"content": []})
    elif heard.get("method") == "tools/call":
        calls.append(heard["id"])
        if len(calls) == 2:
            say(id="unreadable", method="elicitation/create", params=[1])
            for number in range(40):
                say(id=number, method="roots/list")
    elif "method" in heard and "id" in heard:
        say(id=heard["id"], error={"code": -32601, "message": "Method not found"})
    elif "error" in heard:
        answers[heard["id"]] = heard["error"]["message"]
        if len(answers) == 41:
            for call in calls:
                say(id=call, result={"content": [{"type": "text", "text": json.dumps(list(answers.values()))}]})
"""


@requirement("wall.memory", "spec.bridge")
def test_what_may_belong_to_one_of_two_calls_waits_in_a_bounded_number_and_is_answered(
    http: httpx.Client, tmp_path: Path
) -> None:
    """A modern client's calls: which one a server's question belongs to, is not said on stdio."""
    script = tmp_path / "unclear.py"
    script.write_text(UNCLEAR, encoding="utf-8")
    options = {"limits": {"call_timeout_s": 4}}
    with in_process_gateway({"unclear": server((sys.executable, str(script)))}, options=options) as running:
        token = result_of(Modern(running.url, http).tool("go"))["_meta"][SESSION_KEY]
        client = Modern(running.url, http, headers={"MCP-Gateway-Session": token})
        with ThreadPoolExecutor(2) as pool:
            said = list(pool.map(lambda number: tool_text(client.tool("go", {"n": number}, request_id=number)), (1, 2)))
    told = json.loads(said[0])
    assert sum("cannot be read" in text for text in told) == 1, "at once: it takes no place among those that wait"
    assert sum("wait for other calls" in text for text in told) == 8
    assert sum("not declared" in text for text in told) == 32
