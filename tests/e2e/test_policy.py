"""What sessions see and may do: trust, workspaces, permissions, eval tools, bound and checked arguments."""

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support import vendor_server
from tests.support.commands import run_command
from tests.support.credentials import API_KEYS, KEYS, bearer
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import (
    ACCEPT,
    Legacy,
    Modern,
    error_of,
    failed_text,
    messages,
    result_of,
    tool_text,
)
from tests.support.stdio_server import text, tools
from tests.support.table_server import listing, table_server
from tests.support.waiting import eventually

PROBE_TOOLS = {
    "crash": {"direct_only": True},
    "noise": {"permissions": ["noise.make"]},
    "spawn": {"operation": "eval"},
    "echo": {"bind": {"workspace_id": "workspace"}, "blocked": [r"drop\s+table"]},
}
SERVERS = {
    "probe": server(PROBE, tools=PROBE_TOOLS),
    "inner": server(DEMO, direct_only=True),
    "paid": server(DEMO, permissions=["paid"]),
}
RULES = [
    {"principals": ["api-key:alice"], "trust": "direct", "permissions": ["noise.make", "paid"]},
    {"principals": ["api-key:bob"], "trust": "sandboxed", "workspace": "fixed"},
]


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    options = {
        "api_keys": API_KEYS,
        "policy": {"rules": RULES},
        "log_level": "info",
    }
    with in_process_gateway(SERVERS, options=options) as running:
        yield running


def clients(gateway: InProcessGateway, http: httpx.Client, who: str, path: str = "/mcp") -> list[Legacy | Modern]:
    url, headers = gateway.base + path, bearer(KEYS[who])
    legacy = Legacy(url, http, headers=headers).open(meta={"orbit": {"workspace": "announced"}})
    return [legacy, Modern(url, http, headers=headers)]


def listed(client: Legacy | Modern, what: str = "tools") -> set[str]:
    answer = client.call(f"{what}/list") if isinstance(client, Legacy) else client.send(f"{what}/list")
    return {item["name"] for item in messages(answer)[-1]["result"][what]}


@requirement("pol.trust", "pol.permissions")
def test_what_is_not_for_a_session_does_not_exist_for_it(gateway: InProcessGateway, http: httpx.Client) -> None:
    for client in clients(gateway, http, "alice"):
        assert {"probe__crash", "probe__noise", "inner__count", "paid__count"} <= listed(client)
        assert tool_text(client.tool("inner__count")) and tool_text(client.tool("probe__noise"))
    for client in clients(gateway, http, "bob"):
        seen = listed(client)
        assert "probe__pid" in seen and not seen & {"probe__crash", "probe__noise"}
        assert not any(name.startswith(("inner__", "paid__")) for name in seen | listed(client, "prompts"))
        for hidden in ("probe__crash", "probe__noise", "inner__count", "paid__count", "nothing__at_all"):
            error = error_of(client.tool(hidden))
            assert error["code"] == -32602 and error["message"].startswith("Unknown tool"), hidden
        ask = client.call if isinstance(client, Legacy) else client.send
        answer = ask("prompts/get", {"name": "inner__introduce"})
        assert error_of(answer)["message"] == "Unknown prompt: inner__introduce"


@requirement("ctx.bind")
def test_arguments_are_bound_to_the_context(gateway: InProcessGateway, http: httpx.Client) -> None:
    legacy, _ = clients(gateway, http, "alice")
    assert json.loads(tool_text(legacy.tool("probe__echo"))) == {"workspace_id": "announced"}
    assert json.loads(tool_text(legacy.tool("probe__echo", {"workspace_id": "other"}))) == {"workspace_id": "other"}
    told = "argument workspace_id is 'other', the session's workspace is 'announced'"
    assert eventually(lambda: told in gateway.stderr())
    fixed, _ = clients(gateway, http, "bob")
    assert isinstance(fixed, Legacy)
    again = fixed.initialize(meta={"orbit": {"workspace": "announced"}})
    told = messages(again)[-1]["result"]["_meta"]["io.github.mcp-session-gateway/workspace"]
    assert told == {"workspace": "fixed", "applied": False}, "the answer says that the announcement has no effect"
    assert json.loads(tool_text(fixed.tool("probe__echo"))) == {"workspace_id": "fixed"}, "the rule's, not the client's"


