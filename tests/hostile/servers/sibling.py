"""An honest MCP server beside a hostile one: it has secrets in every place that siblings could share.

Tools: `place` keeps a secret everywhere and says where, `ping` answers, `heard` tells what reached it from others.
`python sibling.py --word SECRET`: the word on the command line is one of the places.
"""

import contextlib
import ctypes
import importlib
import json
import os
import socket
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
_kernel: Any = importlib.import_module("attacks.kernel")
libc, syscall = _kernel.libc, _kernel.syscall

heard: list[str] = []
kept: list[Any] = []
"""What must not be collected: memory with the word."""


def _serve(listener: socket.socket, path: str, word: str) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.settimeout(2)
            said = connection.recv(200)
            heard.append(said.decode("utf-8", "replace"))
            if said == b"pass":
                with open(path, "rb") as file:
                    socket.send_fds(connection, [b"x"], [file.fileno()])
            else:
                connection.sendall(word.encode())


def _listen(address: str, path: str, word: str) -> str:
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        return f"cannot: {error.strerror}"
    threading.Thread(target=_serve, args=(listener, path, word), daemon=True).start()
    return address.lstrip("\0")


def _segment(word: str, key: int) -> dict[str, Any]:
    """A segment of System V, private to this user."""
    found: dict[str, Any] = {"key": key}
    with contextlib.suppress(OSError):
        found["segment"] = syscall("shmget", key, 4096, 0o1600)
        libc.shmat.restype = ctypes.c_void_p
        ctypes.memmove(libc.shmat(found["segment"], None, 0), word.encode(), len(word))
    return found


def _state(word: str) -> str:
    """Keep the word in the session's state."""
    path, access = os.environ.get("MCP_SESSION_SOCKET", ""), os.environ.get("MCP_SESSION_ACCESS", "")
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            return f"cannot: {error.strerror}"
        body = json.dumps({"value": word}).encode()
        head = f"PUT /v1/state/{urllib.parse.quote('secret')} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        head += (
            f"Authorization: Bearer {access}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        return connection.recv(1000).decode("utf-8", "replace").split("\r\n")[0]


def place(facts: dict[str, Any]) -> dict[str, Any]:
    """Keep the word everywhere. What this machine or its walls refuse is missing from the answer."""
    word = str(facts["word"])
    kept.append(bytearray(word.encode() * 64))
    folder = tempfile.gettempdir()
    path = os.path.join(folder, "sibling-secret")
    with open(path, "w", encoding="ascii") as file:
        file.write(word)
    os.chmod(path, 0o600)
    with contextlib.suppress(OSError), open(f"/dev/shm/sibling-{facts['key']}", "w", encoding="ascii") as file:
        file.write(word)
    return {
        "folder": folder,
        "file": path,
        "path": _listen(os.path.join(folder, "s"), path, word),
        "abstract": _listen(f"\0sibling-{os.getpid()}", path, word),
        "socket": os.environ.get("MCP_SESSION_SOCKET", ""),
        "access": os.environ.get("MCP_SESSION_ACCESS", ""),
        "state": _state(word),
        **_segment(word, int(facts["key"])),
    }


def called(name: str, arguments: dict[str, Any]) -> Any:
    match name:
        case "place":
            return place(arguments)
        case "heard":
            return list(heard)
        case "keep":
            kept.append("something")
            return "kept"
        case "opens":  # whether it still can, and is the process that it was
            with open(os.devnull, "rb"):
                return "opened" if kept else "opened, but it is new"
        case _:
            return "pong"


if __name__ == "__main__":
    importlib.import_module("hostile").serve("sibling", ["place", "heard", "ping", "keep", "opens"], called)
