"""Batches of 2025-03-26: each message is answered on its own, and what calls cause reaches the client."""

import json
from typing import Any

import httpx
import psutil
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer
from tests.support.gateway_process import SCRIPTED, RunningGateway
from tests.support.mcp_clients import ACCEPT, Legacy, tool_text
from tests.support.stdio_client import Typed

PROGRESS = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@TOKEN,"progress":1}}'
LOG = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"a"}}'
ROOTS = '{"jsonrpc":"2.0","id":"mine","method":"roots/list"}'
DONE = '{"content":[{"type":"text","text":"done"}]}'


def say(number: Any, *lines: str, result: str | None = DONE) -> dict[str, Any]:
    arguments: dict[str, Any] = {"lines": list(lines)} | ({} if result is None else {"result": result})
    params = {"name": "say", "arguments": arguments, "_meta": {"progressToken": f"token {number}"}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


@requirement("spec.batch", "spec.legacy")
def test_what_a_batched_call_causes_reaches_the_client_and_comes_back(
    scripted: RunningGateway, http: httpx.Client
) -> None:
    client = Legacy(scripted.at("legacy"), http, version="2025-03-26").open(capabilities={"roots": {}})
    finish = {"name": "answer", "arguments": {"result": DONE}}
    batch = [
        ping(1),
        say(2, PROGRESS, LOG, ROOTS, result=None),
        {"jsonrpc": "2.0", "id": 3, "method": "no/such"},
        {"jsonrpc": "2.0"},
    ]
    got: list[Any] = []
    with http.stream("POST", client.url, json=batch, headers=client.request_headers()) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        for line in stream.iter_lines():
            assert not line.startswith("id:")
            if not line.startswith("data: "):
                continue
            got.append(json.loads(line[6:]))
            if got[-1].get("method") == "roots/list":
                # The answer of the client is a batch of its own, with the call that lets the server go on.
                reply = {"jsonrpc": "2.0", "id": got[-1]["id"], "result": {"roots": [{"uri": "file:///a"}]}}
                finishing = {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": finish}
                assert [done["id"] for done in client.post([reply, finishing]).json()] == [4]
    said = [message for message in got if "method" in message]
    assert [message["method"] for message in said] == ["notifications/progress", "notifications/message", "roots/list"]
    assert said[0]["params"]["progressToken"] == "token 2"
    answers = {message["id"]: message for message in got if "method" not in message}
    assert answers[1]["result"] == {} and answers[2]["result"]["content"][0]["text"] == "done"
    assert (answers[3]["error"]["code"], answers[None]["error"]["code"]) == (-32601, -32600)
    sent = [json.loads(line) for line in json.loads(tool_text(client.tool("got")))]
    assert [message["result"]["roots"][0]["uri"] for message in sent if message.get("id") == "mine"] == ["file:///a"]


@requirement("spec.batch", "ctx.stdio-front")
def test_a_batch_on_stdin_is_answered() -> None:
    client = Typed(child=[*SCRIPTED, "legacy"])

    def write(message: Any) -> None:
        client.write(json.dumps(message).encode())

    answered = client.initialize(protocolVersion="2025-03-26", capabilities={"roots": {}})
    assert answered["result"]["protocolVersion"] == "2025-03-26"
    write([ping(11), ping(12)])
    assert [message["id"] for message in client.read()] == [11, 12]
    write([ping(11), say(12, ROOTS, result=None)])
    first, asked = client.read(), client.read()
    assert first["id"] == 11 and asked["method"] == "roots/list"
    write([{"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}}])
    finish = {"name": "answer", "arguments": {"result": DONE}}
    write({"jsonrpc": "2.0", "id": 13, "method": "tools/call", "params": finish})
    assert sorted(message["id"] for message in (client.read(), client.read())) == [12, 13]
    assert client.end() == 0


@requirement("spec.legacy")
def test_a_batch_is_taken_in_2025_03_26_and_refused_later(demo: RunningGateway, http: httpx.Client) -> None:
    batch = [
        ping(1),
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
        {"jsonrpc": "2.0", "id": "two", "method": "tools/call", "params": {"name": "count"}},
        {"jsonrpc": "2.0", "id": 3, "method": "no/such/method"},
    ]
    old = Legacy(demo.url, http, version="2025-03-26").open()
    answers = {m["id"]: m for m in old.post(batch).json()}
    assert answers[1]["result"] == {} and answers[3]["error"]["code"] == -32601
    assert answers["two"]["result"]["content"][0]["text"] == "1"
    assert old.post(batch[1:2]).status_code == 202
    assert old.post([]).status_code == 400
    unsaid = {name: value for name, value in old.request_headers().items() if name != "MCP-Protocol-Version"}
    assert http.post(demo.url, json=batch[:1], headers=unsaid).json()[0]["result"] == {}
    for version in ("2024-11-05", "2025-06-18", "2025-11-25"):
        new = Legacy(demo.url, http, version=version).open()
        refused = new.post(batch)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32600)
        claimed = new.post(batch, headers={"MCP-Protocol-Version": "2025-03-26"})
        assert claimed.status_code == 400, "it did not negotiate that"
        unsaid["Mcp-Session-Id"] = new.session
        assert http.post(demo.url, json=batch[:1], headers=unsaid).status_code == 400
    assert http.post(demo.url, json=batch[:1], headers=ACCEPT).status_code == 400, "no session"


@pytest.fixture
def old(keyed: RunningGateway, http: httpx.Client) -> Legacy:
    """Has a session at the probe; of a result no more than 16 MiB is passed on."""
    return Legacy(keyed.at("probe"), http, version="2025-03-26", headers=bearer(KEYS["alice"])).open()


def ping(number: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "ping"}


def call(number: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


@requirement("wall.before-auth")
def test_a_batch_that_is_too_long_is_refused_before_any_of_it_is_read_or_done(
    old: Legacy, keyed: RunningGateway
) -> None:
    assert len(old.post([ping(number) for number in range(64)]).json()) == 64
    for size in (65, 85_000):
        work = [call("first", "state", touched="yes"), *(ping(number) for number in range(size - 1))]
        began = psutil.Process(keyed.pid).cpu_times()
        refused = old.post(work)
        ended = psutil.Process(keyed.pid).cpu_times()
        took_s = ended.user + ended.system - began.user - began.system
        assert refused.status_code == 400 and "64 messages at most" in refused.json()["error"]["message"]
        assert took_s < 1
    assert json.loads(tool_text(old.tool("state"))) == {}, "nothing of it was done"


@requirement("wall.before-auth")
def test_nothing_of_a_batch_is_done_for_somebody_who_may_not_send_it(old: Legacy) -> None:
    work = [ping(1), call(2, "state", touched="yes")]
    for wrong, status in (
        ({"Authorization": "Bearer nobody"}, 401),
        ({"Mcp-Session-Id": "x" * 22 + "." + "y" * 43}, 404),
    ):
        assert old.post(work, headers=wrong).status_code == status
    assert json.loads(tool_text(old.tool("state"))) == {}


@requirement("wall.before-auth", "spec.legacy")
def test_each_message_of_a_batch_is_answered_on_its_own(old: Legacy) -> None:
    mixed: list[Any] = [
        ping(1),
        7,
        [ping(2)],
        {"jsonrpc": "2.0", "id": 3, "method": "ping", "params": [1]},
        {"jsonrpc": "1.0", "id": 4, "method": "ping"},
        {"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": {}},
        call(6, "state", touched="yes"),
        call("n" * 2_000, "echo"),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}},
        {"jsonrpc": "2.0", "id": 9, "result": {}},
        call(8, "echo", a=1),
        {**ping(10), "params": {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}},
    ]
    answer = old.post(mixed)
    assert answer.status_code == 200
    answers = answer.json()
    good = {m["id"]: m["result"] for m in answers if "result" in m}
    bad = [m["id"] for m in answers if "error" in m]
    assert good.keys() == {1, 6, 8} and json.loads(good[8]["content"][0]["text"]) == {"a": 1}
    assert sorted(map(str, bad)) == ["10", "3", "4", "5", "None", "None", "None"]
    assert json.loads(tool_text(old.tool("state"))) == {"touched": "yes"}
