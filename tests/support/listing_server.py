"""A stdio server for tests that lists what a JSON file contains and answers every request, listed or not.

`argv[1]`: the file, with `tools`, `prompts`, `resources` and `resourceTemplates`; read anew for every list. `argv[2:]`
may hold `modern` (speaks both eras, instead of the handshake only). The tool `relist` sends
`notifications/tools/list_changed`.
"""

import json
import sys
from pathlib import Path
from typing import Any

LISTS = {"tools": "tools", "prompts": "prompts", "resources": "resources", "resources/templates": "resourceTemplates"}
CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {},
    "resources": {"subscribe": True},
    "completions": {},
}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def listed(method: str) -> dict[str, Any]:
    key = LISTS[method.removesuffix("/list")]
    return {key: json.loads(Path(sys.argv[1]).read_text()).get(key, []), "ttlMs": 0, "cacheScope": "public"}


def result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    info = {"name": "listing", "version": "1"}
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES, "serverInfo": info}
    if method == "server/discover":
        found = {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, "serverInfo": info}
        return {**found, "ttlMs": 0, "cacheScope": "public"}
    if method.endswith("/list"):
        return listed(method)
    if method == "tools/call" and params["name"] == "relist":
        send({"method": "notifications/tools/list_changed"})
    said = json.dumps({"did": method, **{key: value for key, value in params.items() if key != "_meta"}})
    if method == "tools/call":
        return {"content": [{"type": "text", "text": said}]}
    if method == "prompts/get":
        return {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "text": said}], "ttlMs": 0, "cacheScope": "public"}
    if method == "completion/complete":
        return {"completion": {"values": [said]}}
    return {"did": method}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        method, params = message["method"], message.get("params") or {}
        if method == "server/discover" and "modern" not in sys.argv:
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
            continue
        if method == "subscriptions/listen":
            key = {"io.modelcontextprotocol/subscriptionId": message["id"]}
            told = {"notifications": params["notifications"], "_meta": key}
            send({"method": "notifications/subscriptions/acknowledged", "params": told})
            continue
        modern = "io.modelcontextprotocol/protocolVersion" in params.get("_meta", {})
        found = result(method, params)
        if method == "tools/call" and params["name"] == "raw":  # what came, to the byte
            found = {"content": [{"type": "text", "text": line}]}
        send({"id": message["id"], "result": {"resultType": "complete", **found} if modern else found})


if __name__ == "__main__":
    main()
