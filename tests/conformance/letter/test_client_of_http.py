"""What a client has to do on Streamable HTTP, seen by servers that are told what to answer."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.mcp_clients import Legacy, Modern, messages, tool_text
from tests.support.scripted_http_server import (
    Reply,
    ScriptedServer,
    Seen,
    discovered,
    event,
    result_of,
    running_scripted_server,
)
from tests.support.waiting import eventually

pytestmark = requirement("spec.letter")

SPEC = "io.modelcontextprotocol/"
BOTH = {"application/json", "text/event-stream"}
REGION = {"type": "string", "x-mcp-header": "Region"}
CITY = {"type": "object", "properties": {"size": {"type": "integer", "x-mcp-header": "Size"}}}
TOOLS = [
    {"name": "good", "inputSchema": {"type": "object", "properties": {"region": REGION, "city": CITY}}},
    {"name": "käse", "inputSchema": {"type": "object"}},
]
BROKEN = {
    "empty": {"a": {"type": "string", "x-mcp-header": ""}},
    "spaced": {"a": {"type": "string", "x-mcp-header": "a b"}},
    "broken": {"a": {"type": "string", "x-mcp-header": "a\r\nb"}},
    "twice": {"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}},
    "number": {"a": {"type": "number", "x-mcp-header": "A"}},
    "array": {"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}},
    "choice": {"a": {"anyOf": [{"type": "string", "x-mcp-header": "A"}]}},
}
"""Tools whose annotations break the rules, by name."""


class Modernist:
    """What the modern server answers. `renamed`: the header of `region` is another one from now on."""

    def __init__(self) -> None:
        self.renamed = False

    def __call__(self, seen: Seen) -> Reply:
        if seen.method != "POST":
            return Reply(status=405)
        body = seen.body
        if "id" not in body:
            return Reply(status=202)
        params = body.get("params", {})
        if body["method"] == "initialize":
            error = {"code": -32601, "message": "Method not found", "data": {"supported": ["2026-07-28"]}}
            return Reply(status=404, body={"jsonrpc": "2.0", "id": body["id"], "error": error})
        if body["method"] == "server/discover":
            return Reply(body=result_of(seen, discovered()))
        if body["method"] == "tools/list":
            broken = [
                {"name": n, "inputSchema": {"type": "object", "properties": properties}}
                for n, properties in BROKEN.items()
            ]
            listed = {"resultType": "complete", "tools": self.tools() + broken, "ttlMs": 0, "cacheScope": "public"}
            return Reply(body=result_of(seen, listed))
        arguments = params.get("arguments") or {}
        wanted = "Zone" if self.renamed else "Region"
        if "region" in arguments and f"mcp-param-{wanted.lower()}" not in seen.headers:
            error = {"code": -32020, "message": "Header mismatch"}
            return Reply(status=400, body={"jsonrpc": "2.0", "id": body["id"], "error": error})
        return self.called(seen, arguments)

    def tools(self) -> list[Any]:
        return json.loads(json.dumps(TOOLS).replace('"Region"', '"Zone"')) if self.renamed else TOOLS

    def called(self, seen: Seen, arguments: Any) -> Reply:
        done = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}
        if arguments.get("answer") == "hold":
            return Reply(holds=True)
        if arguments.get("answer") == "type":
            return Reply(body=result_of(seen, done | {"resultType": arguments["type"]}))
        if arguments.get("answer") == "untyped":
            return Reply(body=result_of(seen, {"content": done["content"]}))
        if arguments.get("answer") == "stream":
            asks = {"jsonrpc": "2.0", "id": "q", "method": "ping"}
            return Reply(events=(": a comment\r\n\r\n", event(asks), event(result_of(seen, done))))
        return Reply(body=result_of(seen, done))


class Old:
    """What the server of the handshake era answers."""

    def __init__(self) -> None:
        self.session = "first-7f3a9c"
        self.forgets = self.resumable = False

    def __call__(self, seen: Seen) -> Reply:
        known = seen.headers.get("mcp-session-id") == self.session
        if seen.method == "DELETE":
            return Reply(status=405)
        if seen.method == "GET":
            return self._stream(seen)
        if seen.body.get("method") == "server/discover":
            return Reply(status=400)
        if seen.body.get("method") == "initialize":
            info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "o"}}
            info["serverInfo"] = {"name": "old", "version": "1"}
            return Reply(body=result_of(seen, info), headers={"mcp-session-id": self.session})
        if not known:
            return Reply(status=404)
        if "id" not in seen.body:
            return Reply(status=202)
        if seen.body["method"] == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("plain", "cut")]
            return Reply(body=result_of(seen, {"tools": tools}))
        if seen.body["params"]["name"] == "cut":
            self._cut = seen
            return Reply(events=("id: e1\ndata: \n\n",))
        return Reply(body=result_of(seen, {"content": [{"type": "text", "text": "done"}]}))

    def _stream(self, seen: Seen) -> Reply:
        if "last-event-id" not in seen.headers:
            return Reply(status=405)
        done = {"content": [{"type": "text", "text": "resumed"}]}
        return Reply(events=(event(result_of(self._cut, done), "e2"),))


@pytest.fixture(scope="module")
def modernist() -> Modernist:
    return Modernist()


@pytest.fixture(scope="module")
def ancient() -> Old:
    return Old()


@pytest.fixture(scope="module")
def new(modernist: Modernist) -> Iterator[ScriptedServer]:
    with running_scripted_server(modernist) as server:
        yield server


@pytest.fixture(scope="module")
def old(ancient: Old) -> Iterator[ScriptedServer]:
    with running_scripted_server(ancient) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(new: ScriptedServer, old: ScriptedServer) -> Iterator[RunningGateway]:
    with running_gateway({"new": {"url": new.url}, "old": {"url": old.url}}) as running:
        yield running


def at(gateway: RunningGateway, name: str) -> str:
    return f"{gateway.base}/servers/{name}/mcp"


def calls_of(server: ScriptedServer, **arguments: Any) -> list[Seen]:
    return [seen for seen in server.posted("tools/call") if seen.body["params"].get("arguments") == arguments]


def test_each_message_is_a_post_that_accepts_both_answers_and_repeats_what_proxies_read(
    gateway: RunningGateway, new: ScriptedServer, http: httpx.Client
) -> None:
    client = Modern(at(gateway, "new"), http)
    assert tool_text(client.tool("good")) == "done"
    assert tool_text(client.tool("käse", headers={"Mcp-Name": encoded("käse")})) == "done"
    for seen in new.seen:
        assert seen.method == "POST" and isinstance(seen.body, dict) and "method" in seen.body
        assert {part.strip() for part in seen.headers["accept"].split(",")} >= BOTH
        if seen.body["method"] == "initialize":
            continue  # the trial whether it speaks the other era too
        assert "mcp-session-id" not in seen.headers
        assert seen.headers["mcp-protocol-version"] == "2026-07-28"
        assert seen.headers["mcp-method"] == seen.body["method"]
        assert seen.body["params"]["_meta"][f"{SPEC}protocolVersion"] == "2026-07-28"
    named = [seen.headers["mcp-name"] for seen in new.posted("tools/call")]
    assert named[0] == "good" and encoded("käse") in named
    assert {"server/discover", "tools/list"} <= {seen.body["method"] for seen in new.seen}


def encoded(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"region": "us-west1"}, {"mcp-param-region": "us-west1"}),
        ({"region": "Hello, 世界"}, {"mcp-param-region": encoded("Hello, 世界")}),
        ({"region": " padded "}, {"mcp-param-region": encoded(" padded ")}),
        ({"region": "line1\nline2"}, {"mcp-param-region": encoded("line1\nline2")}),
        ({"region": "=?base64?literal?="}, {"mcp-param-region": encoded("=?base64?literal?=")}),
        ({"city": {"size": -7}}, {"mcp-param-size": "-7"}),
        ({}, {}),
    ],
)
def test_arguments_are_repeated_in_headers_as_the_schema_says(
    gateway: RunningGateway, new: ScriptedServer, http: httpx.Client, arguments: Any, headers: Any
) -> None:
    legacy = Legacy(at(gateway, "new"), http).open()
    assert tool_text(legacy.tool("good", {**arguments, "marked": "headers"})) == "done"
    (seen,) = calls_of(new, **arguments, marked="headers")[-1:]
    assert {name: v for name, v in seen.headers.items() if name.startswith("mcp-param-")} == headers


def test_both_kinds_of_answers_are_read_and_a_servers_request_is_not_answered(
    gateway: RunningGateway, new: ScriptedServer, http: httpx.Client
) -> None:
    for client in (Modern(at(gateway, "new"), http), Legacy(at(gateway, "new"), http).open()):
        assert tool_text(client.tool("good", {"answer": "json"})) == "done"
        assert tool_text(client.tool("good", {"answer": "stream"})) == "done"
    assert [seen.body for seen in new.seen if "method" not in seen.body] == []


def test_leaving_closes_the_stream_and_sends_nothing(
    gateway: RunningGateway, new: ScriptedServer, http: httpx.Client
) -> None:
    with httpx.Client(timeout=0.5) as impatient, pytest.raises(httpx.TimeoutException):
        Modern(at(gateway, "new"), impatient).tool("good", {"answer": "hold"})
    (held,) = calls_of(new, answer="hold")
    assert eventually(lambda: new.left == [held.body["id"]])
    assert new.posted("notifications/cancelled") == []


def test_a_tool_whose_annotations_break_the_rules_is_left_out_with_a_warning(
    gateway: RunningGateway, http: httpx.Client
) -> None:
    for client in (Modern(at(gateway, "new"), http), Legacy(at(gateway, "new"), http).open()):
        send = client.send if isinstance(client, Modern) else client.call
        listed = [tool["name"] for tool in messages(send("tools/list"))[-1]["result"]["tools"]]
        assert listed == ["good", "käse"]
    log = gateway.stderr()
    for name in BROKEN:
        assert f"the input schema of tool new/{name} is invalid: x-mcp-header" in log, name


def test_after_a_header_mismatch_the_list_is_read_again_and_the_call_is_sent_again(
    gateway: RunningGateway, new: ScriptedServer, modernist: Modernist, http: httpx.Client
) -> None:
    legacy = Legacy(at(gateway, "new"), http).open()
    assert tool_text(legacy.tool("good", {"region": "eu"})) == "done"
    modernist.renamed = True
    try:
        assert tool_text(legacy.tool("good", {"region": "eu", "marked": "again"})) == "done"
    finally:
        modernist.renamed = False
    assert len(calls_of(new, region="eu", marked="again")) == 2


def test_a_result_of_an_unknown_type_is_invalid_and_one_without_a_type_is_complete(
    gateway: RunningGateway, http: httpx.Client
) -> None:
    legacy = Legacy(at(gateway, "new"), http).open()
    unknown = messages(legacy.tool("good", {"answer": "type", "type": "riddle"}))[-1]
    assert "riddle" in unknown["error"]["message"]
    assert tool_text(legacy.tool("good", {"answer": "untyped"})) == "done"


def test_a_session_of_the_server_goes_with_every_later_request(
    gateway: RunningGateway, old: ScriptedServer, http: httpx.Client
) -> None:
    before = len(old.seen)
    client = Legacy(at(gateway, "old"), http).open()
    answer = client.tool("plain")
    assert tool_text(answer) == "done"
    seen = old.seen[before:]
    told = gateway.stderr() + answer.text + str(answer.headers)
    assert "first-7f3a9c" not in told + client.session, "neither logs nor clients get it"
    for request in seen:
        accepted = {part.strip() for part in request.headers["accept"].split(",")}
        assert accepted >= ({"text/event-stream"} if request.method == "GET" else BOTH)
        if (request.body or {}).get("method") in ("initialize", "server/discover"):
            assert "mcp-session-id" not in request.headers
        else:
            assert request.headers["mcp-session-id"] == "first-7f3a9c"
            assert request.headers["mcp-protocol-version"] == "2025-06-18"
    methods = [(request.method, (request.body or {}).get("method")) for request in seen]
    assert methods.index(("POST", "notifications/initialized")) < methods.index(("POST", "tools/call"))
    assert eventually(lambda: any(request.method == "GET" for request in old.seen[before:]))


def test_a_stream_that_breaks_off_is_resumed_after_its_last_event(
    gateway: RunningGateway, old: ScriptedServer, http: httpx.Client
) -> None:
    client = Legacy(at(gateway, "old"), http).open()
    assert tool_text(client.tool("cut")) == "resumed"
    assert [seen.headers.get("last-event-id") for seen in old.seen if seen.method == "GET"][-1] == "e1"


def test_a_session_that_the_server_does_not_know_is_begun_anew_without_an_id(
    gateway: RunningGateway, old: ScriptedServer, ancient: Old, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Legacy(at(gateway, "old"), http).open()
    assert tool_text(client.tool("plain")) == "done"
    before = len(old.posted("initialize"))
    monkeypatch.setattr(ancient, "session", "second-1b2e8d")
    assert tool_text(client.tool("plain")) == "done"
    again = old.posted("initialize")[before:]
    assert len(again) == 1 and "mcp-session-id" not in again[0].headers
    assert client.delete().status_code == 200
    ended = {"mcp-session-id": "second-1b2e8d"}.items()
    assert eventually(lambda: any(seen.method == "DELETE" and ended <= seen.headers.items() for seen in old.seen))
