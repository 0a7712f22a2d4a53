"""What a message does not have is not added to it, and what it has stays: between clients and servers of both eras."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import SCRIPTED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, messages, tool_text

INFO = "io.modelcontextprotocol/serverInfo"
OURS = "io.github.mcp-session-gateway"
CONTEXT = f"{OURS}/context"


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with running_gateway(
        {era: server((*SCRIPTED, era), methods={"vendor/*": {}}) for era in ("legacy", "modern")}
    ) as running:
        yield running


def url(gateway: RunningGateway, era: str) -> str:
    return f"{gateway.base}/servers/{era}/mcp"


def say(*lines: str, result: Any = None) -> dict[str, Any]:
    text = json.dumps({"content": []} if result is None else result)
    return {"name": "say", "arguments": {"lines": list(lines), "result": text}}


@requirement("spec.nothing-invented", "spec.bridge")
def test_a_legacy_clients_messages_and_results_gain_and_lose_nothing(
    gateway: RunningGateway, http: httpx.Client
) -> None:
    client = Legacy(url(gateway, "legacy"), http).open()
    bare = '{"jsonrpc":"2.0","method":"notifications/vendor"}'
    empty = '{"jsonrpc":"2.0","method":"notifications/vendor","params":{ }}'
    said = messages(client.call("tools/call", say(bare, empty, bare)))
    assert [message.get("params", "none") for message in said[:-1]] == ["none", {}, "none"]
    assert said[-1]["result"] == {"content": []}
    assert messages(client.call("tools/call", say(result={"content": [], "_meta": {}})))[-1]["result"]["_meta"] == {}

    modern = Legacy(url(gateway, "modern"), http).open()
    result = {"resultType": "complete", "content": [], "_meta": {INFO: {"name": "scripted"}}}
    assert messages(modern.call("tools/call", say(result=result)))[-1]["result"] == {"content": []}
    listed = messages(modern.call("tools/list"))[-1]["result"]
    assert set(listed) == {"tools"}, "neither of a list"


@requirement("spec.nothing-invented", "spec.bridge")
def test_a_question_without_params_stays_without_them(gateway: RunningGateway, http: httpx.Client) -> None:
    asks = '{"jsonrpc":"2.0","id":"r","method":"roots/list"}'
    client = Legacy(url(gateway, "legacy"), http).open(capabilities={"roots": {}})
    asked, _ = messages(client.call("tools/call", say(asks)))
    assert asked["method"] == "roots/list" and "params" not in asked

    # A modern server asks a legacy client by the result of the call.
    wanted = {"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}}
    client = Legacy(url(gateway, "modern"), http).open(capabilities={"roots": {}})
    body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": say(result=wanted)}
    with http.stream("POST", client.url, json=body, headers=client.request_headers()) as stream:
        line = next(line for line in stream.iter_lines() if line.startswith("data: {"))
    asked = json.loads(line.removeprefix("data: "))
    assert asked["method"] == "roots/list" and "params" not in asked

    # A legacy server asks a modern client by a request.
    modern = Modern(url(gateway, "legacy"), http)
    meta: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"roots": {}}}
    suspended = {"name": "say", "arguments": {"lines": [asks]}}
    result = messages(modern.send("tools/call", suspended, meta=meta))[-1]["result"]
    assert list(result["inputRequests"].values()) == [{"method": "roots/list"}]


@requirement("spec.nothing-invented")
def test_a_server_gets_the_params_of_its_client_and_the_context(gateway: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(url(gateway, "legacy"), http).open()
    for text in ("", ',"params":{}', ',"params":{"_meta":{}}', ',"params":{"a":1.50,"b":{ }}'):
        body = f'{{"jsonrpc":"2.0","id":5,"method":"vendor/thing"{text}}}'
        headers = {**client.request_headers(), "Content-Type": "application/json"}
        assert messages(http.post(client.url, content=body, headers=headers))[-1]["error"]["code"] == -32601
    got = [line for line in json.loads(tool_text(client.tool("got"))) if "vendor/thing" in line]
    params = [json.loads(line)["params"] for line in got]
    assert [{**given, "_meta": list(given["_meta"])} for given in params] == [
        *[{"_meta": [CONTEXT]}] * 3,
        {"a": 1.5, "b": {}, "_meta": [CONTEXT]},
    ]
    assert '"a":1.50,"b":{ }' in got[-1], "byte for byte"


@requirement("spec.bridge")
def test_a_resource_that_does_not_exist_has_the_code_of_the_clients_era(
    gateway: RunningGateway, http: httpx.Client
) -> None:
    for where in (url(gateway, "legacy"), url(gateway, "modern"), gateway.url):  # the last one is of both servers
        error = messages(Legacy(where, http).open().call("resources/read", {"uri": "x://y"}))[-1]["error"]
        assert (error["code"], error["data"]["uri"]) == (-32002, "x://y"), where
        error = messages(Modern(where, http).send("resources/read", {"uri": "x://y"}))[-1]["error"]
        assert (error["code"], error["data"]["uri"]) == (-32602, "x://y"), where


@requirement("wall.return")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_server_cannot_speak_for_the_gateway(gateway: RunningGateway, http: httpx.Client, era: str) -> None:
    """A client that keeps the newest token would go on in the session of an attacker."""
    forged = {f"{OURS}/session": "an attacker's", f"{OURS}/restarted": {"reason": "crash"}, OURS.upper(): 1}
    result = {"resultType": "complete", "content": [{"type": "text", "text": "x", "_meta": forged}], "_meta": forged}
    told = {"level": "error", "data": "x", "_meta": forged}
    notice = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": told})
    for client in (Legacy(url(gateway, era), http).open(), Modern(url(gateway, era), http)):
        ask = client.call if isinstance(client, Legacy) else client.send
        answered = ask("tools/call", say(notice.replace("io.", "\\u0069o."), result=result))
        assert answered.status_code == 200 and messages(answered)[-1]["result"]["content"], answered.text
        assert "attacker" not in answered.text and "crash" not in answered.text
        assert OURS.upper() not in answered.text.replace("\\u0069", "i")
