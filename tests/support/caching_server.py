"""A modern stdio server for tests whose results may be kept: `caching_server.py LOG SCOPE TTL_MS`.

It appends each request to the file LOG, as `PID METHOD`. Each list and each resource has the number of the request in
it. The tool `change` announces, on the subscription that is open, that the tools have changed.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

LOG, SCOPE, TTL_MS = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
INFO = {"name": "caching", "version": "1"}
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {}}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
subscribed: list[Any] = []
asked = 0


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "server/discover":
        return {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, "serverInfo": INFO}
    if method == "tools/list":
        schema = {"type": "object"}
        return {"tools": [{"name": "change", "description": f"list {asked}", "inputSchema": schema}]}
    if method == "resources/list":
        return {"resources": [{"uri": "note://1", "name": "n"}]}
    if method == "resources/templates/list":
        return {"resourceTemplates": []}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "text": f"read {asked} by {os.getpid()}"}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message or "id" not in message:
        continue
    method, params = message["method"], message.get("params") or {}
    asked += 1
    with LOG.open("a") as log:
        log.write(f"{os.getpid()} {method}\n")
    if method == "subscriptions/listen":
        subscribed.append(message["id"])
        told = {"notifications": params["notifications"], "_meta": {SUBSCRIPTION: message["id"]}}
        send({"method": "notifications/subscriptions/acknowledged", "params": told})
        continue
    if method == "tools/call":
        for each in subscribed:
            send({"method": "notifications/tools/list_changed", "params": {"_meta": {SUBSCRIPTION: each}}})
        done = {"content": [{"type": "text", "text": str(os.getpid())}], "resultType": "complete"}
        send({"id": message["id"], "result": done})
        continue
    found = result(method, params)
    if found is None:
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        continue
    hints = {"resultType": "complete", "ttlMs": TTL_MS, "cacheScope": SCOPE}
    send({"id": message["id"], "result": {**found, **hints}})
