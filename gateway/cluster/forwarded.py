"""Serves the requests that other replicas forward to this one, the owner of their sessions.

The listener opens the envelope of each request and calls the endpoint of its path. `peer_requests.py` is the sender's
side, and documents the frames of an answer.
"""

import contextlib
import functools
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import msgspec

from gateway.cluster.envelope import (
    CHANNEL,
    GREETING,
    HOLD,
    RECORD_MAC_BYTES,
    TICKET,
    CallFacts,
    Common,
    Envelope,
    Envelopes,
    Headers,
    Opened,
    Refusal,
)
from gateway.cluster.forwarded_post import Endpoint, ForwardedPost, KnownCommon, Tickets, scope_of, writer
from gateway.cluster.ownership import Forwarded
from gateway.observability.logs import CORRELATION
from session_store import Principal
from transports.inbound.http import Receive
from transports.inbound.limits import Limits
from transports.inbound_port import OwnedByPeer, Refused
from transports.peer_channel_server import Call, CallFaulty, Rules
from transports.replica_wire_server import Incoming, PeerBounds, PeerServer, PeerUnknown
from transports.tasks import Tasks

__all__ = ["PeerListener"]

logger = logging.getLogger(__name__)

_ENVELOPE_BYTES: Final = 64 << 10
"""Bytes of an envelope beside the request's headers: claims of a credential, names."""

_commons = msgspec.msgpack.Decoder(Common)
_facts = msgspec.msgpack.Decoder(CallFacts)


class PeerListener:
    """Serves the requests of peers. `refused` is called for each sender that is no replica of this store. `hold` agrees
    to take nothing from a replica for a while."""

    def __init__(
        self,
        replica: str,
        envelopes: Envelopes,
        endpoints: Mapping[str, Endpoint],
        limits: Limits,
        *,
        refused: Callable[[], None],
        hold: Callable[[str], bool],
    ) -> None:
        self._replica = replica
        self._envelopes = envelopes
        self._endpoints = endpoints
        self._refused = refused
        self._hold = hold
        self._tasks = Tasks("calls of peers")
        self._tickets = Tickets()
        self._server = PeerServer(
            self._serve,
            lambda: logger.exception("a forwarded request failed"),
            own=(envelopes.peer_keys, replica),
            tls=envelopes.tls,
            opening=self._open,
            refused=refused,
            bounds=PeerBounds(head_bytes=limits.head_bytes + _ENVELOPE_BYTES, body_bytes=limits.body_bytes),
        )

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Accept peers inside the block. Yields the port. Raises `OSError`: the address cannot be bound."""
        try:
            async with self._server.listening(host, port) as bound:
                yield bound
        finally:
            await self._tasks.close()

    def _open(self, head: bytes) -> Opened:
        opened = self._envelopes.open(self._replica, head)
        if isinstance(opened, Refusal):
            raise PeerUnknown(opened.value.encode())
        return opened

    async def _serve(self, incoming: Incoming) -> None:
        CORRELATION.set("")  # that of an earlier request, if the connection has served one
        envelope: Envelope = incoming.opened.envelope
        headers = self._envelopes.take(incoming.opened, incoming.body)
        if isinstance(headers, Refusal):
            await incoming.send(b"r", headers.value.encode())
        elif envelope.path == GREETING:
            await incoming.send(b"e")
        elif envelope.path == HOLD:
            await incoming.send(b"e" if self._hold(envelope.session) else b"m")
        elif envelope.path == CHANNEL:
            await self._open_channel(envelope.session, incoming)
        elif envelope.path == TICKET:
            await self._fetch(envelope.session, incoming)
        elif (endpoint := self._endpoints.get(envelope.path)) is None:
            await incoming.send(b"r", Refusal.INVALID.value.encode())
        else:
            try:
                await endpoint(_scope(envelope, headers, incoming), _receiving(incoming), writer(incoming))
            except OwnedByPeer:
                await incoming.send(b"m")

    async def _fetch(self, ticket: str, incoming: Incoming) -> None:
        post = self._tickets.take(ticket)
        if post is None:
            await incoming.send(b"r", Refusal.SEEN.value.encode())
        else:
            await post.fetch(incoming)

    # -- channels

    async def _open_channel(self, name: str, incoming: Incoming) -> None:
        """Use the connection as a channel. Both sides have a random part of its name, so its records fit no other."""
        own = secrets.token_urlsafe(16)
        name += own
        rules = Rules(
            mac_bytes=RECORD_MAC_BYTES,
            verify=functools.partial(self._envelopes.verify_record, name),
            define=self._define,
            begin=self._begin,
            cut=self._refused,
        )
        await incoming.send(b"e", own.encode())
        incoming.become_channel(name, rules)

    def _define(self, packed: bytes) -> KnownCommon:
        try:
            common = _commons.decode(packed)
        except msgspec.MsgspecError:
            raise CallFaulty from None
        endpoint = self._endpoints.get(common.path)
        if endpoint is None:
            raise CallFaulty
        known = KnownCommon(common, endpoint, None)
        facts = CallFacts(-1, -1, "", "")
        try:
            head = endpoint.posts.checked_head(known.scope(facts, known.forwarded(facts, lambda: None)))
        except Refused:
            return known
        return KnownCommon(common, endpoint, head)

    def _begin(self, call: Call) -> None:
        try:
            if not self._envelopes.use_number(call.channel.name, call.number):
                call.channel.end(b"r", call.number, Refusal.SEEN.value.encode())
                return
            ForwardedPost(call, _facts.decode(call.facts), self._tasks, self._tickets).start()
        except Exception:
            logger.exception("a forwarded request failed")
            call.channel.end(b"r", call.number, Refusal.SEEN.value.encode())


def _scope(envelope: Envelope, headers: Headers, incoming: Incoming) -> dict[str, Any]:
    """The ASGI scope of a request on a connection of its own."""

    forwarded = Forwarded(
        session_id=envelope.session,
        principal=Principal(issuer=envelope.issuer, subject=envelope.subject),
        epoch=envelope.epoch,
        version=envelope.version,
        granted=envelope.granted,
        started=lambda: None,  # the sender counts on it
    )
    scope = scope_of(envelope.method, envelope.path, secure=envelope.secure, headers=headers, forwarded=forwarded)
    return scope | {"mcp.again": envelope.again}


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
