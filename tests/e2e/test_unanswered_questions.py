"""What a server that asks and asks can make the gateway keep for a client that does not answer."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.requirements import requirement
from tests.support.gateway_process import server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import SESSION_KEY, Legacy, Modern, messages, tool_text
from tests.support.stdio_server import tools
from tests.support.table_server import table_server

ROOTS = {"jsonrpc": "2.0", "method": "roots/list"}
ASKING = {
    "era": "legacy",
    "answers": {
        "tools/list": tools("go"),
        "tools/call": [
            *(["send", ROOTS | {"id": f"{number}" + "x" * 2_000}] for number in range(300)),
            ["send", ROOTS | {"id": "short", "params": {"_meta": {"progressToken": "t" * 2_000, "kept": 1}}}],
            ["send", ROOTS | {"id": "last", "params": {"_meta": {"progressToken": "t"}}}],
            {"content": []},
        ],
    },
}


@requirement("wall.memory")
def test_questions_with_long_ids_are_not_kept(http: httpx.Client, tmp_path: Path) -> None:
    """They wait for as long as the session lives, and 256 of them may."""
    table = tmp_path / "asking.json"
    table.write_text(json.dumps(ASKING), encoding="utf-8")
    with in_process_gateway({"asking": table_server(table)}) as running:
        client = Legacy(running.url, http).open()
        *asked, answer = messages(client.call("tools/call", {"name": "go", "arguments": {}}))
        assert "result" in answer
        long_token, short_token = (question["params"]["_meta"] for question in asked)
        assert long_token == {"kept": 1}
        assert set(short_token) == {"progressToken"}


UNCLEAR = """
import json, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

calls, answers = [], {}
for line in sys.stdin:
    heard = json.loads(line)
    if heard.get("method") == "initialize":
        about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        say(id=heard["id"], result={**about, "serverInfo": {"name": "unclear", "version": "1"}})
    elif heard.get("method") == "tools/list":
        say(id=heard["id"], result={"tools": [{"name": "go", "inputSchema": {"type": "object"}}]})
    elif heard.get("method") == "tools/call" and not heard["params"].get("arguments"):
        say(id=heard["id"], result={"content": []})
    elif heard.get("method") == "tools/call":
        calls.append(heard["id"])
        if len(calls) == 2:
            say(id="unreadable", method="elicitation/create", params=[1])
            for number in range(40):
                say(id=number, method="roots/list")
    elif "method" in heard and "id" in heard:
        say(id=heard["id"], error={"code": -32601, "message": "Method not found"})
    elif "error" in heard:
        answers[heard["id"]] = heard["error"]["message"]
        if len(answers) == 41:
            for call in calls:
                say(id=call, result={"content": [{"type": "text", "text": json.dumps(list(answers.values()))}]})
"""


@requirement("wall.memory", "spec.bridge")
def test_what_may_belong_to_one_of_two_calls_waits_in_a_bounded_number_and_is_answered(
    http: httpx.Client, tmp_path: Path
) -> None:
    """A modern client's calls: which one a server's question belongs to, is not said on stdio."""
    script = tmp_path / "unclear.py"
    script.write_text(UNCLEAR, encoding="utf-8")
    options = {"limits": {"call_timeout_s": 4}}
    with in_process_gateway({"unclear": server((sys.executable, str(script)))}, options=options) as running:
        token = messages(Modern(running.url, http).tool("go"))[-1]["result"]["_meta"][SESSION_KEY]
        client = Modern(running.url, http, headers={"MCP-Gateway-Session": token})
        with ThreadPoolExecutor(2) as pool:
            said = list(pool.map(lambda number: tool_text(client.tool("go", {"n": number}, request_id=number)), (1, 2)))
    told = json.loads(said[0])
    assert sum("cannot be read" in text for text in told) == 1, "at once: it takes no place among those that wait"
    assert sum("wait for other calls" in text for text in told) == 8
    assert sum("not declared" in text for text in told) == 32
