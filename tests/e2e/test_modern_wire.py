"""The wire of 2026-07-28, as a client that writes every byte itself sees it."""

import json
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import PROBE, RunningGateway, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import (
    ACCEPT,
    Legacy,
    Modern,
    error_of,
    messages,
    modern_body,
    modern_headers,
    result_of,
    streamed,
    tool_text,
    without_id,
)

PV = "io.modelcontextprotocol/protocolVersion"
FORM = {"name": {"action": "accept", "content": {"name": "Ada"}}}


def post(url: str, http: httpx.Client, body: Any, headers: Any = None) -> httpx.Response:
    return http.post(url, json=body, headers=headers if headers is not None else modern_headers(body))


@requirement("spec.modern")
def test_discover_is_answered_from_what_the_probe_found(demo: RunningGateway, http: httpx.Client) -> None:
    answer = Modern(demo.url, http).send("server/discover", request_id="probe")
    result = answer.json()["result"]
    assert answer.json()["id"] == "probe" and result["supportedVersions"] == ["2026-07-28"]
    assert result["resultType"] == "complete" and "ttlMs" in result and "cacheScope" in result
    assert "mcp-gateway-session" not in answer.headers and "set-cookie" not in answer.headers


@requirement("spec.modern")
def test_a_request_against_the_rules_is_refused_with_a_status_and_its_id(
    demo: RunningGateway, http: httpx.Client
) -> None:
    """Headers that stand twice, and other methods and texts, are in
    tests/unit/transports/inbound/test_modern_request_checks.py."""
    client, version = Modern(demo.url, http), "2099-01-01"
    good = modern_body("tools/call", {"name": "whoami"})
    unserved = client.tool("whoami", headers={"MCP-Protocol-Version": version}, meta={PV: version})
    answers = [(unserved, 400, -32022), (client.send("ping"), 404, -32601), (client.send("no/such/thing"), 404, -32601)]
    for name, value in (("MCP-Protocol-Version", "2025-11-25"), ("Mcp-Method", "tools/list"), ("Mcp-Name", "other")):
        answers.append((client.tool("whoami", headers={name: value}), 400, -32020))
        left_out = {header: said for header, said in modern_headers(good).items() if header != name}
        answers.append((post(demo.url, http, good, left_out), 400, -32020))
    for key in (PV, "io.modelcontextprotocol/clientCapabilities"):
        meta = {name: said for name, said in good["params"]["_meta"].items() if name != key}
        body = {**good, "params": {"name": "whoami", "_meta": meta}}
        answers.append((post(demo.url, http, body), 400, -32602))
    for answer, status, code in answers:
        told = answer.json()
        assert (answer.status_code, told["error"]["code"], told["id"]) == (status, code, 1), answer.text
    data = {"reason": "unsupported_version", "supported": ["2026-07-28"], "requested": version}
    assert without_id(unserved.json()["error"])["data"] == data


@requirement("spec.modern")
def test_what_is_no_request_is_refused(demo: RunningGateway, http: httpx.Client) -> None:
    headers = modern_headers(modern_body("tools/list"))
    for body in (
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        [modern_body("tools/list")],
        {**modern_body("tools/list"), "id": None},
    ):
        answer = post(demo.url, http, body, headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600)
    broken = http.post(demo.url, content=b"{", headers={**headers, "Content-Type": "application/json"})
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, -32700)
    notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}}
    assert post(demo.url, http, notification, headers).status_code == 202
    for method in ("GET", "DELETE"):
        answer = http.request(method, demo.url, headers={**ACCEPT, "MCP-Protocol-Version": "2026-07-28"})
        assert answer.status_code == 405 and answer.headers["allow"] == "POST"


