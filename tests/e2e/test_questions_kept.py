"""What a server that asks and asks can make the gateway keep for a client that does not answer."""

import sys
from pathlib import Path

import httpx

from tests.requirements import requirement
from tests.support.raw import Legacy, messages
from tests.support.running import running_gateway, server

ASKING = """
import json, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

for line in sys.stdin:
    heard = json.loads(line)
    if heard.get("method") == "initialize":
        about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        say(id=heard["id"], result={**about, "serverInfo": {"name": "asking", "version": "1"}})
    elif heard.get("method") == "tools/list":
        say(id=heard["id"], result={"tools": [{"name": "go", "inputSchema": {"type": "object"}}]})
    elif heard.get("method") == "tools/call":
        for number in range(300):
            say(id=f"{number}" + "x" * 2_000, method="roots/list")
        say(id="short", method="roots/list", params={"_meta": {"progressToken": "t" * 2_000, "kept": 1}})
        say(id="last", method="roots/list", params={"_meta": {"progressToken": "t"}})
        say(id=heard["id"], result={"content": []})
"""


@requirement("wall.memory")
def test_questions_with_long_ids_are_not_kept(http: httpx.Client, tmp_path: Path) -> None:
    """They wait for as long as the session lives, and 256 of them may."""
    script = tmp_path / "asking.py"
    script.write_text(ASKING, encoding="utf-8")
    with running_gateway({"asking": server((sys.executable, str(script)))}) as running:
        client = Legacy(running.url, http).open()
        *asked, answer = messages(client.call("tools/call", {"name": "go", "arguments": {}}))
        assert "result" in answer
        long_token, short_token = (question["params"]["_meta"] for question in asked)
        assert long_token == {"kept": 1}
        assert set(short_token) == {"progressToken"}
