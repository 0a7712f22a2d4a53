"""What a client has to do on stdio, seen by servers of both eras that write everything down."""

import json
import threading
from typing import Any

import httpx
import pytest

from tests.conformance.letter.conftest import Letter
from tests.conformance.letter.test_http_endpoint import line
from tests.requirements import requirement
from tests.support.mcp_clients import Legacy, Modern, error_of, events, tool_text
from tests.support.recording_server import messages_of, record_of
from tests.support.waiting import eventually

pytestmark = requirement("spec.letter")

SPEC = "io.modelcontextprotocol/"
TEXT = {"text": "one\ntwo\r\u2028three \u4e16\u754c"}


def called(letter: Letter, name: str, tool: str, arguments: Any = None) -> list[Any]:
    """The calls of a tool that a server got: all, or those with these arguments."""
    sent = messages_of(letter.record(name))
    calls = [m for m in sent if m.get("method") == "tools/call" and m["params"]["name"] == tool]
    return [m for m in calls if arguments is None or m["params"]["arguments"] == arguments]


@pytest.mark.parametrize("name", ["new", "old"])
def test_each_line_to_a_server_is_one_message(letter: Letter, http: httpx.Client, name: str) -> None:
    client = Modern(letter.url(name), http)
    assert json.loads(tool_text(client.tool("echo", TEXT))) == TEXT
    raw = [entry["line"] for entry in record_of(letter.record(name)) if entry["from"] == "client"]
    for text in raw:
        assert text.endswith("\n") and text.count("\n") == 1 and "\r" not in text
        message = json.loads(text.encode("latin-1").decode("utf-8"))
        assert message["jsonrpc"] == "2.0" and (message.keys() & {"method", "result", "error"})
        assert "id" not in message or isinstance(message["id"], int | str)


@pytest.mark.parametrize("name", ["new", "old"])
def test_ids_and_progress_tokens_of_requests_to_one_process_differ(
    letter: Letter, http: httpx.Client, name: str
) -> None:
    token = Modern(letter.url(name), http).tool("pid").headers["mcp-gateway-session"]
    client = Modern(letter.url(name), http, headers={"MCP-Gateway-Session": token})
    for _ in range(3):
        client.tool("echo", {"marked": name}, meta={"progressToken": "same"}, request_id="same")
    sent = called(letter, name, "echo", {"marked": name})
    tokens = [m["params"]["_meta"]["progressToken"] for m in sent]
    assert len({m["id"] for m in sent}) == len(sent) == 3 and len(set(tokens)) == 3
    assert all(type(token) in (int, str) for token in tokens)


def test_every_request_to_a_modern_server_says_who_asks_and_in_which_version(
    letter: Letter, http: httpx.Client
) -> None:
    Modern(letter.url("new"), http).tool("pid")
    Legacy(letter.url("new"), http).open(capabilities={"roots": {}}).tool("pid")
    requests = [m for m in messages_of(letter.record("new")) if "id" in m and "method" in m]
    assert {"server/discover", "tools/list", "tools/call"} <= {m["method"] for m in requests}
    for message in requests:
        if message["method"] == "initialize":
            continue  # the trial whether it speaks the other era too
        meta = message["params"]["_meta"]
        assert meta[f"{SPEC}protocolVersion"] == "2026-07-28" and meta[f"{SPEC}clientInfo"]["name"]
        assert isinstance(meta[f"{SPEC}clientCapabilities"], dict)


def test_discovery_comes_first_and_a_legacy_server_gets_the_handshake(letter: Letter, http: httpx.Client) -> None:
    Legacy(letter.url("old"), http).open().tool("pid")
    firsts, sequences = set(), []
    for path in letter.records("old"):
        methods = [m.get("method") for m in messages_of(path)]
        firsts.add(methods[0])
        if methods[0] == "initialize":
            sequences.append(methods[:2])
    assert firsts == {"server/discover", "initialize"}
    assert sequences and all(seen == ["initialize", "notifications/initialized"] for seen in sequences)
    probe = next(m for m in messages_of(letter.record("old")) if m.get("method") == "server/discover")
    assert probe["params"]["_meta"][f"{SPEC}protocolVersion"] == "2026-07-28"
    hello = next(m for m in messages_of(letter.record("old")) if m.get("method") == "initialize")
    assert hello["params"]["protocolVersion"] == "2025-11-25" and hello["params"]["clientInfo"]["version"]