@requirement("pol.arguments", "pol.argument-results")
def test_arguments_are_checked_before_the_server_sees_them(demo: RunningGateway, http: httpx.Client) -> None:
    for client in (Legacy(demo.url, http).open(), Modern(demo.url, http)):
        wrong = client.tool("slow", {"steps": "three"})
        assert wrong.status_code == 200
        assert failed_text(wrong) == 'Invalid arguments for slow: arguments.steps: "three" is not of type "integer"'
        result = messages(wrong)[-1]["result"]
        assert len(result["_meta"]["io.github.mcp-session-gateway/trace"]["correlation_id"]) == 32
        assert result.get("resultType") == (None if isinstance(client, Legacy) else "complete")
    with in_process_gateway({"demo": server(DEMO)}, options={"policy": {"check_arguments": False}}) as gateway:
        result = messages(Modern(gateway.url, http).tool("slow", {"steps": "three"}))[-1]["result"]
        assert result["isError"], "the server's own words"


# -- a policy that does not fit what servers list is told before anybody is served


TOOLS = [{"name": "evaluate", "inputSchema": {"type": "object"}}, {"name": "read", "inputSchema": {"type": "object"}}]
LISTS: dict[str, Any] = {
    "tools": TOOLS,
    "prompts": [{"name": "greet"}],
    "resources": [{"uri": "note://a", "name": "a"}],
}


def told(
    tmp_path: Path, arguments: list[str], entry: dict[str, Any], policy: dict[str, Any], lists: Any = None
) -> tuple[int, str]:
    """What a command says of a configuration: its exit code and all its words."""
    file = tmp_path / "gateway.json"
    servers = {"s": table_server(listing(**(lists or LISTS)), **entry)}
    file.write_text(json.dumps({"mcpServers": servers, "gateway": {"port": 0, "policy": policy}}))
    finished = run_command(*arguments, "--config", str(file))
    return finished.returncode, " ".join((finished.stdout + finished.stderr).split())


MISSPELT: dict[str, Any] = {
    "tools": {"evalute": {"operation": "eval"}},
    "prompts": {"great": {"direct_only": True}},
    "resource_uris": {"note//*": {"direct_only": True}},
}
WORKSPACES: dict[str, Any] = {"workspaces": {"w": {"tools": ["s__evalute"]}, "v": {"servers": ["t"]}}}
FAULTS = (
    "mcpServers.s.tools: 'evalute' names no tool",
    "mcpServers.s.prompts: 'great' names no prompt",
    "mcpServers.s.resource_uris: 'note//*' names no",
    "workspaces.w.tools: 's__evalute' names no tool",
    "workspaces.v.servers: 't' names no server",
)


@requirement("wall.decoded")
def test_patterns_that_name_nothing_stop_the_start(tmp_path: Path) -> None:
    """Each is named. One alone is enough: `tests/unit/upstreams/test_unmatched_patterns.py`."""
    for command in ("check", "run"):
        found, words = told(tmp_path, [command], MISSPELT, WORKSPACES)
        assert found == 2, words
        assert [fault for fault in FAULTS if fault not in words] == [], (command, words)
        assert "gateway.policy.unmatched_patterns to allow" in words
        assert "'evaluate'" in words, "what there is, for who has misspelt it"
    assert told(tmp_path, ["check", "--offline"], MISSPELT, WORKSPACES)[0] == 0
    assert told(tmp_path, ["check"], MISSPELT, WORKSPACES | {"unmatched_patterns": "allow"})[0] == 0


