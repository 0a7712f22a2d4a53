"""A stdio server for attacks: tells what reached it, and answers what no honest server would. Both eras.

What a test asks of it does not depend on the gateway: it checks nothing.
"""

import json
import os
import sys
import time
from collections import Counter
from typing import Any

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../../..")

from tests.support.stdio_server import Call, StdioServer, text, tools

__all__ = ["LISTED"]

CONTEXT = "io.github.mcp-session-gateway/context"
ESCAPES = "\x1b]0;owned\x07\x1b[2J"
LISTED = ("whoami", "count", "seen", "echo", "notes", "inner", "query", "big", "deep", "env", "slow", "ask")
PROMPTS = ("brief", "private")
FORM = {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
seen: Counter[str] = Counter()


def value_of(call: Call) -> Any:
    match call.name:
        case "whoami":
            return call.params.get("_meta", {}).get(CONTEXT, {})
        case "count":
            return str(seen["tools/call count"])
        case "ask":
            return "accepted"
        case "seen":
            return dict(seen)
        case "big":
            return "b" * int(call.arguments.get("size", 0))
        case "slow":
            time.sleep(0.1)
            return call.arguments
        case "env":
            return {name: value for name, value in os.environ.items() if name.startswith("MCP_SESSION")}
        case _:
            return {"ran": call.name, "arguments": call.arguments}


def called(call: Call) -> dict[str, Any] | None:
    if call.name == "ask" and "requestState" not in call.params:
        question = {"method": "elicitation/create", "params": FORM}
        return {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "asked"}
    if call.name == "deep":
        nested = "[" * 5_000 + "]" * 5_000
        server.write(f'{{"jsonrpc":"2.0","id":{json.dumps(call.id)},"result":{nested}}}\n'.encode())
        return None
    return text(value_of(call))


def prompted(call: Call) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": {"type": "text", "text": f"the prompt {call.params.get('name')}"}}]
    }


def hears(call: Call) -> None:
    name = call.name if call.method in ("tools/call", "prompts/get") else ""
    seen[(f"{call.method} {name}" if name else call.method)[:100]] += 1


server = StdioServer(
    "attacked",
    {
        "tools/list": tools(*LISTED, *([f"plain{ESCAPES}"] if "escapes" in sys.argv else ())),
        "tools/call": called,
        "prompts/list": {"prompts": [{"name": name} for name in PROMPTS]},
        "prompts/get": prompted,
        "*": lambda call: {"ran": call.method},
    },
    {"tools": {}, "prompts": {}, "resources": {}, "completions": {}},
    scope="private",
    hears=hears,
)

if __name__ == "__main__":
    server.run()
