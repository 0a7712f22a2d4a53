"""A legacy stdio server for tests, whose lists tell whose process it is: `filed_server.py LOG`.

It appends each request to the file LOG, as `PID METHOD`. Its tool `add` adds a tool that has the given name, and
announces nothing; `announce` adds one and announces it. The lists have the principal of the session in them.
"""

import os
import sys
from typing import Any

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../..")

from tests.support.stdio_server import Call, StdioServer, text, tools

WHO = os.environ.get("MCP_SESSION_PRINCIPAL", "")
names = ["add", "announce"]


def hears(call: Call) -> None:
    with open(sys.argv[1], "a") as log:
        log.write(f"{os.getpid()} {call.method}\n")


def add(call: Call) -> dict[str, Any]:
    names.append(call.arguments.get("name", "added"))
    if call.name == "announce":
        server.notify("notifications/tools/list_changed")
    return text(str(os.getpid()))


server = StdioServer(
    "filed",
    {
        "tools/list": lambda _: tools(*names, description=WHO),
        "tools/call": add,
        "prompts/list": {"prompts": [{"name": "greet", "description": WHO}]},
        "resources/list": {"resources": [{"uri": "note://1", "name": WHO}]},
        "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "note://{id}", "name": WHO}]},
    },
    {"tools": {"listChanged": True}, "resources": {}, "prompts": {}},
    era="legacy",
    hears=hears,
)
server.run()
