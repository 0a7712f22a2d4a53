"""The wire of 2026-07-28, as a client that writes every byte itself sees it."""

import json
import threading
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import (
    ACCEPT,
    Modern,
    events,
    messages,
    modern_body,
    modern_headers,
    tool_text,
    without_id,
)
from tests.support.waiting import eventually

PV = "io.modelcontextprotocol/protocolVersion"
CC = "io.modelcontextprotocol/clientCapabilities"
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
@pytest.mark.parametrize(
    ("headers", "meta", "status", "code"),
    [
        ({"MCP-Protocol-Version": "2025-11-25"}, {}, 400, -32020),
        ({"Mcp-Method": "tools/list"}, {}, 400, -32020),
        ({"Mcp-Method": ""}, {}, 400, -32020),
        ({"Mcp-Name": "other"}, {}, 400, -32020),
        ({"MCP-Protocol-Version": "2099-01-01"}, {PV: "2099-01-01"}, 400, -32022),
        ({}, {CC: None}, 200, None),
    ],
)
def test_headers_and_body_have_to_agree(
    demo: RunningGateway, http: httpx.Client, headers: Any, meta: Any, status: int, code: int | None
) -> None:
    answer = Modern(demo.url, http).tool("whoami", headers=headers, meta=meta)
    assert answer.status_code == status, answer.text
    if code is not None:
        error = answer.json()["error"]
        assert error["code"] == code and answer.json()["id"] == 1
        if code == -32022:
            assert without_id(error)["data"] == {"supported": ["2026-07-28"], "requested": "2099-01-01"}


@requirement("spec.modern")
@pytest.mark.parametrize("missing", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"])
def test_a_missing_or_doubled_routing_header_is_refused(demo: RunningGateway, http: httpx.Client, missing: str) -> None:
    body = modern_body("tools/call", {"name": "whoami"})
    headers = modern_headers(body)
    doubled = [*headers.items(), (missing, headers[missing])]
    assert http.post(demo.url, json=body, headers=doubled).json()["error"]["code"] == -32020
    del headers[missing]
    answer = post(demo.url, http, body, headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)


@requirement("spec.modern")
@pytest.mark.parametrize("key", [PV, CC])
def test_a_missing_meta_key_is_invalid_params(demo: RunningGateway, http: httpx.Client, key: str) -> None:
    body = modern_body("tools/call", {"name": "whoami"})
    headers = modern_headers(body)
    del body["params"]["_meta"][key]
    answer = post(demo.url, http, body, headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)
    del body["params"]["_meta"]
    assert post(demo.url, http, body, headers).json()["error"]["code"] == -32602


@requirement("spec.modern")
@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "no/such/thing"])
def test_unknown_and_removed_methods_are_404(demo: RunningGateway, http: httpx.Client, method: str) -> None:
    answer = Modern(demo.url, http).send(method, request_id="me")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == -32601 and answer.json()["id"] == "me"


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


@requirement("spec.modern", "spec.complete")
def test_progress_makes_an_event_stream_with_the_clients_own_token(demo: RunningGateway, http: httpx.Client) -> None:
    answer = Modern(demo.url, http).tool("slow", {"steps": 2, "interval_s": 0}, meta={"progressToken": "mine"})
    assert answer.headers["content-type"] == "text/event-stream" and answer.headers["mcp-gateway-session"]
    seen = messages(answer)
    assert [m["params"]["progressToken"] for m in seen if m.get("method") == "notifications/progress"] == ["mine"] * 2
    assert seen[-1]["result"]["content"][0]["text"] == "done"
    assert all(event_id == "" for event_id, _ in events(answer.text)), "this era has no replay"


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
    from tests.support.credentials import KEYS, bearer

    alice, bob = (Modern(keyed.url, http, headers=bearer(KEYS[k])) for k in ("alice", "bob"))
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
    url = f"{probe.base}/servers/probe/mcp"
    token = Modern(url, http).tool("pid").headers["mcp-gateway-session"]
    with httpx.Client(timeout=0.5) as impatient, pytest.raises(httpx.TimeoutException):
        Modern(url, impatient, headers={"MCP-Gateway-Session": token}).tool("hang")
    client = Modern(url, http, headers={"MCP-Gateway-Session": token})
    heard = eventually(lambda: "client disconnected" in tool_text(client.tool("cancelled")), 5)
    assert heard, "the server was told that the call is cancelled"


@requirement("spec.modern", "spec.complete")
def test_listen_passes_on_what_was_asked_for_under_the_clients_id(http: httpx.Client) -> None:
    with running_gateway({"p": server(PROBE, shared=True)}) as gateway:
        body = modern_body("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, request_id="mine")
        with httpx.Client(timeout=20) as listening:
            with listening.stream("POST", gateway.url, json=body, headers=modern_headers(body)) as stream:
                text, chunks = "", stream.iter_text()
                while "acknowledged" not in text:
                    text += next(chunks)
                changing = threading.Thread(target=lambda: Modern(gateway.url, http).tool("announce"))
                changing.start()
                while "list_changed" not in text:
                    text += next(chunks)
                changing.join(10)
    seen = [json.loads(data) for _, data in events(text) if data]
    assert seen[0]["method"] == "notifications/subscriptions/acknowledged"
    assert [m["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] for m in seen] == ["mine"] * len(seen)


@requirement("spec.modern")
def test_mirrored_arguments_are_checked_against_the_tools_schema(http: httpx.Client) -> None:
    with running_gateway({"p": server((*PROBE, "mirror"))}) as gateway:
        client = Modern(gateway.url, http)
        good = client.tool("echo", {"region": "eu"}, headers={"Mcp-Param-Region": "eu"})
        assert json.loads(tool_text(good)) == {"region": "eu"}
        for headers in ({}, {"Mcp-Param-Region": "us"}):
            answer = client.tool("echo", {"region": "eu"}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)


@requirement("wall.before-auth")
def test_headers_of_a_hidden_tool_tell_nothing_of_it(http: httpx.Client) -> None:
    """Neither a stranger nor somebody who may not see it can tell it from a tool that is not there."""
    tools = {"echo": {"permissions": ["echo.use"]}}
    options = {"api_keys": {"eve": sha256("eve-key")}}
    with running_gateway({"p": server((*PROBE, "mirror"), tools=tools)}, options=options) as gateway:
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
        assert eve.tool("env", {"region": "eu"}, headers={"Mcp-Param-Region": "us"}).status_code == 400
