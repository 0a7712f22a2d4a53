"""A legacy stdio server for tests, whose lists tell whose process it is: `filed_server.py LOG`.

It appends each request to the file LOG, as `PID METHOD`. Its tool `add` adds a tool that has the given name, and
announces nothing; `announce` adds one and announces it. The lists have the principal of the session in them.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

LOG, WHO = Path(sys.argv[1]), os.environ.get("MCP_SESSION_PRINCIPAL", "")
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
names = ["add", "announce"]


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        info = {"name": "filed", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": name, "description": WHO, "inputSchema": {"type": "object"}} for name in names]}
    if method == "prompts/list":
        return {"prompts": [{"name": "greet", "description": WHO}]}
    if method == "resources/list":
        return {"resources": [{"uri": "note://1", "name": WHO}]}
    if method == "resources/templates/list":
        return {"resourceTemplates": [{"uriTemplate": "note://{id}", "name": WHO}]}
    if method == "tools/call":
        names.append(params["arguments"].get("name", "added"))
        if params["name"] == "announce":
            send({"method": "notifications/tools/list_changed"})
        return {"content": [{"type": "text", "text": str(os.getpid())}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    with LOG.open("a") as log:
        log.write(f"{os.getpid()} {message['method']}\n")
    found = result(message["method"], message.get("params") or {})
    answer = {"error": {"code": -32601, "message": "Method not found"}} if found is None else {"result": found}
    send({"id": message["id"], **answer})
