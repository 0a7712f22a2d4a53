"""What a server of 2026-07-28 on HTTP has to do: answers, headers, names, and what it leaves out."""

import base64
import json
from typing import Any

import httpx
import pytest

from tests.conformance.letter.conftest import Letter
from tests.requirements import requirement
from tests.support.mcp_clients import Legacy, Modern, messages, modern_body, modern_headers, tool_text

pytestmark = requirement("spec.letter")

SPEC = "io.modelcontextprotocol/"
CACHEABLE = (
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)
PROGRESS = {"progressToken": "p"}


def line(**message: Any) -> dict[str, str]:
    """The argument of the probe's tool that writes a line; `ID` becomes the id of the call."""
    return {"line": json.dumps({"jsonrpc": "2.0", **message}).replace('"ID"', "ID")}


def lines(*messages: dict[str, str]) -> dict[str, str]:
    return {"line": "\n".join(message["line"] for message in messages)}


def log(level: str, data: str) -> dict[str, str]:
    return line(method="notifications/message", params={"level": level, "data": data})


DONE = line(id="ID", result={"resultType": "complete", "content": [{"type": "text", "text": "done"}]})


def encoded(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@pytest.mark.parametrize("name", ["new", "old"])
def test_an_answer_is_one_json_object_or_a_stream_that_ends_with_it(
    letter: Letter, http: httpx.Client, name: str
) -> None:
    client = Modern(letter.url(name), http)
    alone = client.tool("echo", {"a": 1}, request_id="a")
    assert alone.headers["content-type"] == "application/json" and alone.json()["id"] == "a"
    progress = line(method="notifications/progress", params={"progressToken": "ID", "progress": 0.5})
    late = line(method="notifications/progress", params={"progressToken": "ID", "progress": 0.9})
    streamed = client.tool("broken", lines(progress, DONE, late), meta=PROGRESS, request_id=0)
    assert streamed.headers["content-type"] == "text/event-stream"
    assert streamed.headers["x-accel-buffering"] == "no"
    first, last = messages(streamed), messages(streamed)[-1]
    assert [m.get("method") for m in first] == ["notifications/progress", None], "nothing follows the answer"
    assert first[0]["params"] == {"progressToken": "p", "progress": 0.5}
    assert last["id"] == 0 and last["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize("name", ["new", "old"])
def test_a_stream_has_no_requests_and_nothing_of_other_calls(letter: Letter, http: httpx.Client, name: str) -> None:
    asks = line(id="q", method="sampling/createMessage", params={"messages": [], "maxTokens": 1})
    foreign = line(method="notifications/progress", params={"progressToken": 4711, "progress": 1})
    unasked = line(method="notifications/progress", params={"progressToken": "ID", "progress": 1})
    answer = Modern(letter.url(name), http).tool("broken", lines(asks, foreign, unasked, DONE))
    assert answer.headers["content-type"] == "application/json", "nothing came before the answer"
    assert tool_text(answer) == "done"


@pytest.mark.parametrize("name", ["new", "old"])
def test_a_result_has_its_type_its_server_and_says_how_long_it_may_be_cached(
    letter: Letter, http: httpx.Client, name: str
) -> None:
    client = Modern(letter.url(name), http)
    listed = client.send("tools/list", request_id="l").json()
    assert listed["id"] == "l" and listed["result"]["resultType"] == "complete"
    assert listed["result"]["ttlMs"] >= 0 and listed["result"]["cacheScope"] in ("public", "private")
    called = client.tool("echo", {"a": 1}).json()["result"]
    assert called["resultType"] == "complete" and "ttlMs" not in called
    if name == "old":
        assert listed["result"]["_meta"][f"{SPEC}serverInfo"] == {"name": "probe", "version": "1"}
        assert called["_meta"][f"{SPEC}serverInfo"] == {"name": "probe", "version": "1"}


def test_every_cacheable_result_of_a_legacy_server_has_hints(letter: Letter, http: httpx.Client) -> None:
    for url, methods in (
        (letter.url("old"), CACHEABLE),
        (letter.gateway.url, [method for method in CACHEABLE if method != "resources/read"]),
    ):
        for method in methods:
            params = {"uri": "probe://thing"} if method == "resources/read" else {}
            result = Modern(url, http).send(method, params).json()["result"]
            assert result["resultType"] == "complete" and result["ttlMs"] >= 0, (url, method)
            assert result["cacheScope"] in ("public", "private"), (url, method)


def test_notifications_are_accepted_without_a_body_or_refused(letter: Letter, http: httpx.Client) -> None:
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "unknown"}}
    headers = modern_headers(body)
    accepted = http.post(letter.url("new"), json=body, headers=headers)
    assert (accepted.status_code, accepted.content) == (202, b"")
    for changed, status in (({"MCP-Protocol-Version": "2099-01-01"}, 400), ({"Content-Type": "text/plain"}, 415)):
        assert http.post(letter.url("new"), json=body, headers=headers | changed).status_code == status


def test_names_in_headers_are_decoded_before_they_are_compared(letter: Letter, http: httpx.Client) -> None:
    client = Modern(letter.url("new"), http)
    assert client.tool("pid", headers={"Mcp-Name": encoded("pid")}).status_code == 200
    for wrong in (
        encoded("env"),
        encoded("pid").replace("base64", "BASE64"),
        encoded("pid").upper(),
        "=?base64?*?=",
        "PID",
        "p\u00efd".encode("latin-1"),
    ):
        answer = client.tool("pid", headers={"Mcp-Name": wrong})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020), wrong
    plain = client.tool("k\u00e4se", headers={"Mcp-Name": "k\u00e4se".encode("latin-1")})
    assert plain.json()["error"]["code"] == -32020, "a name that is not ASCII has to be coded"
    sentinel = client.tool(encoded("pid"), headers={"Mcp-Name": encoded("pid")})
    assert sentinel.json()["error"]["code"] == -32020, "a name that looks coded has to be coded"


