"""A stdio server for tests that lists what a JSON file contains and answers every request, listed or not.

`argv[1]`: the file, with `tools`, `prompts`, `resources` and `resourceTemplates`; read anew for every list. `argv[2:]`
may hold `modern` (speaks both eras, instead of the handshake only). The tool `relist` sends
`notifications/tools/list_changed`, and `raw` says what came, to the byte.
"""

import json
import sys
from typing import Any

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../..")

from tests.support.stdio_server import Call, StdioServer, text

CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {},
    "resources": {"subscribe": True},
    "completions": {},
}


def listed(key: str) -> dict[str, Any]:
    with open(sys.argv[1]) as file:
        return {key: json.load(file).get(key, [])}


def said(call: Call) -> str:
    return json.dumps({"did": call.method, **{key: value for key, value in call.params.items() if key != "_meta"}})


def called(call: Call) -> dict[str, Any]:
    if call.name == "relist":
        server.notify("notifications/tools/list_changed")
    return text(call.line.decode() if call.name == "raw" else said(call))


server = StdioServer(
    "listing",
    {
        "tools/list": lambda _: listed("tools"),
        "prompts/list": lambda _: listed("prompts"),
        "resources/list": lambda _: listed("resources"),
        "resources/templates/list": lambda _: listed("resourceTemplates"),
        "tools/call": called,
        "prompts/get": lambda call: {"messages": [{"role": "user", "content": text(said(call))["content"][0]}]},
        "resources/read": lambda call: {"contents": [{"uri": call.params["uri"], "text": said(call)}]},
        "completion/complete": lambda call: {"completion": {"values": [said(call)]}},
        "*": lambda call: {"did": call.method},
    },
    CAPABILITIES,
    era="" if "modern" in sys.argv else "legacy",
)
server.run()
