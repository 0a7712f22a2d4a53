"""Arguments and schemas on their way: what they may not contain, what it costs to look, and what passes as written."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, RunningGateway, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import (
    ACCEPT,
    Legacy,
    Modern,
    error_of,
    failed_text,
    modern_body,
    modern_headers,
    result_of,
    tool_text,
)
from tests.support.stdio_server import text, tools
from tests.support.table_server import listing, table_server

BLOCKED = [r"drop\s+table", r'say "no"', r"^(a+)+$", r"\b4111\d{12}\b"]
EVASIONS = [
    r'{"sql": "\u0064rop table x"}',
    r'{"sql": "drop\ntable x"}',
    r'{"sql": "drop\ttable x"}',
    r'{"sql": "DROP \r\n TABLE x"}',
    r'{"sql": "drop\u000btable"}',
    r'{"sql": "drop\u00a0table"}',
    r'{"sql": "dr\u200bop ta\u00adble"}',
    r'{"sql": "\uff44\uff52\uff4f\uff50\u3000\uff54\uff41\uff42\uff4c\uff45"}',
    r'{"drop table": 1}',
    r'{"deep": [{"er": ["x", {"drop  table": null}]}]}',
    r'{"text": "they say \"no\""}',
    r'{"text": "say \u0022no\u0022"}',
    r'{"card": 4111111111111111}',
    r'{"card": 4.111111111111111e15}',
    r'{"sql": "aaaaaaaaaaaaaaaaaaaa"}',
]


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    with in_process_gateway({"probe": server(PROBE, tools={"echo": {"blocked": BLOCKED}})}) as running:
        yield running


def echo(client: Legacy, arguments: str, tool: str = "echo") -> httpx.Response:
    """A call whose arguments are written just so."""
    body = f'{{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}'
    headers = {**client.request_headers(), **ACCEPT, "Content-Type": "application/json"}
    return client.http.post(client.url, content=body.encode(), headers=headers)


@requirement("wall.decoded")
def test_what_is_blocked_is_found_however_it_is_written(gateway: InProcessGateway, http: httpx.Client) -> None:
    client = Legacy(gateway.url, http).open()
    for arguments in EVASIONS:
        assert "blocked" in failed_text(echo(client, arguments)), arguments
    for good in ('{"sql": "select 1"}', '{"drop": "table"}', '{"b": ["drop", "table"]}', '{"n": 411111111111111}'):
        assert tool_text(echo(client, good)), good


@requirement("wall.decoded")
def test_the_server_sees_what_was_looked_at(http: httpx.Client) -> None:
    """A key that stands twice: a server that takes the first one would get what nobody looked at."""
    answers = {"tools/list": tools("raw"), "tools/call": text("@LINE")}
    for rules in ({"raw": {"blocked": BLOCKED}}, {}):
        with in_process_gateway({"s": table_server({"era": "legacy", "answers": answers}, tools=rules)}) as running:
            client = Legacy(running.url, http).open()
            line = tool_text(echo(client, '{"sql": "drop table x", "n": 1.50, "sql": "select 1"}', "raw"))
            assert "drop" not in line and json.loads(line)["params"]["arguments"] == {"sql": "select 1", "n": 1.5}


@requirement("wall.decoded")
def test_looking_costs_a_bounded_time(gateway: InProcessGateway, http: httpx.Client) -> None:
    client = Legacy(gateway.url, http).open()
    ascii_only = ("a" * 2_000_000 + "!", "drop " * 400_000)
    # The last two are no marks, and become marks when they are normalised.
    heaps = ("\u0316\u0301" * 100_000, "\ufdfa" * 300_000, "\u0f73" * 60_000, "\uff9e\u0301" * 60_000)
    for heap in (*ascii_only, *heaps):
        began = time.monotonic()
        answer = echo(client, json.dumps({"sql": heap}, ensure_ascii=False))
        assert time.monotonic() - began < 1.5
        assert heap in tool_text(answer) if heap.isascii() else "cannot be checked" in failed_text(answer)
    many = echo(client, json.dumps({"all": ["x"] * 100_000}))
    assert "more than 20000 strings" in failed_text(many)


@requirement("pol.lenient")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_arguments_that_a_server_may_take_reach_it(scripted: RunningGateway, http: httpx.Client, era: str) -> None:
    url = scripted.at(era)
    legacy, modern = Legacy(url, http).open(), Modern(url, http)
    mine = {"MCP-Gateway-Session": modern.tool("got").headers["mcp-gateway-session"]}
    for sent in ('{"n":"3","region":null}', '{"n":1e400}', '{"n":-12345678901234567890}'):
        call = {
            "jsonrpc": "2.0",
            "id": 5,
            "method": "tools/call",
            "params": {"name": "number", "arguments": {"here": "is"}},
        }
        text = json.dumps(call).replace('{"here": "is"}', sent)
        headers = {"Content-Type": "application/json", **legacy.request_headers()}
        assert tool_text(http.post(url, content=text, headers=headers)) == "ok"
        body = modern_body("tools/call", {"name": "number", "arguments": {"here": "is"}})
        text = json.dumps(body).replace('{"here": "is"}', sent)
        headers = {"Content-Type": "application/json", **modern_headers(body), **mine}
        assert tool_text(http.post(url, content=text, headers=headers)) == "ok"
        assert any(f'"arguments":{sent}' in line for line in json.loads(tool_text(modern.tool("got", headers=mine))))
    assert tool_text(modern.tool("mirrored", {"region": None})) == "ok", "no header stands for no value"
    for client in (legacy, modern):
        assert 'arguments.n: "x" is not of type "integer"' in failed_text(client.tool("number", {"n": "x"}))


# -- what a server's input schemas may make the gateway do


class Canary:
    """Takes connections, and counts them."""

    def __init__(self) -> None:
        self.seen = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/schema.json"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.seen += 1
            time.sleep(3)  # as long as a slow stranger likes
            connection.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def canary() -> Iterator[Canary]:
    canary = Canary()
    yield canary
    canary.close()


def tool(name: str, schema: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema}


def doubling(levels: int) -> dict[str, Any]:
    """A schema of few lines that is 2^levels when its references are followed."""
    defs: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)
    }
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "object"}}}


@requirement("wall.decoded")
def test_a_schema_makes_the_gateway_fetch_nothing_and_wait_for_nothing(
    canary: Canary, http: httpx.Client, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"type": "object", "required": ["only-who-read-the-file-knows"]}')
    remote, local = canary.url, secret.as_uri()
    tools = [
        tool("fine", {"type": "object", "properties": {"n": {"type": "integer"}}}),
        tool("ref", {"type": "object", "properties": {"a": {"$ref": remote}}}),
        tool("file", {"$ref": local}),
        tool("dynamic", {"$dynamicRef": remote}),
        tool("dialect", {"$schema": remote, "type": "object"}),
        tool("based", {"$id": remote, "$ref": "other.json"}),
        tool("hidden", {"type": "object", "properties": {"a": {"$id": remote, "$ref": "#/x"}}}),
        tool("unused", {"type": "object", "$defs": {"a": {"$ref": remote}}}),
        tool("doubling", doubling(40)),
        tool("wrong", {"type": "objekt"}),
        tool("none", "no schema at all"),
        tool("relist", {"type": "object", "pattern": "^(?=a)"}),
    ]
    with in_process_gateway({"s": table_server(listing(tools=tools))}) as gateway:
        for client in (Legacy(gateway.url, http).open(), Modern(gateway.url, http)):
            answer = client.call("tools/list") if isinstance(client, Legacy) else client.send("tools/list")
            assert [t["name"] for t in result_of(answer)["tools"]] == ["fine", "relist"]
            for name in (t["name"] for t in tools if t["name"] not in ("fine", "relist")):
                began = time.monotonic()
                error = error_of(client.tool(name))
                assert error["code"] == -32602 and "input schema is invalid" in error["message"], error
                assert "only-who-read" not in error["message"]
                assert time.monotonic() - began < 1, name
            assert "did" in tool_text(client.tool("fine", {"n": 1}))
            assert "Invalid arguments" in failed_text(client.tool("fine", {"n": "one"}))
        log = gateway.stderr()
        for name in (t["name"] for t in tools if t["name"] not in ("fine", "relist")):
            assert log.count(f"the input schema of tool s/{name} is invalid") == 1, "once, for all lists together"
    assert canary.seen == 0


@requirement("wall.decoded")
def test_an_operator_can_allow_tools_whose_schemas_cannot_be_used(canary: Canary, http: httpx.Client) -> None:
    tools = [tool("ref", {"$ref": canary.url}), tool("wrong", {"type": "objekt"})]
    options = {"policy": {"unusable_schemas": "allow"}}
    with in_process_gateway({"s": table_server(listing(tools=tools))}, options=options) as gateway:
        client = Legacy(gateway.url, http).open()
        assert "did" in tool_text(client.tool("ref")) and "did" in tool_text(client.tool("wrong"))
        assert len(result_of(client.call("tools/list"))["tools"]) == 2
    assert canary.seen == 0
