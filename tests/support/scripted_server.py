"""A stdio server that says what a test tells it to say: `scripted_server.py legacy|modern`. Nothing is added to that.

Tools: `say` writes each of `lines`, and then answers with `result`, a JSON text, if it is given. In all of them, `@ID`
stands for the id of the call, and `@TOKEN` for its progress token. A call of `say` without `result` is answered by a
later call of `answer`, with its `result`. `got` answers with the messages received so far, as texts.
"""

import json
import sys
from typing import Any

ERA = sys.argv[1]
INFO = {"name": "scripted", "version": "1"}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}, "region": {"type": "string"}}}
MIRRORED = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
TOOLS = [
    *({"name": name, "inputSchema": {"type": "object"}} for name in ("say", "got", "answer")),
    {"name": "number", "inputSchema": NUMBER},
    {"name": "mirrored", "inputSchema": MIRRORED},
]
CAPABILITIES = {"tools": {}, "resources": {"subscribe": True}, "logging": {}}
OTHER_ERA = {"legacy": "server/discover", "modern": "initialize"}[ERA]
got: list[str] = []
unanswered: list["Call"] = []


class Call:
    """A request, and how it is answered."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.method: str = message["method"]
        self.params: dict[str, Any] = message.get("params") or {}
        self.arguments: dict[str, Any] = self.params.get("arguments") or {}
        self._id = json.dumps(message["id"])
        self._token = json.dumps((self.params.get("_meta") or {}).get("progressToken"))

    def write(self, text: str) -> None:
        sys.stdout.write(text.replace("@ID", self._id).replace("@TOKEN", self._token) + "\n")
        sys.stdout.flush()

    def answer(self, result: str) -> None:
        self.write('{"jsonrpc":"2.0","id":@ID,"result":' + result + "}")

    def fail(self, code: int, message: str, **data: Any) -> None:
        error = {"code": code, "message": message} | ({"data": data} if data else {})
        self.write('{"jsonrpc":"2.0","id":@ID,"error":' + json.dumps(error) + "}")

    def complete(self, **result: Any) -> None:
        if ERA == "modern":
            result |= {"resultType": "complete", "_meta": {"io.modelcontextprotocol/serverInfo": INFO}}
            if self.method != "tools/call":
                result |= {"ttlMs": 0, "cacheScope": "private"}
        self.answer(json.dumps(result))


def tool(call: Call) -> None:
    name = call.params["name"]
    for line in call.arguments.get("lines", ()):
        call.write(line)
    if name == "say" and "result" in call.arguments:
        call.answer(call.arguments["result"])
    elif name == "say":
        unanswered.append(call)
    elif name == "got":
        call.complete(content=[{"type": "text", "text": json.dumps(got)}])
    else:
        if name == "answer":
            unanswered.pop(0).answer(call.arguments["result"])
        call.complete(content=[{"type": "text", "text": "ok"}])


def serve(call: Call) -> None:
    match call.method:
        case method if method == OTHER_ERA:
            call.fail(-32601, "Method not found")
        case "initialize":
            version = call.params["protocolVersion"]
            call.answer(json.dumps({"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": INFO}))
        case "server/discover":
            call.complete(supportedVersions=["2026-07-28"], capabilities=CAPABILITIES, serverInfo=INFO)
        case "tools/list":
            call.complete(tools=TOOLS)
        case "tools/call":
            tool(call)
        case "resources/read":
            call.fail(-32002 if ERA == "legacy" else -32602, "Resource not found", uri=call.params["uri"])
        case _:
            call.fail(-32601, "Method not found")


for line in sys.stdin:
    got.append(line.rstrip("\n"))
    message = json.loads(line)
    if "method" in message and "id" in message:
        serve(Call(message))
