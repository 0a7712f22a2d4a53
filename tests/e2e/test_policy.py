"""What sessions see and may do: trust, workspaces, permissions, eval tools, bound and checked arguments."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, error_of, failed_text, messages, tool_text
from tests.support.table_server import EXITS, listing, table_server
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
    {"principals": ["api-key:alice-new"], "trust": "direct", "read_only": True},
]


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    options = {
        "api_keys": {name: sha256(key) for name, key in KEYS.items()},
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
        params = {"name": "inner__introduce"}
        answer = (
            client.call("prompts/get", params) if isinstance(client, Legacy) else client.send("prompts/get", params)
        )
        assert error_of(answer)["message"] == "Unknown prompt: inner__introduce"
        assert json.loads(tool_text(client.tool("probe__env", {"prefix": "MCP_SESSION_TRUST"}))) == {
            "MCP_SESSION_TRUST": "sandboxed"
        }


@requirement("pol.trust")
def test_a_server_of_its_own_url_is_hidden_too(gateway: InProcessGateway, http: httpx.Client) -> None:
    url, headers = f"{gateway.base}/servers/inner/mcp", bearer(KEYS["bob"])
    modern = Modern(url, http, headers=headers)
    assert listed(modern) == set() and "Unknown tool" in error_of(modern.tool("count"))["message"]
    refused = Legacy(url, http, headers=headers).initialize()
    assert "no server here" in error_of(refused)["message"]


@requirement("pol.read-only")
def test_a_read_only_session_has_only_tools_that_read(gateway: InProcessGateway, http: httpx.Client) -> None:
    """The demo server annotates its tools, so nothing is configured for them."""
    for client in clients(gateway, http, "alice-new"):
        seen = {name for name in listed(client) if name.startswith("inner__")}
        assert {"inner__whoami", "inner__recall"} <= seen and not seen & {"inner__remember", "inner__count"}
        assert tool_text(client.tool("inner__whoami"))
        for hidden in ("inner__remember", "inner__count", "probe__echo"):
            assert error_of(client.tool(hidden, {"key": "k", "value": "v"}))["message"].startswith("Unknown tool")
        assert messages(client.tool("inner__unlisted"))[-1]["error"]["message"].startswith("Unknown tool")


@requirement("ctx.bind")
def test_arguments_are_bound_to_the_context(gateway: InProcessGateway, http: httpx.Client) -> None:
    legacy, _ = clients(gateway, http, "alice")
    assert json.loads(tool_text(legacy.tool("probe__echo"))) == {"workspace_id": "announced"}
    assert json.loads(tool_text(legacy.tool("probe__echo", {"workspace_id": ""}))) == {"workspace_id": "announced"}
    assert json.loads(tool_text(legacy.tool("probe__echo", {"workspace_id": "other"}))) == {"workspace_id": "other"}
    told = "argument workspace_id is 'other', the session's workspace is 'announced'"
    assert eventually(lambda: told in gateway.stderr())
    bare = Legacy(gateway.url, http, headers=bearer(KEYS["alice"])).open()
    failed = failed_text(bare.tool("probe__echo"))
    assert "arguments.workspace_id: it is missing" in failed and "no workspace" in failed
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
        assert "required" in failed_text(client.tool("recall"))
        assert "unexpected" in failed_text(client.tool("count", {"more": 1}))
        if isinstance(client, Legacy):
            malformed = client.call("tools/call", {"name": "count", "arguments": "none"})
            assert error_of(malformed)["message"] == "params.arguments must be an object", "no model can cause it"
            unknown = error_of(client.tool("nothing"))
            assert unknown["code"] == -32602 and unknown["message"] == "Unknown tool: nothing"
    with in_process_gateway({"demo": server(DEMO)}, options={"policy": {"check_arguments": False}}) as gateway:
        result = messages(Modern(gateway.url, http).tool("slow", {"steps": "three"}))[-1]["result"]
        assert result["isError"], "the server's own words"


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
    """Each is named. One alone is enough: `tests/unit/upstreams/test_review.py`."""
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
    assert "unless gateway.policy.unusable_schemas is allow" in words
    for policy in ({"unusable_schemas": "allow"}, {"check_arguments": False}):
        assert told(tmp_path, ["check"], {}, policy, lists)[0] == 0
        found, words = told(tmp_path, ["doctor"], {}, policy, lists)
        assert found == 0 and "nothing checks the tool's arguments" in words


@requirement("wall.decoded")
def test_a_pattern_that_is_not_checked_is_a_warning(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "string", "pattern": "^(?!admin)[a-z]+$"}}}
    lists = {"tools": [{"name": "find", "inputSchema": schema}]}
    fault = "the pattern '^(?!admin)[a-z]+$' in the input schema of tool 'find' is not checked"
    found, words = told(tmp_path, ["check"], {}, {}, lists)
    assert found == 0 and f"warning mcpServers.s: {fault}" in words
    assert fault in told(tmp_path, ["doctor"], {}, {}, lists)[1]
    assert fault not in told(tmp_path, ["check"], {}, {"check_arguments": False}, lists)[1]


@requirement("wall.decoded")
def test_a_server_that_answers_only_later_is_compared_then(http: httpx.Client, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    table.write_text(json.dumps(EXITS))
    with in_process_gateway({"s": table_server(table, tools={"evalute": {"operation": "eval"}})}) as gateway:
        table.write_text(json.dumps(listing(**LISTS)))
        client = Legacy(gateway.url, http).open()
        for tool in ("evaluate", "read"):
            error = messages(client.tool(tool))[-1]["error"]
            assert "its policy names tools it does not list" in error["message"]
        assert "'evalute' names no tool" in gateway.stderr()