@requirement("wall.decoded")
def test_the_doctor_tells_of_patterns_and_schemas(tmp_path: Path) -> None:
    wrong = {"name": "wrong", "inputSchema": {"type": "objekt"}}
    lists = LISTS | {"tools": [*TOOLS, wrong]}
    found, words = told(tmp_path, ["doctor"], {"tools": MISSPELT["tools"]}, {}, lists)
    assert found == 1 and FAULTS[0] in words and "input schema of tool 'wrong' is invalid" in words
    found, words = told(tmp_path, ["check"], {}, {}, lists)
    assert found == 2 and "input schema of tool 'wrong' is invalid" in words
    assert "unless gateway.policy.check_arguments is false" in words
    unchecked = {"check_arguments": False}
    assert told(tmp_path, ["check"], {}, unchecked, lists)[0] == 0
    found, words = told(tmp_path, ["doctor"], {}, unchecked, lists)
    assert found == 0 and "nothing checks the tool's arguments" in words


# -- arguments and schemas on their way: what they may not contain, what it costs to look, and what passes as written


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
def blocking() -> Iterator[InProcessGateway]:
    with in_process_gateway({"probe": server(PROBE, tools={"echo": {"blocked": BLOCKED}})}) as running:
        yield running


def echo(client: Legacy, arguments: str, tool: str = "echo") -> httpx.Response:
    """A call whose arguments are written just so."""
    body = f'{{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}'
    headers = {**client.request_headers(), **ACCEPT, "Content-Type": "application/json"}
    return client.http.post(client.url, content=body.encode(), headers=headers)


@requirement("wall.decoded")
def test_what_is_blocked_is_found_however_it_is_written(blocking: InProcessGateway, http: httpx.Client) -> None:
    client = Legacy(blocking.url, http).open()
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
def test_looking_costs_a_bounded_time(blocking: InProcessGateway, http: httpx.Client) -> None:
    client = Legacy(blocking.url, http).open()
    ascii_only = ("a" * 2_000_000 + "!", "drop " * 400_000)
    # The last two are no marks, and become marks when they are normalised.
    heaps = ("\u0316\u0301" * 100_000, "\ufdfa" * 300_000, "\u0f73" * 60_000, "\uff9e\u0301" * 60_000)
    for heap in (*ascii_only, *heaps):
        began = time.process_time()
        answer = echo(client, json.dumps({"sql": heap}, ensure_ascii=False))
        assert time.process_time() - began < 1.5, "of the processor: the gateway runs in this process"
        assert heap in tool_text(answer) if heap.isascii() else "cannot be checked" in failed_text(answer)
    many = echo(client, json.dumps({"all": ["x"] * 100_000}))
    assert "more than 20000 strings" in failed_text(many)


# -- what a server's input schemas may make the gateway do


