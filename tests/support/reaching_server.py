"""A stdio server with one tool, `reach`: it connects to `host` and `port`, and says how that went."""

import json
import socket
import sys
from typing import Any

INFO = {"name": "reaching", "version": "1"}
ARGUMENTS = {"type": "object", "properties": {"host": {"type": "string"}, "port": {"type": "integer"}}}


def reach(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), 5).close()
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return "connected"


def result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": INFO}
    if method == "tools/list":
        return {"tools": [{"name": "reach", "inputSchema": ARGUMENTS}]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": reach(**params["arguments"])}]}
    return None


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        found = result(message.get("method", ""), message.get("params", {}))
        answer = {"error": {"code": -32601, "message": "unknown"}} if found is None else {"result": found}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
        sys.stdout.flush()