@pytest.mark.parametrize("name", ["new", "old"])
def test_a_client_that_leaves_cancels_its_call_and_no_other(letter: Letter, http: httpx.Client, name: str) -> None:
    token = Modern(letter.url(name), http).tool("pid").headers["mcp-gateway-session"]
    client = Modern(letter.url(name), http, headers={"MCP-Gateway-Session": token})
    left = {"marked": "left"}
    with client.leaving("hang", left):
        assert eventually(lambda: bool(called(letter, name, "hang", left)))
    (call,) = called(letter, name, "hang", left)

    def cancelled() -> list[Any]:
        (of_its_process,) = (sent for path in letter.records(name) if call in (sent := messages_of(path)))
        told = [m["params"] for m in of_its_process if m.get("method") == "notifications/cancelled"]
        return [(params["requestId"], params["reason"]) for params in told]

    once = [(call["id"], "the client disconnected")]
    assert eventually(lambda: cancelled() == once)
    assert tool_text(client.tool("echo", {"a": 1})) == '{"a": 1}'
    assert cancelled() == once, "none for a call that has been answered"


def test_what_a_server_says_of_a_call_that_was_cancelled_is_ignored(letter: Letter, http: httpx.Client) -> None:
    url = letter.url("old")
    client = Legacy(url, http).open()
    body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "sleep", "arguments": {"seconds": 1}}}
    answers: list[Any] = []
    with httpx.Client(timeout=20) as other:
        thread = threading.Thread(target=lambda: answers.append(other.post(url, json=body, headers=headers)))
        headers = client.request_headers()
        thread.start()
        assert eventually(lambda: bool(called(letter, "old", "sleep")))
        assert client.notify("notifications/cancelled", {"requestId": 5, "reason": "enough"}).status_code == 202
        thread.join(10)
    assert error_of(answers[0])["message"] == "Request cancelled"
    for unknown in ({"requestId": 5}, {"requestId": "never"}, {"requestId": [1]}, {}):
        assert client.notify("notifications/cancelled", unknown).status_code in (202, 400)
    assert json.loads(tool_text(client.tool("cancelled"))) == ["enough"], "it was told once"
    assert tool_text(client.tool("sleep", {"seconds": 1.2})) == "slept", "the late answer is of nobody"


def test_a_state_goes_back_as_it_came_with_a_new_id_and_with_nothing_else(letter: Letter, http: httpx.Client) -> None:
    """A legacy client's call to a modern server: the gateway is the client of the retry."""
    client = Legacy(letter.url("new"), http).open(capabilities={"elicitation": {}})
    arguments = {"rounds": 2, "marked": "state"}
    body = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "want", "arguments": arguments}}
    with http.stream("POST", client.url, json=body, headers=client.request_headers()) as stream:
        text, chunks = "", stream.iter_text()
        for round_ in range(2):
            while text.count("elicitation/create") <= round_:
                text += next(chunks)
            asked = [json.loads(data) for _, data in events(text) if "elicitation/create" in data][-1]
            if round_ == 0:
                with httpx.Client(timeout=20) as beside:
                    other = Legacy(client.url, beside)
                    other.session = client.session
                    other.tool("echo", {"marked": "beside"})
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"n": round_}}}
            assert client.post(answer).status_code == 202
        text += "".join(chunks)
    sent = [m for m in called(letter, "new", "want") if m["params"]["arguments"] == arguments]
    assert [m["params"].get("requestState") for m in sent] == [None, "1", "2"]
    assert "inputResponses" not in sent[0]["params"] and len({m["id"] for m in sent}) == 3
    assert [m["params"]["inputResponses"]["q0"]["content"]["n"] for m in sent[1:]] == [0, 1]
    (beside_it,) = [m for m in called(letter, "new", "echo") if m["params"]["arguments"] == {"marked": "beside"}]
    assert not beside_it["params"].keys() & {"requestState", "inputResponses"}


def test_without_a_state_none_goes_back(letter: Letter, http: httpx.Client) -> None:
    client = Legacy(letter.url("new"), http).open(capabilities={"elicitation": {}})
    asked = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
    result = {"resultType": "input_required", "inputRequests": {"q": {"method": "elicitation/create", "params": asked}}}
    params = {"name": "broken", "arguments": line(id="ID", result=result)}
    body = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}
    with http.stream("POST", client.url, json=body, headers=client.request_headers()) as stream:
        text, chunks = "", stream.iter_text()
        while text.count("elicitation/create") < 2:
            text += next(chunks)
            if text.count("elicitation/create") == 1:
                question = next(json.loads(data) for _, data in events(text) if "elicitation/create" in data)
                answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}}}
                assert client.post(answer).status_code == 202
        client.notify("notifications/cancelled", {"requestId": 3})
    again = [m["params"] for m in called(letter, "new", "broken") if "inputResponses" in m["params"]]
    assert again and not any("requestState" in params for params in again)
