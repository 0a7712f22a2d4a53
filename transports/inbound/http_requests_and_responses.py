"""Read the headers and bodies of HTTP requests, and send responses, for both eras. Knows no JSON-RPC method."""

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, MutableMapping
from typing import Any, Final

from transports.inbound.unauthenticated_limits import (
    SMALL_BODY_BYTES,
    CountedBody,
    Limits,
)
from transports.inbound_port import HeaderList, Refused
from transports.jsonrpc import INVALID_REQUEST, encode_error

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

STRANGER_BODY_BYTES: Final = SMALL_BODY_BYTES
"""Maximum bytes of a body that are read before its sender is authenticated. Otherwise anyone could fill the memory."""

_WATCH_AFTER_S: Final = 0.05
_SINGLE: Final = frozenset(
    {"authorization", "content-type", "host", "last-event-id", "mcp-gateway-session", "mcp-session-id", "origin"}
)
# Header names that most requests have, decoded once.
_KNOWN: Final = {
    name.encode(): name
    for name in (
        *_SINGLE,
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "cookie",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
        "traceparent",
        "user-agent",
    )
}


def header_map(
    raw: Iterable[tuple[bytes, bytes]], single: Container[str] = (), most: int = Limits().head_bytes
) -> dict[str, str]:
    """Return the headers of a request by lower-case name. A header in `single` or `_SINGLE` may appear only once; the
    values of others that are repeated are joined. `most` is the most bytes that all headers may have together.

    Raises:
        Refused: 400, a header appears twice that may appear only once, because readers would disagree on which one
            counts; 431, the headers together are larger than `most`.
    """
    raw = list(raw)
    # White space around a value is not part of it (RFC 9110 §5.5); some parsers leave it there.
    headers = {
        _KNOWN.get(name) or name.decode("latin-1").lower(): value.decode("latin-1").strip(" \t") for name, value in raw
    }
    is_plain = len(headers) == len(raw)
    size = sum(map(len, headers.values())) if is_plain else sum(len(name) + len(value) for name, value in raw)
    if size > most:
        raise Refused(431, INVALID_REQUEST, f"The headers are larger than {most} bytes.", reason="headers_too_large")
    return headers if is_plain else _merged(raw, single)


def _merged(raw: Iterable[tuple[bytes, bytes]], single: Container[str]) -> dict[str, str]:
    """Return headers by name, with the values of repeated ones joined. Raises `Refused` (400) as `header_map`."""
    headers: dict[str, str] = {}
    for name_bytes, value_bytes in raw:
        name, value = name_bytes.decode("latin-1").lower(), value_bytes.decode("latin-1").strip(" \t")
        if name not in headers:
            headers[name] = value
        elif name in _SINGLE or name in single:
            raise Refused(400, INVALID_REQUEST, f"The {name} header appears more than once.", reason="repeated_header")
        else:
            headers[name] += ("; " if name == "cookie" else ", ") + value
    return headers


async def read_body(
    receive: Receive,
    headers: Mapping[str, str],
    limit: int,
    check_sender: Callable[[int], Awaitable[object]] | None = None,
    counted: CountedBody | None = None,
) -> bytes | None:
    """Read the request's body, and return it. Return None if the client disconnected before its end.

    `check_sender` raises `Refused` if the sender may not send so many bytes. It is called before more than
    `STRANGER_BODY_BYTES` are read; for a smaller body, when all of it was read. Without a declared length, it is called
    once more for the rest. `counted` counts the bytes that were read; the caller has to release them.

    Raises:
        Refused: 413, the body has more than `limit` bytes, and is not read on; errors of `check_sender` and `counted`.
    """
    declared = headers.get("content-length", "")
    length = int(declared) if declared.isdigit() else 0
    if length > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = checked = 0
    while True:
        if check_sender is not None and not checked and max(length, size) > STRANGER_BODY_BYTES:
            checked = max(length, size)
            await check_sender(checked)
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        chunk = event.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        if counted is not None and size > SMALL_BODY_BYTES:
            counted.count(size)
        chunks.append(chunk)
        if not event.get("more_body", False):
            if check_sender is not None and (size > checked or not checked):
                await check_sender(size - checked)
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limit: int) -> Refused:
    return Refused(
        413,
        INVALID_REQUEST,
        f"The body is larger than {limit} bytes.",
        reason="body_too_large",
        headers={"Connection": "close"},
    )


def check_is_json(headers: Mapping[str, str]) -> None:
    """Check that the body is declared as JSON. Raises `Refused` (415) otherwise."""
    kind = headers.get("content-type", "")
    if kind != "application/json" and kind.partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, INVALID_REQUEST, "The Content-Type must be application/json.", reason="content_type")


async def until_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientWatch:
    """Call `on_left` when the client disconnects. The watch begins only after a while, because most requests have ended
    by then."""

    def __init__(self, receive: Receive, on_left: Callable[[], None]) -> None:
        self._receive = receive
        self._on_left = on_left
        self.left = False
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._start)

    def _start(self) -> None:
        # A bare task: an owner for each slow request costs more than the watch. `stop` ends the task.
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await until_disconnect(self._receive)
        self.left = True
        self._on_left()

    def stop(self) -> None:
        """End the watch, because the request has ended."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()


def peer_of(scope: Scope) -> str:
    """Return the address of the connection's other end; empty if it has none."""
    client = scope.get("client")
    return str(client[0]) if client else ""


async def send_json(send: Send, status: int, body: bytes, headers: HeaderList | None = None) -> None:
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": head + (headers or [])})
    await send({"type": "http.response.body", "body": body})


async def send_status(send: Send, status: int, headers: HeaderList | None = None) -> None:
    """Send a response without a body."""
    await send(
        {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0"), *(headers or [])]}
    )
    await send({"type": "http.response.body", "body": b""})


async def send_refusal(send: Send, refused: Refused, request_id: bytes = b"null") -> None:
    """Send a refusal as a JSON-RPC error with its HTTP status. `request_id` is encoded; empty: the error has no id."""
    headers = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in refused.headers.items()]
    await send_json(send, refused.status, encode_error(request_id, refused.error()), headers)
