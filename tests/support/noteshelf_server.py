"""A stdio server for tests with many resources: `noteshelf_server.py LOG NAME COUNT [modern] [apps]`.

It lists COUNT resources `NAME://1` …, two on each page, and one template. It can be read at these, at what the template
matches, and at `NAME-hidden://…`, which nothing lists; anything else is not found. Each request is appended to LOG.
With `apps`, its tool `show` names the app `ui://NAME/board`, which nothing else lists, nor `ui://NAME/part`; the app
may call `turn`.
"""

import json
import sys
from pathlib import Path
from typing import Any

LOG, NAME, COUNT, MODERN = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), "modern" in sys.argv
APPS = [
    {"name": "show", "inputSchema": {"type": "object"}, "_meta": {"ui": {"resourceUri": f"ui://{NAME}/board"}}},
    {"name": "turn", "inputSchema": {"type": "object"}, "_meta": {"ui": {"visibility": ["app"]}}},
]
INFO = {"name": NAME, "version": "1"}
CAPABILITIES = {"resources": {"subscribe": True}, "tools": {}}


def result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize" and not MODERN:
        return {"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES, "serverInfo": INFO}
    if method == "server/discover" and MODERN:
        return {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, "serverInfo": INFO}
    if method == "tools/list":
        return {"tools": APPS if "apps" in sys.argv else []}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": f"{params['name']} at {NAME}"}]}
    if method == "resources/list":
        first = int(params.get("cursor", 1))
        page = [{"uri": f"{NAME}://{n}", "name": str(n)} for n in range(first, min(first + 2, COUNT + 1))]
        return {"resources": page} | ({"nextCursor": str(first + 2)} if first + 2 <= COUNT else {})
    if method == "resources/templates/list":
        return {"resourceTemplates": [{"uriTemplate": f"{NAME}-row://{{id}}", "name": "row"}]}
    if method in ("resources/subscribe", "resources/unsubscribe"):
        return {}
    known = (f"{NAME}://", f"{NAME}-row://", f"{NAME}-hidden://", f"ui://{NAME}/")
    if method == "resources/read" and params["uri"].startswith(known):
        return {"contents": [{"uri": params["uri"], "text": f"of {NAME}"}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message or "id" not in message:
        continue
    method, params = message["method"], message.get("params") or {}
    with LOG.open("a") as log:
        log.write(f"{method} {params.get('uri', '')}\n")
    found = result(method, params)
    if found is None:
        code = (-32602 if MODERN else -32002) if method == "resources/read" else -32601
        answer: dict[str, Any] = {"error": {"code": code, "message": "not found"}}
    else:
        hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if MODERN else {}
        answer = {"result": {**found, **hints}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
    sys.stdout.flush()