def test_arguments_in_headers_are_compared_with_the_body(letter: Letter, http: httpx.Client) -> None:
    client = Modern(letter.url("new"), http)

    def status(arguments: Any, **headers: str | bytes) -> tuple[int, Any]:
        answer = client.tool("echo", arguments, headers={k.replace("_", "-"): v for k, v in headers.items()})
        return answer.status_code, answer.json().get("error", {}).get("code")

    good, bad = (200, None), (400, -32020)
    assert status({"region": "eu"}, mCP_pARAM_rEGION="eu") == good
    assert status({"region": "z\u00fcrich"}, Mcp_Param_Region=encoded("z\u00fcrich")) == good
    assert status({"region": None}) == good and status({}) == good
    assert status({"region": "eu"}) == bad and status({"region": "eu"}, Mcp_Param_Region="EU") == bad
    assert status({"region": "eu"}, Mcp_Param_Region="=?base64?%%?=") == bad
    assert status({}, Mcp_Param_Region="eu") == bad
    assert status({"region": "z\u00fcrich"}, Mcp_Param_Region="z\u00fcrich".encode("latin-1")) == bad, "no ASCII"
    assert status({"region": "eu"}, Mcp_Param_Region="eu", Mcp_Param_Unknown="x") == good, "it is ignored"


def test_names_of_headers_have_no_case_and_their_values_have(letter: Letter, http: httpx.Client) -> None:
    body = modern_body("tools/call", {"name": "pid"})
    headers = {name.upper() if i % 2 else name.lower(): v for i, (name, v) in enumerate(modern_headers(body).items())}
    assert http.post(letter.url("new"), json=body, headers=headers).status_code == 200
    headers = modern_headers(body) | {"Mcp-Method": "Tools/Call"}
    assert http.post(letter.url("new"), json=body, headers=headers).json()["error"]["code"] == -32020


def test_headers_of_earlier_revisions_are_ignored_and_not_given(letter: Letter, http: httpx.Client) -> None:
    old = {"Mcp-Session-Id": "made-up", "Last-Event-ID": "7"}
    client = Modern(letter.url("new"), http)
    for answer in (client.tool("pid", headers=old), client.send("tools/list", headers=old), client.tool("pid")):
        assert answer.status_code == 200 and "mcp-session-id" not in answer.headers


@pytest.mark.parametrize("name", ["new", "old"])
def test_log_messages_come_if_asked_for_from_that_level_on(letter: Letter, http: httpx.Client, name: str) -> None:
    client, said = Modern(letter.url(name), http), lines(log("debug", "quiet"), log("error", "loud"), DONE)
    assert [m for m in messages(client.tool("broken", said)) if "method" in m] == []
    heard = messages(client.tool("broken", said, meta={f"{SPEC}logLevel": "warning"}))
    assert [m["params"]["data"] for m in heard if "method" in m] == ["loud"]


@pytest.mark.parametrize("level", ["loud", "", 7])
def test_a_level_that_is_none_is_refused(letter: Letter, http: httpx.Client, level: Any) -> None:
    for name in ("new", "old"):
        answer = Modern(letter.url(name), http).tool("pid", meta={f"{SPEC}logLevel": level})
        assert answer.json()["error"]["code"] == -32602, name


@pytest.mark.parametrize("name", ["new", "old"])
def test_nobody_is_asked_for_what_the_client_has_not_declared(letter: Letter, http: httpx.Client, name: str) -> None:
    client = Modern(letter.url(name), http)
    tool = {"new": "want", "old": "roots"}[name]
    answer = messages(client.tool(tool, meta={f"{SPEC}clientCapabilities": {"sampling": {}}}))[-1]
    if name == "new":
        assert answer["error"]["code"] == -32021
        assert answer["error"]["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}
    else:
        assert "not declared" in answer["result"]["content"][0]["text"]


def test_only_calls_prompts_and_reads_ask_for_input(letter: Letter, http: httpx.Client) -> None:
    """A legacy server that asks during another request is told that nobody can be asked."""
    legacy = Legacy(letter.url("old"), http).open()
    assert legacy.tool("pid").status_code == 200
    assert "inputRequests" not in Modern(letter.url("old"), http).send("tools/list").text


def test_errors_have_an_integer_code_a_message_and_the_id(letter: Letter, http: httpx.Client) -> None:
    client = Modern(letter.url("new"), http)
    for answer in (
        client.send("resources/subscribe", {"uri": "x:y"}, request_id="x"),
        client.tool("pid", headers={"Mcp-Name": "other"}, request_id="x"),
        client.tool("broken", line(id="ID", error={"code": -32099, "message": "of the server's own"}), request_id="x"),
    ):
        error = messages(answer)[-1]
        assert error["id"] == "x" and isinstance(error["error"]["code"], int) and error["error"]["message"]


def test_codes_that_the_revision_has_left_are_not_sent(letter: Letter, http: httpx.Client) -> None:
    client = Modern(letter.url("old"), http)
    for code, data in ((-32002, {"uri": "x"}), (-32042, {}), (-32042, {"elicitations": []}), (-32042, None)):
        error = {"code": code, "message": "as before"} | ({} if data is None else {"data": data})
        answer = messages(client.tool("broken", line(id="ID", error=error)))[-1]
        assert answer["error"]["code"] not in (-32002, -32042), answer
