"""A stdio server for tests with many resources: `noteshelf_server.py LOG NAME COUNT [modern] [apps]`.

It lists COUNT resources `NAME://1` …, two on each page, and one template. It can be read at these, at what the template
matches, and at `NAME-hidden://…`, which nothing lists; anything else is not found. Each request is appended to LOG.
With `apps`, its tool `show` names the app `ui://NAME/board`, which nothing else lists, nor `ui://NAME/part`; the app
may call `turn`.
"""

import sys
from typing import Any

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../..")

from tests.support.stdio_server import Call, Refusal, StdioServer, text

LOG, NAME, COUNT, ERA = sys.argv[1], sys.argv[2], int(sys.argv[3]), "modern" if "modern" in sys.argv else "legacy"
APPS = [
    {"name": "show", "inputSchema": {"type": "object"}, "_meta": {"ui": {"resourceUri": f"ui://{NAME}/board"}}},
    {"name": "turn", "inputSchema": {"type": "object"}, "_meta": {"ui": {"visibility": ["app"]}}},
]
KNOWN = (f"{NAME}://", f"{NAME}-row://", f"{NAME}-hidden://", f"ui://{NAME}/")


def hears(call: Call) -> None:
    with open(LOG, "a") as log:
        log.write(f"{call.method} {call.params.get('uri', '')}\n")


def listed(call: Call) -> dict[str, Any]:
    first = int(call.params.get("cursor", 1))
    page = [{"uri": f"{NAME}://{n}", "name": str(n)} for n in range(first, min(first + 2, COUNT + 1))]
    return {"resources": page} | ({"nextCursor": str(first + 2)} if first + 2 <= COUNT else {})


def read(call: Call) -> dict[str, Any]:
    if not call.params["uri"].startswith(KNOWN):
        raise Refusal(-32602 if ERA == "modern" else -32002, "not found")
    return {"contents": [{"uri": call.params["uri"], "text": f"of {NAME}"}]}


ANSWERS = {
    "tools/list": {"tools": APPS if "apps" in sys.argv else []},
    "tools/call": lambda call: text(f"{call.name} at {NAME}"),
    "resources/list": listed,
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": f"{NAME}-row://{{id}}", "name": "row"}]},
    "resources/subscribe": lambda _: {},
    "resources/unsubscribe": lambda _: {},
    "resources/read": read,
}
CAPABILITIES = {"resources": {"subscribe": True}, "tools": {}}
StdioServer(NAME, ANSWERS, CAPABILITIES, era=ERA, scope="private", hears=hears).run()
