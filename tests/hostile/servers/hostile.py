"""A hostile MCP server on standard input and output: one tool, `attack`, runs a behaviour and says what it got.

`python hostile.py` serves; `python hostile.py --attack NAME` runs one, with the facts on standard input. Each attack
runs in a child of the server's, so that what ends it does not end the conversation.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_MOST_TEXT = 10_000

sys.path.insert(0, str(Path(__file__).parent))


def run(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """`{"got": text}`, or `{"met": error}`."""
    module, _, function = name.partition(".")
    try:
        return {"got": getattr(importlib.import_module(f"attacks.{module}"), function)(facts)[:_MOST_TEXT]}
    except Exception as error:
        return {"met": f"{type(error).__name__}: {error}"}


def in_child(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """The same, in a forked process with an end."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(writes, json.dumps(run(name, facts)).encode() + b"\n")
        os._exit(0)
    os.close(writes)
    until = time.monotonic() + float(facts.get("within_s", 20.0))
    data = b""
    while (left := until - time.monotonic()) > 0 and select.select([reads], [], [], left)[0]:
        piece = os.read(reads, 65_536)
        data += piece
        if not piece or data.endswith(b"\n"):  # a process that it has left holds the pipe open
            break
    os.close(reads)
    with contextlib.suppress(OSError):
        if not data:
            os.kill(child, signal.SIGKILL)
            os.write(1, b"\n")  # the line that it was writing, if it was, is not the answer's
        _, status = os.waitpid(child, 0)
        if not data:
            return {"met": f"the process ended with {os.waitstatus_to_exitcode(status)}"}
    return json.loads(data) if data else {"met": "no answer"}


def through_shell(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """The same, by another interpreter that a shell starts."""
    command = ["sh", "-c", f'exec "{sys.executable}" "{__file__}" --attack {name}']
    ran = subprocess.run(command, input=json.dumps(facts), capture_output=True, text=True, timeout=30, check=False)
    try:
        answer: dict[str, Any] = json.loads(ran.stdout)
    except ValueError:
        answer = {"met": f"{ran.returncode}: {ran.stderr[-300:]}"}
    return answer


def attacked(_: str, arguments: dict[str, Any]) -> dict[str, Any]:
    way = through_shell if arguments.get("way") == "shell" else in_child
    return way(arguments["attack"], arguments["facts"])


def serve(name: str, tools: Sequence[str], called: Callable[[str, dict[str, Any]], Any]) -> None:
    """Serve these tools, whose answers are JSON."""

    def answered(method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                info = {"name": name, "version": "1"}
                return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                return {"tools": [{"name": tool, "inputSchema": {"type": "object"}} for tool in tools]}
            case "tools/call":
                try:
                    answer = called(params["name"], params.get("arguments", {}))
                except Exception as error:
                    return {"content": [{"type": "text", "text": f"{type(error).__name__}: {error}"}], "isError": True}
                return {"content": [{"type": "text", "text": json.dumps(answer)}]}
            case _:
                return {}

    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answered(message["method"], message.get("params", {}))
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attack"]:
        print(json.dumps(run(sys.argv[2], json.load(sys.stdin))))
    else:
        serve("hostile", ["attack"], attacked)
