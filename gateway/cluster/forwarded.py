"""Serves the requests that other replicas forward to this one, the owner of their sessions.

The listener opens the envelope of each request and calls the endpoint of its path. `peer_requests.py` is the sender's
side, and documents the frames of an answer.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from gateway.cluster.envelope import GREETING, Envelope, Envelopes, Headers, Opened, Refusal
from gateway.cluster.ownership import Forwarded
from gateway.observability.logs import CORRELATION
from session_store import Principal
from transports.inbound.http import Receive, Scope, Send
from transports.inbound.limits import Limits
from transports.inbound_port import OwnedByPeer
from transports.replica_wire_server import Incoming, PeerBounds, PeerServer, PeerUnknown

__all__ = ["PeerListener"]

logger = logging.getLogger(__name__)

_ENVELOPE_BYTES: Final = 64 << 10
"""Bytes of an envelope beside the request's headers: claims of a credential, names."""

Endpoint = Callable[[Scope, Receive, Send], Any]


class PeerListener:
    """Serves the requests of peers. `refused` is called for each sender that is no replica of this store."""

    def __init__(
        self,
        replica: str,
        envelopes: Envelopes,
        endpoints: Mapping[str, Endpoint],
        limits: Limits,
        *,
        refused: Callable[[], None],
    ) -> None:
        self._replica = replica
        self._envelopes = envelopes
        self._endpoints = endpoints
        self._server = PeerServer(
            self._serve,
            lambda: logger.exception("a forwarded request failed"),
            opening=self._open,
            refused=refused,
            bounds=PeerBounds(head_bytes=limits.head_bytes + _ENVELOPE_BYTES, body_bytes=limits.body_bytes),
        )

    def listening(self, host: str, port: int) -> contextlib.AbstractAsyncContextManager[int]:
        """Accept peers inside the block. Yields the port. Raises `OSError`: the address cannot be bound."""
        return self._server.listening(host, port)

    def _open(self, head: bytes) -> Opened:
        opened = self._envelopes.open(self._replica, head)
        if isinstance(opened, Refusal):
            raise PeerUnknown(opened.value.encode())
        return opened

    async def _serve(self, incoming: Incoming) -> None:
        CORRELATION.set("")  # that of an earlier request, if the connection has served one
        envelope: Envelope = incoming.opened.envelope
        headers = self._envelopes.take(incoming.opened, incoming.body)
        if envelope.path == GREETING and not isinstance(headers, Refusal):
            await incoming.send(b"e")
            return
        endpoint = self._endpoints.get(envelope.path)
        if isinstance(headers, Refusal) or endpoint is None:
            refusal = headers if isinstance(headers, Refusal) else Refusal.INVALID
            await incoming.send(b"r", refusal.value.encode())
            return
        answer = _FrameWriter(incoming)
        try:
            await endpoint(_scope(envelope, headers, answer), _receiving(incoming), answer.send)
        except OwnedByPeer:
            await incoming.send(b"m")


class _FrameWriter:
    """Writes the answer of an endpoint as frames."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming

    async def started(self) -> None:
        """Notify the sender that the request is about to be sent to a server. The frame is written on return."""
        await self._incoming.send(b"s")
        await asyncio.sleep(0)  # the event loop writes the frame at the end of its present iteration

    async def send(self, event: Mapping[str, Any]) -> None:
        """Handle an ASGI event of the endpoint."""
        if event["type"] == "http.response.start":
            await self._incoming.send(b"h", msgspec.msgpack.encode((event["status"], event["headers"])))
            return
        body = event.get("body", b"")
        if not event.get("more_body"):
            await self._incoming.send(b"e", body)
        elif body:
            await self._incoming.send(b"b", body)


def _scope(envelope: Envelope, headers: Headers, answer: _FrameWriter) -> dict[str, Any]:
    """The ASGI scope of a forwarded request. `mcp.forwarded` holds the facts that the sender has verified."""
    forwarded = Forwarded(
        session_id=envelope.session,
        principal=Principal(issuer=envelope.issuer, subject=envelope.subject),
        epoch=envelope.epoch,
        version=envelope.version,
        granted=envelope.granted,
        started=answer.started,
    )
    return {
        "type": "http",
        "method": envelope.method,
        "path": envelope.path,
        "root_path": "",
        "scheme": "https" if envelope.secure else "http",
        "headers": headers,
        "client": None,
        "mcp.forwarded": forwarded,
        "mcp.again": envelope.again,
    }


def _receiving(incoming: Incoming) -> Receive:
    """An ASGI receive channel with the body, and with a disconnect once the sender closes the connection."""
    given = False

    async def receive() -> Any:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": incoming.body, "more_body": False}
        await incoming.left()
        return {"type": "http.disconnect"}

    return receive
