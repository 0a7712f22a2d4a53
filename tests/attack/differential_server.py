"""The server of `tests.attack.fast_path_differential`: the arguments of a call say what it does, whatever its tool.

`argv[1]` is a file that gets each message with its process and the server's name, `argv[2]`. `argv[3]` is its
only era; empty: it has both. Calls are served one after the other.
"""

import json
import os
import sys
import time
from typing import Any, Final

from tests.support.stdio_server import Call, Refusal, StdioServer, text

_NUMBER: Final = {"type": "object", "properties": {"n": {"type": "integer"}, "workspace": {}}, "required": ["n"]}
_held: list[Call] = []
_changes: list[Call] = []
_record = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def listed(_: Call) -> dict[str, Any]:
    names = ["echo", "twin", *(["extra"] if len(_changes) % 2 else [])]
    tools: list[dict[str, Any]] = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    return {"tools": [*tools, {"name": "number", "inputSchema": _NUMBER}]}


def called(call: Call) -> dict[str, Any] | None:  # noqa: C901  # a table
    does = call.arguments if isinstance(call.arguments, dict) else {}
    match does.get("does"):
        case "fail":
            return text("it failed") | {"isError": True}
        case "error":
            raise Refusal(-32050, "an error of the server's", data={"given": does})
        case "say":
            for line in does["lines"]:
                server.write(line.replace("@ID", json.dumps(call.id)).encode() + b"\n")
        case "tick" if "progressToken" in call.params["_meta"]:
            for step in range(3):
                server.notify(
                    "notifications/progress", progress=step, progressToken=call.params["_meta"]["progressToken"]
                )
        case "slow":
            time.sleep(does["seconds"])
        case "change":
            _changes.append(call)
            server.notify("notifications/tools/list_changed")
        case "exit":
            os._exit(0)
        case "hold":
            _held.append(call)
            return None
        case "release":
            while _held:
                held = _held.pop()
                server.send({"id": held.id, "result": result(held)})
    return result(call)


def result(call: Call) -> dict[str, Any]:
    return text(call.arguments) | ({"resultType": "complete"} if call.is_modern else {})


def note(call: Call) -> None:
    os.write(
        _record, json.dumps([f"{sys.argv[2]} {os.getpid()}", call.line.decode("utf-8", "replace")]).encode() + b"\n"
    )


server = StdioServer(
    "differential",
    {"tools/list": listed, "tools/call": called, "*": {}},
    {"tools": {"listChanged": True}},
    era=sys.argv[3],
    hears=note,
    notified=note,
)


if __name__ == "__main__":
    server.run()