@pytest.fixture
def canary() -> Iterator[str]:
    """A URL to which nobody connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


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
    canary: str, http: httpx.Client, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"type": "object", "required": ["only-who-read-the-file-knows"]}')
    remote, local = canary, secret.as_uri()
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
    with in_process_gateway({"s": table_server(listing(tools=tools))}) as blocking:
        for client in (Legacy(blocking.url, http).open(), Modern(blocking.url, http)):
            answer = client.call("tools/list") if isinstance(client, Legacy) else client.send("tools/list")
            assert [t["name"] for t in result_of(answer)["tools"]] == ["fine", "relist"]
            for name in (t["name"] for t in tools if t["name"] not in ("fine", "relist")):
                began = time.process_time()
                error = error_of(client.tool(name))
                assert error["code"] == -32602 and "input schema is invalid" in error["message"], error
                assert "only-who-read" not in error["message"]
                assert time.process_time() - began < 1, name
            assert "did" in tool_text(client.tool("fine", {"n": 1}))
            assert "Invalid arguments" in failed_text(client.tool("fine", {"n": "one"}))
        log = blocking.stderr()
        for name in (t["name"] for t in tools if t["name"] not in ("fine", "relist")):
            assert log.count(f"the input schema of tool s/{name} is invalid") == 1, "once, for all lists together"


# -- methods that MCP does not define


@requirement("ext.relay")
def test_a_restricted_server_gets_only_the_methods_that_are_named(http: httpx.Client, tmp_path: Path) -> None:
    audit, hidden = tmp_path / "events", {"tools": {"ask": {"direct_only": True}}}
    named = {"methods": {"com.named/orders/*": {}, "com.named/orders/burst": {"allowed": False}}}
    vendor = (sys.executable, "-m", vendor_server.__name__)
    servers = {
        "open": server((*vendor, "legacy", "open")),
        "hidden": server((*vendor, "legacy", "hidden"), **hidden),
        "named": server((*vendor, "modern", "named"), **hidden, **named),
    }
    options = {"session": {"trust": "sandboxed"}, "audit": {"to": ["store", str(audit)]}}
    with in_process_gateway(servers, options=options) as gateway:
        for name, method, why in (
            ("open", "echo", ""),
            ("hidden", "echo", "no pattern in mcpServers.hidden.methods"),
            ("named", "echo", ""),
            ("named", "burst", "mcpServers.named.methods.com.named/orders/burst.allowed"),
        ):
            url, method = f"{gateway.base}/servers/{name}/mcp", f"com.{name}/orders/{method}"
            sent = Legacy(url, http).open().call(method, {"payload": 1}), Modern(url, http).send(method, {"payload": 1})
            if not why:
                assert [messages(answer)[-1]["result"]["echo"] for answer in sent] == [1, 1]
                continue
            assert [error_of(answer)["code"] for answer in sent] == [-32601] * 2
            assert [answer.status_code for answer in sent] == [200, 404]
            assert eventually(lambda of=f"{name}/{method}", why=why: is_audited(audit, of, why)), why  # type: ignore[misc]  # bound in this round


def is_audited(audit: Path, tool: str, why: str) -> bool:
    events = [json.loads(line) for line in audit.read_text().splitlines()] if audit.exists() else []
    return any(event["event"] == "refused" and event["tool"] == tool and why in event["why"] for event in events)


@requirement("wall.decoded")
def test_an_operator_can_allow_tools_whose_schemas_cannot_be_used(canary: str, http: httpx.Client) -> None:
    tools = [tool("ref", {"$ref": canary}), tool("wrong", {"type": "objekt"})]
    options = {"policy": {"check_arguments": False}}
    with in_process_gateway({"s": table_server(listing(tools=tools))}, options=options) as gateway:
        client = Legacy(gateway.url, http).open()
        assert "did" in tool_text(client.tool("ref")) and "did" in tool_text(client.tool("wrong"))
        assert len(result_of(client.call("tools/list"))["tools"]) == 2


@requirement("pol.workspace")
def test_a_workspace_sees_what_is_for_it_and_an_unknown_one_nothing(http: httpx.Client) -> None:
    workspaces = {
        "team-*": {"servers": ["demo"], "tools": ["demo__count", "demo__who*"]},
        "all": {},
    }
    servers = {"demo": server(DEMO), "probe": server(PROBE)}
    policy = {"workspaces": workspaces, "trust_announced_workspace": True}
    with in_process_gateway(servers, options={"policy": policy}) as gateway:

        def at(workspace: str) -> Legacy:
            return Legacy(gateway.url, http).open(meta={"orbit": {"workspace": workspace}})

        assert listed(at("team-a")) == {"demo__count", "demo__whoami"}
        assert "Unknown tool" in error_of(at("team-a").tool("demo__ask"))["message"]
        assert {"demo__ask", "probe__pid"} <= listed(at("all"))
        nothing = Legacy(gateway.url, http).initialize(meta={"orbit": {"workspace": "elsewhere"}})
        assert "no server here" in error_of(nothing)["message"]
        assert listed(Modern(gateway.url, http)) == set()
