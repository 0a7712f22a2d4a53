"""A stdio server that says what a test tells it to say: `scripted_server.py legacy|modern`. Nothing is added to that.

Tools: `say` writes each of `lines`, and then answers with `result`, a JSON text, if it is given. In all of them, `@ID`
stands for the id of the call, and `@TOKEN` for its progress token. A call of `say` without `result` is answered by a
later call of `answer`, with its `result`. `got` answers with the messages received so far, as texts.
"""

import json
import sys
from typing import Any

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../..")

from tests.support.stdio_server import Call, Refusal, StdioServer, text

ERA = sys.argv[1]
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}, "region": {"type": "string"}}}
MIRRORED = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
TOOLS = [
    *({"name": name, "inputSchema": {"type": "object"}} for name in ("say", "got", "answer")),
    {"name": "number", "inputSchema": NUMBER},
    {"name": "mirrored", "inputSchema": MIRRORED},
]
got: list[str] = []
unanswered: list[Call] = []


class Scripted(StdioServer):
    """Keeps every line."""

    def _serve(self, line: bytes) -> None:
        got.append(line.decode().rstrip("\n"))
        super()._serve(line)


def write(call: Call, line: str) -> None:
    token = json.dumps((call.params.get("_meta") or {}).get("progressToken"))
    server.write(line.replace("@ID", json.dumps(call.id)).replace("@TOKEN", token).encode() + b"\n")


def answer(call: Call, result: str) -> None:
    write(call, '{"jsonrpc":"2.0","id":@ID,"result":' + result + "}")


def called(call: Call) -> dict[str, Any] | None:
    for line in call.arguments.get("lines", ()):
        write(call, line)
    if call.name == "say" and "result" in call.arguments:
        answer(call, call.arguments["result"])
        return None
    if call.name == "say":
        unanswered.append(call)
        return None
    if call.name == "answer":
        answer(unanswered.pop(0), call.arguments["result"])
    return text(got if call.name == "got" else "ok")


def read(call: Call) -> None:
    raise Refusal(-32002 if ERA == "legacy" else -32602, "Resource not found", data={"uri": call.params["uri"]})


server = Scripted(
    "scripted",
    {"tools/list": {"tools": TOOLS}, "tools/call": called, "resources/read": read},
    {"tools": {}, "resources": {"subscribe": True}, "logging": {}},
    era=ERA,
    scope="private",
)

if __name__ == "__main__":
    server.run()
