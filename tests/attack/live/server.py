"""A stdio server for attacks: tells what reached it, and answers what no honest server would. Both eras.

Standard library only. What a test asks of it does not depend on the gateway: it checks nothing.
"""

import json
import os
import sys
import time
from collections import Counter
from typing import Any

__all__ = ["LISTED"]

CONTEXT = "io.github.mcp-session-gateway/context"
ESCAPES = "\x1b]0;owned\x07\x1b[2J"
LISTED = ("whoami", "count", "seen", "echo", "notes", "inner", "query", "big", "deep", "env", "slow", "ask")
PROMPTS = ("brief", "private")
FORM = {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
seen: Counter[str] = Counter()


def tools() -> list[dict[str, Any]]:
    names = [*LISTED, f"plain{ESCAPES}"] if "escapes" in sys.argv else LISTED
    return [{"name": name, "inputSchema": {"type": "object"}} for name in names]


def called(name: str, arguments: dict[str, Any], params: dict[str, Any]) -> Any:
    match name:
        case "whoami":
            return params.get("_meta", {}).get(CONTEXT, {})
        case "count":
            return str(seen["tools/call count"])
        case "ask":
            return "accepted"
        case "seen":
            return dict(seen)
        case "big":
            return "b" * int(arguments.get("size", 0))
        case "slow":
            time.sleep(0.1)
            return arguments
        case "env":
            return {name: value for name, value in os.environ.items() if name.startswith("MCP_SESSION")}
        case _:
            return {"ran": name, "arguments": arguments}


def result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    info = {"name": "attacked", "version": "1"}
    capabilities: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}, "completions": {}}
    match method:
        case "initialize":
            return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
        case "server/discover":
            return {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, "serverInfo": info}
        case "tools/list":
            return {"tools": tools()}
        case "prompts/list":
            return {"prompts": [{"name": name} for name in PROMPTS]}
        case "prompts/get":
            text = {"type": "text", "text": f"the prompt {params.get('name')}"}
            return {"messages": [{"role": "user", "content": text}]}
        case "tools/call" if params["name"] == "ask" and "requestState" not in params:
            question = {"method": "elicitation/create", "params": FORM}
            return {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "asked"}
        case "tools/call":
            value = called(params["name"], params.get("arguments") or {}, params)
            return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}
        case _:
            return {"ran": method}


def main() -> None:
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "method" not in message or "id" not in message:
            continue
        method, params = message["method"], message.get("params") or {}
        name = params.get("name") if method in ("tools/call", "prompts/get") else ""
        seen[(f"{method} {name}" if name else method)[:100]] += 1
        answer = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **result(method, params)}
        if name == "deep":
            nested = "[" * 5_000 + "]" * 5_000
            out.write(f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},"result":{nested}}}\n'.encode())
        else:
            out.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
