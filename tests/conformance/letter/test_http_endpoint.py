"""What a server of 2026-07-28 on HTTP has to do: answers, headers, names, and what it leaves out."""

import base64
import json
from typing import Any

import httpx
import pytest

from gateway.protocol.input_schemas import UnusableSchema
from tests.conformance.letter.conftest import Letter
from tests.requirements import requirement
from tests.support.gateway_process import ROOT, RunningGateway
from tests.support.mcp_clients import Legacy, Modern, messages, modern_headers, tool_text
from tests.support.task_client import TaskClient
from tests.unit.protocol.parts import checker_of

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


def test_notifications_and_responses_are_accepted_without_a_body_or_refused(letter: Letter, http: httpx.Client) -> None:
    legacy = Legacy(letter.url("old"), http).open()
    for said in ({"method": "notifications/roots/list_changed"}, {"id": "nobody asked", "result": {}}):
        answer = legacy.post({"jsonrpc": "2.0", **said})
        assert (answer.status_code, answer.content) == (202, b"")
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
    region = {"region": "z\u00fcrich"}
    assert client.tool("echo", region, headers={"mCP-pARAM-rEGION": encoded("z\u00fcrich")}).status_code == 200
    assert client.tool("echo", region).json()["error"]["code"] == -32020, "an argument is repeated like a name"


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


@requirement("task.make")
def test_a_tool_that_fails_completes_its_task(probe: RunningGateway, http: httpx.Client) -> None:
    """`failed` is for JSON-RPC errors only."""
    client = TaskClient(probe.at("probe"), http)
    done = client.until(client.begin("fail"), "completed")
    assert done["result"]["isError"] is True and "error" not in done


DIALECTS = {
    "2020-12": "",
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft 4": "http://json-schema.org/draft-04/schema#",
    "draft 6": "http://json-schema.org/draft-06/schema#",
    "draft 7": "http://json-schema.org/draft-07/schema#",
}


@pytest.mark.parametrize("name", DIALECTS)
def test_a_schema_is_checked_in_the_dialect_that_it_names_or_in_2020_12(name: str) -> None:
    """`prefixItems` came with 2020-12; before, an array of schemas under `items` had that meaning."""
    part = {"prefixItems": [{"type": "integer"}]} if name == "2020-12" else {"items": [{"type": "integer"}]}
    named = {"$schema": DIALECTS[name]} if DIALECTS[name] else {}
    checker = checker_of({**named, "type": "object", "properties": {"a": part}})
    assert checker.problem({"a": [1]}, b'{"a":[1]}') is None and checker.problem({"a": ["x"]}, b'{"a":["x"]}')
    assert name in (ROOT / "docs/policy.md").read_text(encoding="utf-8")
    with pytest.raises(UnusableSchema):
        checker_of({"$schema": "https://example.com/dialect", "type": "object"})