@requirement("spec.modern", "id.carriers")
def test_an_elicitation_retried_on_a_new_connection_reaches_its_own_process(demo: RunningGateway) -> None:
    """No header, no cookie, a new connection: the sealed state alone brings the retry home, also past the token of
    another session."""
    states = []
    for _ in range(3):
        with httpx.Client(timeout=20) as http:
            asked = messages(Modern(demo.url, http).tool("ask"))[0]["result"]
        assert asked["resultType"] == "input_required" and asked["inputRequests"]["name"]
        states.append(asked["requestState"])
    with httpx.Client(timeout=20) as http:
        other = {"MCP-Gateway-Session": Modern(demo.url, http).tool("whoami").headers["mcp-gateway-session"]}
    for state, carried in zip(states, ({}, {}, other), strict=True):
        with httpx.Client(timeout=20) as http:
            retry = {"name": "ask", "arguments": {}, "requestState": state, "inputResponses": FORM}
            answer = Modern(demo.url, http, headers=carried).send("tools/call", retry)
        assert tool_text(answer) == "Hello, Ada!"
        assert answer.headers.get("mcp-gateway-session") != other["MCP-Gateway-Session"]


@requirement("id.purpose", "id.bound")
def test_a_state_is_good_for_its_own_request_and_principal_only(keyed: RunningGateway, http: httpx.Client) -> None:
    alice, bob = (Modern(keyed.at("demo"), http, headers=bearer(KEYS[k])) for k in ("alice", "bob"))
    asked = alice.tool("ask")
    state = messages(asked)[0]["result"]["requestState"]
    retry = {"name": "ask", "arguments": {}, "requestState": state, "inputResponses": FORM}
    wrong = [
        bob.send("tools/call", retry),
        alice.send("tools/call", {**retry, "arguments": {"x": 1}}),
        alice.send("tools/call", {**retry, "name": "count"}),
        alice.send("prompts/get", {**retry, "name": "ask"}),
        *(
            alice.send("tools/call", {**retry, "requestState": bad})
            for bad in (state[:-2] + "AA", "x", "", 7, asked.headers["mcp-gateway-session"])
        ),
    ]
    for answer in wrong:
        assert answer.status_code == 400, answer.text
        assert without_id(answer.json()["error"])["data"] == {"reason": "invalid_request_state"}
    assert alice.tool("whoami", headers={"MCP-Gateway-Session": state}).status_code == 404
    assert tool_text(alice.send("tools/call", retry)) == "Hello, Ada!"


@requirement("wall.before-auth")
def test_headers_of_a_hidden_tool_tell_nothing_of_it(http: httpx.Client) -> None:
    """Neither a stranger nor somebody who may not see it can tell it from a tool that is not there."""
    tools = {"echo": {"permissions": ["echo.use"]}}
    options = {"api_keys": {"eve": sha256("eve-key")}}
    with in_process_gateway({"p": server((*PROBE, "mirror"), tools=tools)}, options=options) as gateway:
        for headers in ({}, {"Mcp-Param-Region": "us"}, {"Mcp-Param-Region": "eu"}):
            stranger = Modern(gateway.url, http)
            answers = [stranger.tool(name, {"region": "eu"}, headers=headers) for name in ("echo", "nothing", "env")]
            assert {answer.status_code for answer in answers} == {401}
            assert len({str(without_id(answer.json()["error"])) for answer in answers}) == 1
            eve = Modern(gateway.url, http, headers=bearer("eve-key"))
            hidden, nothing = (eve.tool(name, {"region": "eu"}, headers=headers) for name in ("echo", "gone"))
            assert hidden.status_code == nothing.status_code == 200
            told = [without_id(answer.json()["error"])["message"] for answer in (hidden, nothing)]
            assert told[0].replace("echo", "gone") == told[1]
            unknown = {"code": -32602, "message": "Unknown tool: echo", "data": {"reason": "unknown_tool"}}
            assert without_id(hidden.json()["error"]) == unknown
        seen = [eve.tool("env", {"region": "eu"}, headers={"Mcp-Param-Region": region}) for region in ("us", "eu")]
        assert [answer.status_code for answer in seen] == [400, 200]


# -- what a message does not have is not added to it, and what it has stays: between clients and servers of both eras


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
