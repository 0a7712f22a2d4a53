"""A policy that does not fit what servers list is told before anybody is served."""

import json
from pathlib import Path
from typing import Any

import httpx

from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy, messages
from tests.support.table_server import EXITS, listing, table_server

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
