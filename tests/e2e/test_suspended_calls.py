"""Calls of modern clients to servers of the handshake era that ask something back, on one replica and on many."""

import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.upstreams import factory
from tests.requirements import requirement
from tests.support.gateway_process import (
    PROBE,
    UNLIMITED,
    RunningGateway,
    operators_of,
    replicas,
    running_gateway,
    server,
)
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import (
    RESTARTED,
    SESSION_KEY,
    Legacy,
    Modern,
    error_of,
    messages,
    result_of,
    tool_text,
    without_id,
)
from tests.support.redis_server import RunningRedis
from tests.support.stdio_server import tools
from tests.support.table_server import table_server
from tests.support.waiting import descendants, eventually

SERVERS = {"old": server((*PROBE, "legacy-only"))}
ACCEPT: Any = {"action": "accept", "content": {}}


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    """One server, so that its tools have the same names at both endpoints."""
    with in_process_gateway(SERVERS) as running:
        yield running


def asked(response: httpx.Response) -> Any:
    """The `input_required` result in an answer."""
    result = result_of(response)
    assert result["resultType"] == "input_required", result
    return result


def back(client: Modern, tool: str, arguments: Any, state: str, responses: Any, **more: Any) -> httpx.Response:
    params = {"name": tool, "arguments": arguments, "requestState": state, "inputResponses": responses}
    return client.send("tools/call", params, **more)


def answers_to(question: Any, answer: Any = ACCEPT) -> Any:
    return dict.fromkeys(question["inputRequests"], answer)


@requirement("spec.bridge", "spec.modern")
def test_a_call_goes_through_its_rounds_with_nothing_but_the_state(
    gateway: InProcessGateway, http: httpx.Client
) -> None:
    client, arguments = Modern(gateway.url, http), {"times": 3}
    question = asked(client.tool("ask_once", arguments))
    for number in range(3):
        (request,) = question["inputRequests"].values()
        assert request["method"] == "elicitation/create" and request["params"]["message"] == f"question {number}"
        answer = {"action": "accept", "content": {"n": number}}
        response = back(client, "ask_once", arguments, question["requestState"], answers_to(question, answer))
        question = result_of(response)
    assert [heard["content"]["n"] for heard in json.loads(tool_text(response))] == [0, 1, 2]


@requirement("spec.bridge", "id.purpose")
def test_a_round_is_good_once_for_its_request_and_its_principal(gateway: InProcessGateway, http: httpx.Client) -> None:
    client, arguments = Modern(gateway.url, http), {"times": 2}
    first = asked(client.tool("ask_once", arguments))
    state, responses = first["requestState"], answers_to(first)
    elsewhere = Modern(f"{gateway.base}/servers/old/mcp", http)
    for wrong in (
        back(elsewhere, "ask_once", arguments, state, responses),
        back(client, "ask_once", {"times": 1}, state, responses),
        back(client, "ask_again", arguments, state, responses),
        back(client, "ask_once", arguments, state[:-6] + "AAAAAA", responses),
    ):
        assert without_id(error_of(wrong))["data"] == {"reason": "invalid_request_state"}
    second = asked(back(client, "ask_once", arguments, state, responses))
    again = back(client, "ask_once", arguments, state, responses)
    assert without_id(error_of(again))["data"] == {"reason": "invalid_request_state"}, "it was used"
    done = back(client, "ask_once", arguments, second["requestState"], answers_to(second))
    assert len(json.loads(tool_text(done))) == 2


@requirement("wall.memory")
def test_calls_that_have_ended_are_not_kept_with_their_session(http: httpx.Client) -> None:
    """Their names are, for a while: a used round must not begin anew. Their arguments are not."""
    options = {"admin": {"listen": "127.0.0.1:0"}, "policy": UNLIMITED}
    with running_gateway(SERVERS, options=options) as gateway:
        first = asked(Modern(gateway.url, http).tool("ask_once"))
        headers = {"MCP-Gateway-Session": first["_meta"][SESSION_KEY]}
        client = Modern(gateway.url, http, headers=headers)
        back(client, "ask_once", {}, first["requestState"], answers_to(first))
        before = psutil.Process(gateway.pid).memory_info().rss
        arguments = {"times": 1, "x": "y" * 1_000_000}
        for _ in range(75):
            question = asked(client.tool("ask_once", arguments))
            assert tool_text(back(client, "ask_once", arguments, question["requestState"], answers_to(question)))
        grown = psutil.Process(gateway.pid).memory_info().rss - before
        text = http.get(f"{operators_of(gateway)}/metrics").text
        suspended = next(line for line in text.splitlines() if line.startswith("mcp_gateway_calls_parked"))
        assert float(suspended.split()[-1]) == 0, "nothing waits for its client"
        assert grown < 40 << 20


