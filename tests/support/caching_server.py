"""A modern stdio server for tests whose results may be kept: `caching_server.py LOG SCOPE TTL_MS`.

It appends each request to the file LOG, as `PID METHOD`. Each list and each resource has the number of the request in
it. The tool `change` announces, on the subscription that is open, that the tools have changed.
"""

import os
import sys
from typing import Any

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../..")

from tests.support.stdio_server import Call, StdioServer, text, tools

asked: list[str] = []


def hears(call: Call) -> None:
    asked.append(call.method)
    with open(sys.argv[1], "a") as log:
        log.write(f"{os.getpid()} {call.method}\n")


def change(_: Call) -> dict[str, Any]:
    server.announce()
    return text(str(os.getpid()))


def read(call: Call) -> dict[str, Any]:
    return {"contents": [{"uri": call.params["uri"], "text": f"read {len(asked)} by {os.getpid()}"}]}


server = StdioServer(
    "caching",
    {
        "tools/list": lambda _: tools("change", description=f"list {len(asked)}"),
        "tools/call": change,
        "resources/list": {"resources": [{"uri": "note://1", "name": "n"}]},
        "resources/templates/list": {"resourceTemplates": []},
        "resources/read": read,
    },
    {"tools": {"listChanged": True}, "resources": {}},
    era="modern",
    scope=sys.argv[2],
    ttl_ms=int(sys.argv[3]),
    hears=hears,
)
server.run()
