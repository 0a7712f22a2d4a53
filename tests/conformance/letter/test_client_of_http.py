"""What a client has to do on Streamable HTTP, seen by servers that are told what to answer."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conformance.letter.test_http_endpoint import encoded
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
from tests.support.stdio_server import text, tools
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
        done = {"resultType": "complete", **text("done")}
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
    """What the server of the handshake era answers, in the session that it has begun last."""

    def __init__(self) -> None:
        self.session = "first-7f3a9c"
        self._cut: Any = None

    def __call__(self, seen: Seen) -> Reply:
        if seen.method == "GET" and "last-event-id" in seen.headers:
            return Reply(events=(event(result_of(self._cut, text("resumed")), "e2"),))
        if seen.method != "POST":
            return Reply(status=405)
        if seen.body.get("method") == "server/discover":
            return Reply(status=400)
        if seen.body.get("method") == "initialize":
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}}
            result = result_of(seen, {"protocolVersion": "2025-06-18", **about})
            return Reply(body=result, headers={"mcp-session-id": self.session})
        if seen.headers.get("mcp-session-id") != self.session:
            return Reply(status=404)
        if "id" not in seen.body:
            return Reply(status=202)
        if seen.body["method"] == "tools/list":
            return Reply(body=result_of(seen, tools("plain", "cut")))
        if seen.body["params"]["name"] == "cut":
            self._cut = seen
            return Reply(events=("id: e1\ndata: \n\n",))
        return Reply(body=result_of(seen, text("done")))


@pytest.fixture(scope="module")
def new() -> Iterator[ScriptedServer]:
    with running_scripted_server(Modernist()) as server:
        yield server


@pytest.fixture(scope="module")
def old() -> Iterator[ScriptedServer]:
    with running_scripted_server(Old()) as server:
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
    with Modern(at(gateway, "new"), http).leaving("good", {"answer": "hold"}):
        assert eventually(lambda: bool(calls_of(new, answer="hold")))
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
    gateway: RunningGateway, new: ScriptedServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments are repeated in headers, as the schema says: the server refuses a call without."""
    legacy = Legacy(at(gateway, "new"), http).open()
    assert tool_text(legacy.tool("good", {"region": "eu"})) == "done"
    monkeypatch.setattr(new.script, "renamed", True)
    assert tool_text(legacy.tool("good", {"region": "eu", "marked": "again"})) == "done"
    assert len(calls_of(new, region="eu", marked="again")) == 2


def test_a_result_of_an_unknown_type_is_invalid_and_one_without_a_type_is_complete(
    gateway: RunningGateway, http: httpx.Client
) -> None:
    legacy = Legacy(at(gateway, "new"), http).open()
    unknown = messages(legacy.tool("good", {"answer": "type", "type": "riddle"}))[-1]
    assert "riddle" in unknown["error"]["message"]
    assert tool_text(legacy.tool("good", {"answer": "untyped"})) == "done"


def test_a_session_of_the_server_goes_with_every_later_request_until_it_is_forgotten(
    gateway: RunningGateway, old: ScriptedServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Legacy(at(gateway, "old"), http).open()
    answers = [client.tool("plain"), client.tool("cut")]
    assert eventually(lambda: any(seen.method == "GET" and "last-event-id" not in seen.headers for seen in old.seen))
    first = len(old.seen)
    monkeypatch.setattr(old.script, "session", "second-1b2e8d")
    answers.append(client.tool("plain"))
    assert client.delete().status_code == 200
    assert eventually(lambda: any(seen.method == "DELETE" for seen in old.seen))
    assert [tool_text(answer) for answer in answers] == ["done", "resumed", "done"]
    told = gateway.stderr() + client.session + "".join(answer.text + str(answer.headers) for answer in answers)
    assert "first-7f3a9c" not in told and "second-1b2e8d" not in told, "neither logs nor clients get it"
    sessions = []
    for seen in old.seen:
        accepted = {part.strip() for part in seen.headers.get("accept", "").split(",")}
        assert seen.method == "DELETE" or accepted >= ({"text/event-stream"} if seen.method == "GET" else BOTH)
        if (seen.body or {}).get("method") in ("initialize", "server/discover"):
            assert "mcp-session-id" not in seen.headers
        else:
            sessions.append(seen.headers["mcp-session-id"])
            assert seen.headers["mcp-protocol-version"] == "2025-06-18"
    assert set(sessions[: sessions.index("second-1b2e8d")]) == {"first-7f3a9c"} and sessions[-1] == "second-1b2e8d"
    assert [seen.headers.get("last-event-id") for seen in old.seen[:first] if seen.method == "GET"].count("e1") == 1
    methods = [(seen.method, (seen.body or {}).get("method")) for seen in old.seen]
    assert methods.index(("POST", "notifications/initialized")) < methods.index(("POST", "tools/call"))
