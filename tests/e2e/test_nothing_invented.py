"""What a message does not have is not added to it, and what it has stays: between clients and servers of both eras."""

import json
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway
from tests.support.mcp_clients import Legacy, Modern, error_of, messages, result_of, streamed, tool_text

INFO = "io.modelcontextprotocol/serverInfo"
OURS = "io.github.mcp-session-gateway"
CONTEXT = f"{OURS}/context"


def say(*lines: str, result: Any = None) -> dict[str, Any]:
    text = json.dumps({"content": []} if result is None else result)
    return {"name": "say", "arguments": {"lines": list(lines), "result": text}}


@requirement("spec.nothing-invented", "spec.bridge")
def test_a_legacy_clients_messages_and_results_gain_and_lose_nothing(
    scripted: RunningGateway, http: httpx.Client
) -> None:
    client = Legacy(scripted.at("legacy"), http).open()
    bare = '{"jsonrpc":"2.0","method":"notifications/vendor"}'
    empty = '{"jsonrpc":"2.0","method":"notifications/vendor","params":{ }}'
    said = messages(client.call("tools/call", say(bare, empty, bare)))
    assert [message.get("params", "none") for message in said[:-1]] == ["none", {}, "none"]
    assert said[-1]["result"] == {"content": []}
    assert result_of(client.call("tools/call", say(result={"content": [], "_meta": {}})))["_meta"] == {}

    modern = Legacy(scripted.at("modern"), http).open()
    result = {"resultType": "complete", "content": [], "_meta": {INFO: {"name": "scripted"}}}
    assert result_of(modern.call("tools/call", say(result=result))) == {"content": []}
    listed = result_of(modern.call("tools/list"))
    assert set(listed) == {"tools"}, "neither of a list"


@requirement("spec.nothing-invented", "spec.bridge")
def test_a_question_without_params_stays_without_them(scripted: RunningGateway, http: httpx.Client) -> None:
    asks = '{"jsonrpc":"2.0","id":"r","method":"roots/list"}'
    client = Legacy(scripted.at("legacy"), http).open(capabilities={"roots": {}})
    asked, _ = messages(client.call("tools/call", say(asks)))
    assert asked["method"] == "roots/list" and "params" not in asked

    # A modern server asks a legacy client by the result of the call.
    wanted = {"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}}
    client = Legacy(scripted.at("modern"), http).open(capabilities={"roots": {}})
    with client.streaming("tools/call", say(result=wanted)) as coming:
        asked = next(coming)
    assert asked["method"] == "roots/list" and "params" not in asked

    # A legacy server asks a modern client by a request.
    modern = Modern(scripted.at("legacy"), http)
    meta: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"roots": {}}}
    suspended = {"name": "say", "arguments": {"lines": [asks]}}
    result = result_of(modern.send("tools/call", suspended, meta=meta))
    assert list(result["inputRequests"].values()) == [{"method": "roots/list"}]


@requirement("spec.nothing-invented")
def test_a_server_gets_the_params_of_its_client_and_the_context(scripted: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(scripted.at("legacy"), http).open()
    for text in ("", ',"params":{}', ',"params":{"_meta":{}}', ',"params":{"a":1.50,"b":{ }}'):
        body = f'{{"jsonrpc":"2.0","id":5,"method":"vendor/thing"{text}}}'
        headers = {**client.request_headers(), "Content-Type": "application/json"}
        assert error_of(http.post(client.url, content=body, headers=headers))["code"] == -32601
    got = [line for line in json.loads(tool_text(client.tool("got"))) if "vendor/thing" in line]
    params = [json.loads(line)["params"] for line in got]
    assert [{**given, "_meta": list(given["_meta"])} for given in params] == [
        *[{"_meta": [CONTEXT]}] * 3,
        {"a": 1.5, "b": {}, "_meta": [CONTEXT]},
    ]
    assert '"a":1.50,"b":{ }' in got[-1], "byte for byte"


@requirement("spec.bridge")
def test_a_resource_that_does_not_exist_has_the_code_of_the_clients_era(
    scripted: RunningGateway, http: httpx.Client
) -> None:
    for where in (scripted.at("legacy"), scripted.at("modern"), scripted.url):  # the last one is of both servers
        error = error_of(Legacy(where, http).open().call("resources/read", {"uri": "x://y"}))
        assert (error["code"], error["data"]["uri"]) == (-32002, "x://y"), where
        error = error_of(Modern(where, http).send("resources/read", {"uri": "x://y"}))
        assert (error["code"], error["data"]["uri"]) == (-32602, "x://y"), where


@requirement("wall.return")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_server_cannot_speak_for_the_gateway(scripted: RunningGateway, http: httpx.Client, era: str) -> None:
    """A client that keeps the newest token would go on in the session of an attacker."""
    forged = {f"{OURS}/session": "an attacker's", f"{OURS}/restarted": {"reason": "crash"}, OURS.upper(): 1}
    result = {"resultType": "complete", "content": [{"type": "text", "text": "x", "_meta": forged}], "_meta": forged}
    told = {"level": "error", "data": "x", "_meta": forged}
    notice = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": told})
    for client in (Legacy(scripted.at(era), http).open(), Modern(scripted.at(era), http)):
        ask = client.call if isinstance(client, Legacy) else client.send
        answered = ask("tools/call", say(notice.replace("io.", "\\u0069o."), result=result))
        assert answered.status_code == 200 and result_of(answered)["content"], answered.text
        assert "attacker" not in answered.text and "crash" not in answered.text
        assert OURS.upper() not in answered.text.replace("\\u0069", "i")


@requirement("spec.task-progress")
def test_progress_of_a_task_comes_on_the_clients_own_stream(scripted: RunningGateway, http: httpx.Client) -> None:
    """Which comes after the call that made it was answered. The server does not declare its tasks."""
    client = Legacy(scripted.at("legacy"), http).open()
    progress = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@TOKEN,"progress":%d}}'
    made = '{"task":{"taskId":"t","status":"working","createdAt":"2025-11-25T10:30:00Z","ttl":60000}}'
    params = {
        "name": "say",
        "arguments": {"lines": [progress % 1], "result": made},
        "task": {"ttl": 60_000},
        "_meta": {"progressToken": "mine"},
    }
    first, answer = messages(client.call("tools/call", params))
    assert (
        first["params"] == {"progressToken": "mine", "progress": 1} and answer["result"]["task"]["status"] == "working"
    )
    # The server has the gateway's number for it, which is that of the call.
    got = json.loads(result_of(client.tool("got"))["content"][0]["text"])
    number = next(json.loads(line)["params"]["_meta"]["progressToken"] for line in got if '"task"' in line)
    later = (progress % 2).replace("@TOKEN", str(number))
    assert result_of(client.tool("say", {"lines": [later], "result": "{}"})) == {}
    with client.get() as stream:
        told = next(streamed(stream))
    assert told["params"] == {"progressToken": "mine", "progress": 2}
