"""A stdio server with one tool, `reach`: it connects to `host` and `port`, and says how that went."""

import socket
import sys

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../..")

from tests.support.stdio_server import StdioServer, text

ARGUMENTS = {"type": "object", "properties": {"host": {"type": "string"}, "port": {"type": "integer"}}}


def reach(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), 5).close()
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return "connected"


if __name__ == "__main__":
    listed = {"tools": [{"name": "reach", "inputSchema": ARGUMENTS}]}
    answers = {"tools/list": listed, "tools/call": lambda call: text(reach(**call.arguments))}
    StdioServer("reaching", answers, {"tools": {}}, era="legacy").run()
