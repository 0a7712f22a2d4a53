"""Requests written byte by byte, and whatever comes back on the connection, however many answers that are.

Knows HTTP only as far as an attacker needs it; answers are read by the standard library.
"""

import http.client
import io
import json
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Self
from urllib.parse import urlsplit

from tests.support.mcp_clients import modern_body, modern_headers

LEGACY: Final = "2025-11-25"
ACCEPT: Final = "application/json, text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One response; `whole` is false where the connection ended, or fell silent, in its middle."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool

    def message(self) -> Any:
        """The last JSON-RPC message of it; an empty object where there is none."""
        texts = [self.body]
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            lines = (line for line in self.body.splitlines() if line.startswith(b"data:"))
            texts = [line.removeprefix(b"data:") for line in lines]
        try:
            found = json.loads(next(text for text in reversed(texts) if text.strip()))
        except (StopIteration, ValueError):
            return {}
        return found

    def error(self) -> str:
        """What it says is wrong, empty if nothing."""
        message = self.message()
        error = message.get("error") if isinstance(message, dict) else None
        return str(error.get("message", error)) if isinstance(error, dict) else str(error or "")

    def text(self) -> str:
        """The text of a tool's answer, empty if it is none."""
        message = self.message()
        content = message.get("result", {}).get("content", []) if isinstance(message, dict) else []
        return str(content[0].get("text", "")) if content else ""


class _Kept(io.BufferedReader):
    """What comes on a connection. A response that has ended does not close it."""

    def close(self) -> None:
        pass


class Wire:
    """One connection to a port of this machine, or to a Unix socket; `source` is the address it comes from."""

    def __init__(self, place: int | str, *, source: str = "", within_s: float = 5.0) -> None:
        if isinstance(place, str):
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.connect(place)
        else:
            self.socket = socket.create_connection(
                ("127.0.0.1", place), timeout=within_s, source_address=(source, 0) if source else None
            )
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(within_s)
        self._file = _Kept(socket.SocketIO(self.socket, "r"))

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *parts: bytes, pause_s: float = 0.05) -> bool:
        """Each part on its own, so that they arrive apart; whether the other side took them."""
        try:
            for number, part in enumerate(parts):
                if number:
                    time.sleep(pause_s)
                self.socket.sendall(part)
        except OSError:
            return False
        return True

    def answer(self, within_s: float = 5.0, method: str = "POST") -> Answer | None:
        """The next one, None where none comes."""
        self.socket.settimeout(within_s)
        reading: Any = SimpleNamespace(makefile=lambda _: self._file)
        response = http.client.HTTPResponse(reading, method=method)
        try:
            response.begin()
        except (OSError, http.client.HTTPException, ValueError):
            return None
        body, whole = b"", True
        try:
            while chunk := response.read1(1 << 20):
                body += chunk
        except (OSError, http.client.HTTPException, ValueError):
            whole = False
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(status=response.status, headers=headers, body=body, whole=whole)

    def answers(self, within_s: float = 1.0, most: int = 8, first_s: float = 5.0) -> list[Answer]:
        """All that come, until the connection ends or is silent for so long."""
        found: list[Answer] = []
        while len(found) < most:
            answer = self.answer(within_s if found else first_s)
            if answer is None:
                break
            found.append(answer)
            if not answer.whole:
                break
        return found

    def is_closed(self, within_s: float = 1.0) -> bool:
        """Whether the other side has ended the connection, or does in that time; what it still says is dropped."""
        self.socket.settimeout(within_s)
        try:
            while self._file.read1(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True


def statuses(answers: Iterable[Answer]) -> str:
    """For a table: `200`, `400 400`, or `closed`."""
    return " ".join(str(answer.status) for answer in answers) or "closed"


def head(
    method: str = "POST", path: str = "/servers/tool/mcp", headers: Iterable[tuple[str, str]] = (), version: str = "1.1"
) -> bytes:
    """Request line and headers as they are given, nothing added."""
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


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


def legacy(
    method: str,
    params: Any = None,
    headers: Mapping[str, str] | None = None,
    path: str = "/servers/tool/mcp",
    request_id: Any = 1,
) -> bytes:
    """A request of the handshake era, as it is sent."""
    return post(json.dumps(legacy_body(method, params, request_id)).encode(), headers, path)


def rpc(body: Any, headers: Mapping[str, str] | None = None, path: str = "/servers/tool/mcp") -> bytes:
    """A message of the era without sessions, with the headers that it needs."""
    return post(json.dumps(body).encode(), {**modern_headers(body), **(headers or {})}, path)


def ask(place: int | str, request: bytes, *, source: str = "", within_s: float = 10.0) -> Answer:
    """One request on a connection of its own.

    Raises:
        ConnectionError: no answer came.
    """
    with Wire(place, source=source) as wire:
        wire.send(request)
        answer = wire.answer(within_s)
    if answer is None:
        raise ConnectionError("no answer")
    return answer


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
        given = {"Host": self._host, **headers, "Content-Length": str(len(body))}
        return head(method, path, given.items()) + body

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
            if answer is None or not answer.whole:
                raise ConnectionError(f"only {found}")
            found.append((answer.status, json.loads(answer.body) if answer.body else None))
        return found
