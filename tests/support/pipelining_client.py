"""A client that pipelines requests on one TCP connection: it does not wait for a response before the next request."""

import http.client
import json
import socket
from typing import Any, cast
from urllib.parse import urlsplit

__all__ = ["PipeliningClient"]


class PipeliningClient:
    """Writes requests at once and reads their responses in order."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._host = parts.netloc
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=10)
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> "PipeliningClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def write(self, *requests: bytes) -> None:
        """Send these requests in one write."""
        self._socket.sendall(b"".join(requests))

    def request(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
        """The bytes of one request, with `Host` and `Content-Length`."""
        head = {"Host": self._host, **headers, "Content-Length": str(len(body))}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
        return "\r\n".join(lines).encode() + body

    def rpc(self, body: Any, headers: dict[str, str], path: str = "/mcp") -> bytes:
        """The bytes of a POST of one JSON-RPC message."""
        head = {"Content-Type": "application/json", **headers}
        return self.request("POST", path, head, json.dumps(body).encode())

    def answers(self, number: int) -> list[tuple[int, Any]]:
        """Status and JSON body (None if empty) of the next responses."""
        return [self._answer() for _ in range(number)]

    def _answer(self) -> tuple[int, Any]:
        # The response must not close, nor read ahead of, what all answers share.
        source = cast("socket.socket", _Shared(self._stream))
        response = http.client.HTTPResponse(source)
        response.begin()
        body = response.read()
        return response.status, json.loads(body) if body else None


class _Shared:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def makefile(self, *_: object) -> Any:
        return self

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
