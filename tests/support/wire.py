"""Requests written byte by byte, and whatever comes back on the connection, however many answers that are.

Knows HTTP only as far as an attacker needs it; answers are read by h11.
"""

import contextlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, Self
from urllib.parse import urlsplit

from tests.support.http_bytes import Answer, first_answer
from tests.support.mcp_clients import modern_body, modern_headers

LEGACY: Final = "2025-11-25"
ACCEPT: Final = "application/json, text/event-stream"


class Wire:
    """One connection to a port of this machine; `source` is the address it comes from."""

    def __init__(self, port: int, *, source: str = "", within_s: float = 5.0) -> None:
        own = (source, 0) if source else None
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=within_s, source_address=own)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Whether the other side took it."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def answer(self, within_s: float = 5.0) -> Answer | None:
        """The next one, None where none comes. One that falls silent in its middle is not complete."""
        self.socket.settimeout(within_s)
        is_over = False
        while True:
            found = first_answer(self._rest, closed=is_over)
            if found is not None and (found[0].complete or is_over):
                answer, self._rest = found
                return answer
            if is_over:
                return None
            data = b""
            with contextlib.suppress(OSError):
                data = self.socket.recv(1 << 16)
            self._rest += data
            is_over = not data

    def answers(self, within_s: float = 1.0, most: int = 8, first_s: float = 5.0) -> list[Answer]:
        """All that come, until the connection ends or is silent for so long."""
        found: list[Answer] = []
        while len(found) < most:
            answer = self.answer(within_s if found else first_s)
            if answer is None:
                break
            found.append(answer)
            if not answer.complete:
                break
        return found


def head(
    method: str = "POST", path: str = "/servers/tool/mcp", headers: Iterable[tuple[str, str]] = (), version: str = "1.1"
) -> bytes:
    """Request line and headers as they are given, nothing added."""
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def request(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A request with these headers and `Content-Length`."""
    return head(method, path, {**headers, "Content-Length": str(len(body))}.items()) + body


def post(body: bytes, headers: Mapping[str, str] | None = None, path: str = "/servers/tool/mcp") -> bytes:
    """A plain POST."""
    given = {"Host": "localhost", "Content-Type": "application/json", "Accept": ACCEPT, **(headers or {})}
    if "Content-Length" not in given and "Transfer-Encoding" not in given:
        given["Content-Length"] = str(len(body))
    return head(path=path, headers=given.items()) + body


def call_body(tool: str, arguments: Mapping[str, Any] | None = None, request_id: Any = 1, meta: Any = None) -> Any:
    """A call of the era without sessions."""
    return modern_body(
        "tools/call", {"name": tool, "arguments": dict(arguments or {})}, meta=meta, request_id=request_id
    )


def legacy_body(method: str, params: Any = None, request_id: Any = 1) -> Any:
    """A request of the handshake era."""
    body = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return body if params is None else {**body, "params": params}


def hello(version: str = LEGACY, name: str = "attacker") -> Any:
    """The params of a handshake."""
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": name, "version": "1"}}


def rpc(body: Any, headers: Mapping[str, str] | None = None, path: str = "/servers/tool/mcp") -> bytes:
    """A message of the era without sessions, with the headers that it needs."""
    return post(json.dumps(body).encode(), {**modern_headers(body), **(headers or {})}, path)


def ask(port: int, request: bytes, *, source: str = "", within_s: float = 10.0) -> Answer:
    """One request on a connection of its own.

    Raises:
        ConnectionError: no answer came.
    """
    with Wire(port, source=source) as wire:
        wire.send(request)
        answer = wire.answer(within_s)
    if answer is None:
        raise ConnectionError("no answer")
    return answer


def flood(port: int, requests: Iterable[bytes], connections: int = 8) -> Counter[int]:
    """Send all requests over a few kept connections. Returns the number of answers by status; 0 stands for a connection
    that ended without one."""
    waiting, taking, statuses = iter(requests), threading.Lock(), Counter[int]()

    def some(_: int) -> None:
        wire: Wire | None = None
        while True:
            with taking:
                data = next(waiting, None)
            if data is None:
                break
            wire = wire or Wire(port, within_s=30)
            status, stays = 0, False
            with contextlib.suppress(OSError, HTTPException):
                wire.socket.sendall(data)
                answer = HTTPResponse(wire.socket)
                answer.begin()
                status = answer.status
                if answer.getheader("Content-Type") != "text/event-stream":  # which may stay open
                    answer.read()
                    stays = not answer.will_close
            with taking:
                statuses[status] += 1
            if not stays:
                wire.close()
                wire = None
        if wire is not None:
            wire.close()

    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(some, range(connections)))
    return statuses


class PipeliningClient:
    """Writes requests at once on one connection, and reads their responses in order."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        self._host, self._wire = parts.netloc, Wire(parts.port, within_s=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    def write(self, *requests: bytes) -> None:
        """Send these requests in one write."""
        self._wire.socket.sendall(b"".join(requests))

    def request(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
        """The bytes of one request, with `Host` and `Content-Length`."""
        return request(method, path, {"Host": self._host, **headers}, body)

    def rpc(self, body: Any, headers: dict[str, str], path: str = "/mcp") -> bytes:
        """The bytes of a POST of one JSON-RPC message."""
        return self.request("POST", path, {"Content-Type": "application/json", **headers}, json.dumps(body).encode())

    def answers(self, number: int) -> list[tuple[int, Any]]:
        """Status and JSON body (None if empty) of the next responses.

        Raises:
            ConnectionError: they did not all come.
        """
        found = list[tuple[int, Any]]()
        for _ in range(number):
            answer = self._wire.answer(10)
            if answer is None or not answer.complete:
                raise ConnectionError(f"only {found}")
            found.append((answer.status, json.loads(answer.body) if answer.body else None))
        return found
