"""Read headers and bodies, check Host and Origin, and send responses, for both eras. Knows no JSON-RPC method."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from transports.inbound.unauthenticated_limits import (
    MAX_LABEL_CHARS,
    SMALL_BODY_BYTES,
    HeldBody,
    Limits,
    client_network,
)
from transports.inbound_port import HeaderList, Refused
from transports.jsonrpc import INVALID_REQUEST, encode_error
from transports.via_header import MOST, PASSED, gateways_in

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

STRANGER_BODY_BYTES: Final = SMALL_BODY_BYTES
"""The most bytes of a body that are read before its sender is known: else anyone could fill the memory."""

_WATCH_AFTER_S: Final = 0.05
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_UNKNOWN_HOST: Final = "The Host header does not name this server: its operator gives its names as allowed_hosts."
_FORBIDDEN_ORIGIN: Final = (
    "The Origin of this request is not allowed: the operator gives those that are as allowed_origins."
)
_LOOP: Final = (
    "This request has passed this gateway already: the url of one of its servers leads back to it. Remove this server."
)
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
    """Return headers by lower-case name. A header in `single` or `_SINGLE` may appear only once. `most` is in bytes.

    Raises:
        Refused: 400, such a header appears twice, and readers would disagree on which one counts; 431, the headers
            together
        are larger than `most`.
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
    held: HeldBody | None = None,
) -> bytes | None:
    """Read the request's body, and return it. Return None if the client disconnected before its end.

    `check_sender` raises `Refused` if the sender may not send so many bytes. It is called before more than
    `STRANGER_BODY_BYTES` are read; for a smaller body, when all of it was read. Without a declared length, it is called
    once more for the rest. `held` counts the bytes read; the caller releases them.

    Raises:
        Refused: 413, the body has more than `limit` bytes, and is not read on; the errors of `check_sender` and `held`.
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
        if held is not None and size > SMALL_BODY_BYTES:
            held.grows_to(size)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Check Host and Origin, so that web pages cannot reach a server on the user's own machine.

    MCP 2025-11-25, Transports §Security Warning (DNS rebinding). If `hosts` is empty, any host is allowed, or with
    `loopback` only the loopback names; `*` in `hosts` allows any. `domains` are further allowed suffixes of host names,
    with their dot. The forwarding headers of `proxies` are trusted. A header in `single` may appear only once: two
    credentials would be two callers.
    """

    hosts: frozenset[str] = frozenset()
    domains: tuple[str, ...] = ()
    origins: frozenset[str] = frozenset()
    loopback: bool = True
    proxies: Container[str] = ()
    single: frozenset[str] = frozenset()
    hops: frozenset[str] = frozenset()
    """The names of this gateway in `Via` headers (RFC 9110 §7.6.3)."""
    head_bytes: int = Limits().head_bytes
    """The most bytes of all headers. Checked here too, because the app may be mounted in another HTTP server."""

    def headers(self, scope: Scope) -> dict[str, str]:
        """Return the request's headers, by lower-case name.

        Raises:
            Refused: 400, a header appears twice that may appear once; 431, the headers are too large (`header_map`).
        """
        return header_map(scope["headers"], self.single, self.head_bytes)

    def check(self, headers: Mapping[str, str]) -> None:
        """Check Host and Origin, and that the request has not passed this gateway before. Store the gateways that it
        has passed. Raises `Refused`: 421, the host name is unknown; 403, the origin is not allowed; 508, a loop."""
        # Checked before the parsing, which caches its arguments.
        named = headers.get("host", "")
        if len(named) > MAX_LABEL_CHARS or not self._serves(_hostname(named)):
            raise Refused(421, INVALID_REQUEST, _UNKNOWN_HOST, reason="host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and (len(origin) > MAX_LABEL_CHARS or not self._allows(origin, headers)):
            raise Refused(403, INVALID_REQUEST, _FORBIDDEN_ORIGIN, reason="origin_not_allowed")
        passed = gateways_in(via) if (via := headers.get("via")) else ()
        # Whoever names this gateway without having passed it harms only the own request.
        if not self.hops.isdisjoint(passed) or len(passed) > MOST:
            raise Refused(508, INVALID_REQUEST, _LOOP, reason="loop")
        PASSED.set(passed)

    @property
    def served_host(self) -> str:
        """Return a host name that passes this guard, for requests from within the process."""
        named = sorted(host for host in self.hosts if "*" not in host)
        return named[0] if named else f"gateway{self.domains[0]}" if self.domains else "localhost"

    def _serves(self, host: str) -> bool:
        if self.hosts:
            return host in self.hosts or "*" in self.hosts or host.endswith(self.domains)
        return not self.loopback or host in _LOOPBACK

    def _allows(self, origin: str, headers: Mapping[str, str]) -> bool:
        if origin in self.origins or is_same_origin(headers):
            return True
        return self.loopback and not self.hosts and _hostname(_netloc(origin)) in _LOOPBACK

    def is_secure(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        """Return True if the client uses TLS: on the connection, or to a proxy that is trusted or on this machine."""
        if scope.get("scheme") == "https":
            return True
        if headers.get("x-forwarded-proto") != "https":
            return False
        peer = peer_of(scope)
        return peer in _LOOPBACK or peer in self.proxies

    def client(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Return the client's network: that of the connection, or the one that trusted proxies name."""
        return client_network(peer_of(scope), headers, self.proxies)

    @staticmethod
    def same_site(headers: Mapping[str, str]) -> bool:
        """Return False if a browser's headers show that another site caused this request; else True."""
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return False
        return "origin" not in headers or is_same_origin(headers)


def check_same_site(headers: Mapping[str, str]) -> None:
    """Refuse an event stream to a page of another site. Raises `Refused` (403)."""
    if not Guard.same_site(headers):
        why = "Event streams are not served to pages of other sites."
        raise Refused(403, INVALID_REQUEST, why, reason="origin_not_allowed")


def check_is_json(headers: Mapping[str, str]) -> None:
    """Check that the body is declared as JSON. Raises `Refused` (415) otherwise."""
    kind = headers.get("content-type", "")
    if kind != "application/json" and kind.partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, INVALID_REQUEST, "The Content-Type must be application/json.", reason="content_type")


async def until_disconnect(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientWatch:
    """Call `on_left` when the client disconnects. The watch starts late, because most requests end sooner."""

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


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Return True if the Origin names the same host as the Host header."""
    origin = headers.get("origin", "")
    if len(origin) > MAX_LABEL_CHARS:
        return False
    netloc = _netloc(origin)
    return bool(netloc) and netloc.lower() == headers.get("host", "").lower()


def _netloc(url: str) -> str:
    """Return the host and port of a URL; empty if it is not a URL."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


@functools.lru_cache(maxsize=256)
def _hostname(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


def readable_by(send: Send, origin: str) -> Send:
    """Return an ASGI `send` whose responses web pages of `origin` may read (CORS). The guard has allowed the origin."""
    shared = origin_headers(origin)

    async def sending(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = [*event["headers"], *shared]
        await send(event)

    return sending


def origin_headers(origin: str) -> HeaderList:
    """Return headers that let pages of `origin` read a response (Fetch §3.2, CORS)."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"mcp-session-id, mcp-gateway-session"),
        (b"vary", b"Origin"),
    ]


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
