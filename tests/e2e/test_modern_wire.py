"""The wire of 2026-07-28, as a client that writes every byte itself sees it."""

from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import PROBE, RunningGateway, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import (
    ACCEPT,
    Modern,
    messages,
    modern_body,
    modern_headers,
    tool_text,
    without_id,
)
from tests.support.waiting import eventually

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
    """Headers that stand twice, and other methods and texts, are in tests/unit/transports/inbound/test_modern.py."""
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
    assert without_id(unserved.json()["error"])["data"] == {"supported": ["2026-07-28"], "requested": version}


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
    """No header, no cookie, a new connection: the sealed state alone brings the retry home."""
    states = []
    for _ in range(5):
        with httpx.Client(timeout=20) as http:
            asked = messages(Modern(demo.url, http).tool("ask"))[0]["result"]
        assert asked["resultType"] == "input_required" and asked["inputRequests"]["name"]
        states.append(asked["requestState"])
    for state in states:
        with httpx.Client(timeout=20) as http:
            retry = {"name": "ask", "arguments": {}, "requestState": state, "inputResponses": FORM}
            assert tool_text(Modern(demo.url, http).send("tools/call", retry)) == "Hello, Ada!"


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


@requirement("spec.modern")
def test_leaving_cancels(probe: RunningGateway, http: httpx.Client) -> None:
    url = probe.at("probe")
    token = Modern(url, http).tool("pid").headers["mcp-gateway-session"]
    with httpx.Client(timeout=0.5) as impatient, pytest.raises(httpx.TimeoutException):
        Modern(url, impatient, headers={"MCP-Gateway-Session": token}).tool("hang")
    client = Modern(url, http, headers={"MCP-Gateway-Session": token})
    heard = eventually(lambda: "client disconnected" in tool_text(client.tool("cancelled")), 5)
    assert heard, "the server was told that the call is cancelled"


@requirement("spec.modern")
def test_a_refused_request_that_has_opened_a_session_gives_it_to_its_client(http: httpx.Client) -> None:
    with in_process_gateway({"p": server(PROBE), "q": server(PROBE)}) as gateway:
        refused = Modern(gateway.url, http).tool("nope")
        assert refused.json()["error"]["code"] == -32602
        token = refused.headers["mcp-gateway-session"]
        again = Modern(gateway.url, http, headers={"MCP-Gateway-Session": token}).tool("p__pid")
        assert again.json()["result"] and again.headers.get("mcp-gateway-session", token) == token
        other = Modern(gateway.url, http).tool("nope")
        assert other.headers["mcp-gateway-session"] != token


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
            assert without_id(hidden.json()["error"]) == {"code": -32602, "message": "Unknown tool: echo"}
        seen = [eve.tool("env", {"region": "eu"}, headers={"Mcp-Param-Region": region}) for region in ("us", "eu")]
        assert [answer.status_code for answer in seen] == [400, 200]