@requirement("rep.any", "rep.honest", "spec.bridge", "proc.reset-told")
def test_every_round_may_land_on_another_replica_also_when_the_owner_has_died(
    redis_server: RunningRedis, http: httpx.Client
) -> None:
    with replicas(redis_server.url, SERVERS, 3) as (owner, *others):
        first, second, third = (Modern(each.url, http) for each in (owner, *others))
        arguments = {"times": 3}
        response = first.tool("ask_once", arguments)
        for client in (second, third, first):
            question = asked(response)
            response = back(client, "ask_once", arguments, question["requestState"], answers_to(question))
        assert len(json.loads(tool_text(response))) == 3

        arguments = {"times": 2}
        lost = asked(first.tool("ask_once", arguments))
        repeatable = asked(first.tool("ask_again", arguments))
        again = asked(back(second, "ask_again", arguments, repeatable["requestState"], answers_to(repeatable)))
        assert {p.environ().get("MCP_SESSION_ID") for p in descendants(owner.pid)} - {None}, "it has the servers"
        owner.kill()
        answer = messages(back(third, "ask_once", arguments, lost["requestState"], answers_to(lost)))[-1]
        assert answer["error"]["code"] == -32014, "whether it took effect is unknown"
        done = back(third, "ask_again", arguments, again["requestState"], answers_to(again))
        assert len(json.loads(tool_text(done))) == 2, "both answers were given again, and nobody was asked"
        assert result_of(done)["_meta"][RESTARTED] == {"reason": "takeover"}


@requirement("wall.return")
@pytest.mark.parametrize("tool", ["ask_once", "want"])
def test_an_answer_brings_no_keys_of_the_gateway_to_a_server(
    gateway: InProcessGateway, probe: RunningGateway, http: httpx.Client, tool: str
) -> None:
    forged = {"io.github.mcp-session-gateway/context": {"trust": "direct"}, "com.example/own": 1}
    answer = {"action": "accept", "content": {}, "_meta": forged}
    client = Modern(probe.at("probe") if tool == "want" else gateway.url, http)
    question = asked(client.tool(tool))
    response = back(client, tool, {}, question["requestState"], answers_to(question, answer))
    assert '"com.example/own": 1' in tool_text(response) and "direct" not in tool_text(response)


# -- calls of handshake-era clients to 2026-07-28 servers that ask back: in flight, though the server has none of them


NEW = {"new": server((*PROBE, "modern-only"))}
LIMITS = {"call_timeout_s": 2.0}


@pytest.fixture(scope="module")
def timing() -> Iterator[InProcessGateway]:
    with in_process_gateway(NEW, options={"limits": LIMITS}) as running:
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
def client(timing: InProcessGateway, http: httpx.Client) -> Legacy:
    return Legacy(timing.url, http).open(capabilities={"elicitation": {}})


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
    assert eventually(lambda: json.loads(tool_text(client.tool("cancelled"))) == ["timed out"])


@requirement("spec.bridge", "spec.cancelled")
def test_a_question_ends_when_its_call_is_cancelled(client: Legacy) -> None:
    call = Call(client, "want", {"questions": 2})
    asked = [call.next(), call.next()]
    assert client.notify("notifications/cancelled", {"requestId": 77, "reason": "never mind"}).status_code == 202
    assert [call.next()["params"]["requestId"] for _ in asked] == [question["id"] for question in asked]
    assert call.next()["error"]["code"] == -32800
    assert call.next() is None
    assert eventually(lambda: json.loads(tool_text(client.tool("cancelled"))) == ["never mind"])
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


@requirement("spec.bridge", "spec.legacy")
def test_a_stream_that_waits_for_an_answer_is_looked_after_and_goes_on_where_it_was_left(http: httpx.Client) -> None:
    """Signs of life and polls come from the same look at calls in flight."""
    with in_process_gateway(NEW, options={"limits": {"poll_after_s": 0.5}}) as timing:
        client = Legacy(timing.url, http).open(capabilities={"elicitation": {}})
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


@requirement("spec.bridge")
def test_what_is_missing_is_asked_again(gateway: InProcessGateway, http: httpx.Client) -> None:
    client = Modern(gateway.url, http)
    arguments: dict[str, Any] = {}
    first = asked(client.tool("ask_once", arguments))
    again = asked(back(client, "ask_once", arguments, first["requestState"], {"something": ACCEPT}))
    assert again["inputRequests"] == first["inputRequests"]
    assert tool_text(back(client, "ask_once", arguments, again["requestState"], answers_to(again)))


@requirement("spec.bridge", "life.unconfirmed")
def test_a_client_that_never_comes_back_is_given_up(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "SUSPENDED_S", 1.5)
    with in_process_gateway(SERVERS, options={"session": {"unconfirmed_ttl_s": 1.0}}) as gateway:
        client = Modern(gateway.url, http)
        question = asked(client.tool("ask_once"))
        token = question["_meta"][SESSION_KEY]
        client = Modern(gateway.url, http, headers={"MCP-Gateway-Session": token})
        assert eventually(lambda: "did not send its answers" in tool_text(client.tool("cancelled")))
        late = messages(back(client, "ask_once", {}, question["requestState"], answers_to(question)))[-1]
        assert late["error"]["code"] == -32015, "the call has ended"


@requirement("spec.bridge")
def test_a_server_that_asks_for_too_much_at_once_is_refused(client: Legacy) -> None:
    refused = messages(client.tool("want", {"questions": 33}))[-1]
    assert "more than 32 inputs" in refused["error"]["message"]
