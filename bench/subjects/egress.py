"""A stdio server whose tools connect to a port of this machine and read from there: `connect` says how many
microseconds a connection takes, `read` how many megabytes a second come through one."""

import json
import socket
import statistics
import sys
import time
from typing import Any, Final

CONNECTIONS: Final = 200
TOOLS: Final = ("connect", "read")


def connect(port: int) -> float:
    """The median of the microseconds that `connect` takes."""
    times = []
    for _ in range(CONNECTIONS):
        with socket.socket() as connection:
            began = time.perf_counter()
            connection.connect(("127.0.0.1", port))
            times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times)


def read(port: int) -> float:
    """Megabytes a second, until the other side has sent all."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"all\n")
        began, size, room = time.perf_counter(), 0, bytearray(1 << 18)
        while received := connection.recv_into(room):
            size += received
        return size / (time.perf_counter() - began) / 1e6


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a request."""
    if method == "initialize":
        info = {"name": "egress", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    run = connect if params["name"] == "connect" else read
    return {"content": [{"type": "text", "text": str(run(params["arguments"]["port"]))}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
        sys.stdout.flush()
