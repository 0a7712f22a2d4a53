"""Batches of 2025-03-26: what their calls cause reaches the client, and comes back."""

import json
from typing import Any

import httpx

from tests.requirements import requirement
from tests.support.gateway_process import SCRIPTED, RunningGateway
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.stdio_client import Typed

PROGRESS = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@TOKEN,"progress":1}}'
LOG = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"a"}}'
ROOTS = '{"jsonrpc":"2.0","id":"mine","method":"roots/list"}'
DONE = '{"content":[{"type":"text","text":"done"}]}'


def say(number: Any, *lines: str, result: str | None = DONE) -> dict[str, Any]:
    arguments: dict[str, Any] = {"lines": list(lines)} | ({} if result is None else {"result": result})
    params = {"name": "say", "arguments": arguments, "_meta": {"progressToken": f"token {number}"}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def answer(number: Any, **outcome: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, **outcome}


@requirement("spec.batch", "spec.legacy")
def test_what_a_batched_call_causes_reaches_the_client_and_comes_back(
    scripted: RunningGateway, http: httpx.Client
) -> None:
    client = Legacy(scripted.at("legacy"), http, version="2025-03-26").open(capabilities={"roots": {}})
    finish = {"name": "answer", "arguments": {"result": DONE}}
    batch = [
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
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
                reply = answer(got[-1]["id"], result={"roots": [{"uri": "file:///a"}]})
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
    ping = {"jsonrpc": "2.0", "id": 11, "method": "ping"}
    write([ping, {**ping, "id": 12}])
    assert [message["id"] for message in client.read()] == [11, 12]
    write([ping, say(12, ROOTS, result=None)])
    first, asked = client.read(), client.read()
    assert first["id"] == 11 and asked["method"] == "roots/list"
    write([answer(asked["id"], result={"roots": []})])
    finish = {"name": "answer", "arguments": {"result": DONE}}
    write({"jsonrpc": "2.0", "id": 13, "method": "tools/call", "params": finish})
    assert sorted(message["id"] for message in (client.read(), client.read())) == [12, 13]
    assert client.end() == 0
