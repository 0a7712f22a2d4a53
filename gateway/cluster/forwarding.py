"""One hop to the owner of a session and back: when to forward, when the owner is gone, and what the client then gets.

The owner answers with frames: `s` before anything is written upstream, then what ASGI sends: `h` the response's head,
`b` pieces of its body, `e` its end; or `m` alone: the session is not (any longer) served there; or `r`: it refuses.
"""

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

import msgspec

from gateway.cluster.envelope import GREETING, Envelope, Envelopes, Opened, Refusal
from gateway.cluster.ownership import LEASE_S, Cluster, Forwarded, Route
from gateway.cluster.reachability import Reachability
from gateway.errors import store_unavailable, unreachable
from gateway.observability.request_log import RequestLog
from gateway.observability.spans import PEER_HEADER
from session_store import Principal, Session, StoreUnavailable
from transports.inbound.http import ClientWatch, Guard, Receive, Scope, Send
from transports.inbound.limits import Limited, Limits
from transports.inbound.resumed import continued
from transports.inbound.streamable_http import StreamableHttp
from transports.inbound_port import OwnedByPeer, Refused
from transports.replica_wire import PeerConnection, PeerConnectionLost, PeerConnectionPool, PeerRefused, PeerTimedOut
from transports.replica_wire_server import Incoming, PeerBounds, PeerServer, PeerUnknown

__all__ = ["Forwarding"]

logger = logging.getLogger(__name__)

_MOST_TRIES: Final = 3
_ENVELOPE_BYTES: Final = 64 << 10
"""What an envelope may hold beside a request's headers: claims of a credential, names."""

_MOVED_S: Final = 0.02
"""What a session that changes hands may take to have a new owner in the store."""

_TOLD_EVERY_S: Final = 60.0

_NOT_PASSED_ON: Final = frozenset(
    {b"authorization", b"connection", b"content-length", b"transfer-encoding", PEER_HEADER.encode()}
)
_HEAD = tuple[int, list[tuple[bytes, bytes]]]


class _Outcome(enum.Enum):
    """How an attempt to have the owner answer ends."""

    ANSWERED = enum.auto()
    MOVED = enum.auto()
    GONE = enum.auto()
    """Nobody is there, or nobody who holds a lease: the session may be claimed."""
    CUT_OFF = enum.auto()
    """It lives, and does not hear us: the session may be claimed, and it has to hear of that first."""
    UNKNOWN = enum.auto()
    """It lives, and its answer broke off."""


class Forwarding:
    """Both ends of the hop."""

    def __init__(
        self,
        cluster: Cluster,
        envelopes: Envelopes,
        endpoints: Mapping[str, StreamableHttp],
        *,
        took_over: Callable[[Session], None],
        guard: Guard,
        watching: RequestLog,
        limits: Limits,
    ) -> None:
        self._cluster = cluster
        self._envelopes = envelopes
        self._endpoints = endpoints
        self._took_over = took_over
        self._guard = guard
        self._watching = watching
        self.reaching = Reachability(cluster, envelopes)
        self._told_contested_at = -_TOLD_EVERY_S
        self._pool = PeerConnectionPool()
        self._server = PeerServer(
            self._arrived,
            lambda: logger.exception("a forwarded request failed"),
            opening=self._opening,
            refused=lambda: watching.metrics.limited.update((Limited.HOP,)),
            bounds=PeerBounds(head_bytes=limits.head_bytes + _ENVELOPE_BYTES, body_bytes=limits.body_bytes),
        )

    # -- to the owner

    async def forward(self, route: Route, scope: Scope, body: bytes, receive: Receive, send: Send) -> Send | None:
        """Have the owner answer. Else where to send the answer when it is tried here again: the session is ours now, or
        may be. `scope["mcp.again"]` is True from then on when the request may have taken effect already.

        Raises:
            Refused: 503, neither the owner nor the session can be had.
        """
        passing = _Passing(send)
        owner = route.session.owner
        try:
            if owner in ("", self._cluster.replica):
                return await self._hand_over(passing, route, scope, body, receive)
            address, leased = await self._cluster.address_of(owner)
            outcome = _Outcome.GONE
            if address:
                outcome = await self._ask(passing, owner, address, route, scope, body, receive)
            elif leased:
                outcome = _Outcome.CUT_OFF  # it knows that nobody finds it
            if outcome in (_Outcome.GONE, _Outcome.CUT_OFF):
                if not self._cluster.is_reachable and not passing.started:
                    return await self._hand_over(passing, route, scope, body, receive)
                await self._take(route.session, outcome, address if leased else None)
            else:
                self._cluster.found(route.session.id)
        except StoreUnavailable:
            raise store_unavailable() from None
        return await self._after(outcome, passing, scope)

    async def _take(self, session: Session, outcome: _Outcome, refusing: str | None) -> None:
        """Have the session of an owner that is not found. `refusing`: its address, where its lease is good.

        Raises:
            Refused: 503, it took the session from us, and lives.
        """
        if not self._cluster.is_reachable:
            return
        if outcome is _Outcome.GONE and refusing:
            if await self._cluster.is_contested(session):
                self._tell_contested(session.owner, refusing)
                raise unreachable()
            self._cluster.refused_by(session.owner, refusing)
        claimed = await self._cluster.take(session, leased=outcome is _Outcome.CUT_OFF)
        if claimed is not None and claimed.owner == self._cluster.replica:
            self._took_over(claimed)

    def _tell_contested(self, owner: str, address: str) -> None:
        now = monotonic()
        if now - self._told_contested_at < _TOLD_EVERY_S:
            return
        self._told_contested_at = now
        logger.error(
            "replica %s took sessions over from this one, and does not answer at %s, although it lives: two gateways "
            "do not find each other. Their requests get 503 here. Correct gateway.advertise: there, or here (%s)",
            *(owner, address, self._cluster.address),
        )

    async def _hand_over(
        self, passing: "_Passing", route: Route, scope: Scope, body: bytes, receive: Receive
    ) -> Send | None:
        """This replica leaves, and what it served belongs to nobody: another one takes it."""
        another = await self._cluster.another()
        if another is None:
            raise unreachable()
        outcome = await self._ask(passing, *another, route, scope, body, receive)
        if outcome in (_Outcome.GONE, _Outcome.CUT_OFF) and not passing.started:
            raise unreachable()
        return await self._after(outcome, passing, scope)

    async def _after(self, outcome: _Outcome, passing: "_Passing", scope: Scope) -> Send | None:
        if outcome is _Outcome.ANSWERED:
            return None
        if outcome is _Outcome.MOVED:
            await asyncio.sleep(_MOVED_S)
            return passing.send
        if passing.started:
            logger.warning("the owner of a session was lost with a call in flight")
            scope["mcp.again"] = True
        if not passing.begun:
            return passing.send
        if scope["method"] == "POST" and passing.is_stream:
            return continued(passing.send)
        with contextlib.suppress(OSError):  # what was recorded of the stream can be read on elsewhere
            await passing.send({"type": "http.response.body", "body": b"", "more_body": False})
        return None

    async def _ask(
        self,
        passing: "_Passing",
        target: str,
        address: str,
        route: Route,
        scope: Scope,
        body: bytes,
        receive: Receive,
    ) -> _Outcome:
        forwarded = self._watching.metrics.forwarded
        try:
            with self._watching.forwarding(route.session, target) as traced:
                outcome = await self._ask_as(traced, passing, target, address, route, scope, body, receive)
        except Refused:
            forwarded["unreachable"] += 1
            raise
        forwarded[outcome.name.lower()] += 1
        return outcome

    async def _ask_as(
        self,
        traced: list[tuple[bytes, bytes]],
        passing: "_Passing",
        target: str,
        address: str,
        route: Route,
        scope: Scope,
        body: bytes,
        receive: Receive,
    ) -> _Outcome:
        seal = self._envelopes.sealing(
            target,
            route,
            method=scope["method"],
            path=scope["path"].removeprefix(scope.get("root_path", "")),
            secure=self._guard.is_secure(scope, self._guard.headers(scope)),
            again=bool(scope.get("mcp.again")),
            headers=[(name, value) for name, value in scope["headers"] if name not in _NOT_PASSED_ON] + traced,
            body=body,
        )
        silent_since: float | None = None
        tries = 0
        while True:
            try:
                hop = await self._pool.open(address)
            except PeerRefused:
                return _Outcome.GONE
            except PeerTimedOut:
                silent_since = silent_since or monotonic()
                if (outcome := await self._verdict(target, monotonic() - silent_since)) is not None:
                    return outcome
                continue
            # The same nonce each time: of two copies of a request at most one is worked on.
            hop.ask(seal(), body)
            outcome = await self._watched(hop, passing, target, receive)
            if outcome is not None:
                return outcome
            fate = await self._fate(address)
            if passing.started or fate is _Outcome.GONE:
                return fate
            tries += 1
            if tries == _MOST_TRIES:
                raise unreachable()

    async def _fate(self, address: str) -> _Outcome:
        """Of an owner whose answer broke off."""
        try:
            (await self._pool.open(address)).done()
        except PeerRefused:
            return _Outcome.GONE
        except PeerTimedOut:
            pass
        return _Outcome.UNKNOWN

    async def _watched(self, hop: PeerConnection, passing: "_Passing", owner: str, receive: Receive) -> _Outcome | None:
        """Pass the answer on while the client stays. None when it broke off."""
        watch = ClientWatch(receive, hop.close)
        try:
            return await self._relay(hop, passing, owner)
        except PeerConnectionLost:
            return _Outcome.ANSWERED if watch.left else None
        except BaseException:
            hop.close()  # this tells the owner that nobody waits any more
            raise
        finally:
            watch.stop()

    async def _relay(self, hop: PeerConnection, passing: "_Passing", owner: str) -> _Outcome:
        while True:
            try:
                kind, payload = await hop.next()
            except PeerTimedOut:
                silent_for = asyncio.get_running_loop().time() - hop.heard_at
                verdict = await self._verdict(owner, silent_for)
                if verdict is not None:
                    hop.close()
                    return verdict
                continue
            if kind == b"s":
                passing.started = True
            elif kind == b"m":
                hop.done()
                return _Outcome.MOVED
            elif kind == b"r":
                hop.close()
                return self._refused(payload, passing)
            elif kind == b"e":
                hop.done()
                await passing.end(payload)
                return _Outcome.ANSWERED
            else:
                await passing.on(kind, payload)

    def _refused(self, payload: bytes, passing: "_Passing") -> _Outcome:
        reason = Refusal(payload.decode())
        if reason is Refusal.SOMEBODY_ELSE:
            return _Outcome.GONE  # another process has the owner's address now
        if reason is Refusal.SEEN:
            passing.started = True
            return _Outcome.UNKNOWN  # a copy of the request got there, on a connection that broke
        logger.error("a gateway on this store refuses our requests: do its keys and its clock agree with ours?")
        raise unreachable()

    async def _verdict(self, owner: str, silent_for: float) -> _Outcome | None:
        """Of an owner that says nothing; None while it can still come.

        Raises:
            Refused: it is time to tell the client, and nothing is known.
        """
        try:
            _, leased = await self._cluster.address_of(owner)
            if not leased and self._cluster.may_claim_from_the_silent:
                return _Outcome.GONE
            if leased and silent_for >= LEASE_S:
                return _Outcome.CUT_OFF
        except StoreUnavailable:
            pass
        if silent_for >= LEASE_S:
            raise unreachable()
        return None

    # -- at the owner

    def listening(self, host: str, port: int) -> contextlib.AbstractAsyncContextManager[int]:
        """Let the others in, inside the block; gives the port."""
        return self._server.listening(host, port)

    def _opening(self, head: bytes) -> Opened:
        opened = self._envelopes.open(self._cluster.replica, head)
        if isinstance(opened, Refusal):
            raise PeerUnknown(opened.value.encode())
        return opened

    async def _arrived(self, incoming: Incoming) -> None:
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
        outlet = _Outlet(incoming)
        forwarded = Forwarded(
            session_id=envelope.session,
            principal=Principal(issuer=envelope.issuer, subject=envelope.subject),
            epoch=envelope.epoch,
            version=envelope.version,
            granted=envelope.granted,
            started=outlet.started,
        )
        inner: dict[str, Any] = {
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
        try:
            await endpoint(inner, _receiving(incoming), outlet.send)
        except OwnedByPeer:
            await incoming.send(b"m")

    def close(self) -> None:
        """Give the connections back."""
        self._pool.close()


class _Passing:
    """What the client has been sent of an answer that comes from elsewhere."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.started = False
        self.begun = False
        self.is_stream = False

    async def on(self, kind: bytes, payload: bytes) -> None:
        """Pass a frame on."""
        if kind == b"h":
            status, headers = msgspec.msgpack.decode(payload, type=_HEAD)
            self.begun = True
            self.is_stream = any(n == b"content-type" and v.startswith(b"text/event-stream") for n, v in headers)
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
        elif kind == b"b":
            await self.send({"type": "http.response.body", "body": payload, "more_body": True})

    async def end(self, payload: bytes) -> None:
        """With its last piece."""
        await self.send({"type": "http.response.body", "body": payload, "more_body": False})


class _Outlet:
    """An answer at the owner, as frames."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming

    async def started(self) -> None:
        """Something is about to be written upstream; when this returns, the other side can know."""
        await self._incoming.send(b"s")
        await asyncio.sleep(0)  # the loop writes when its turn ends

    async def send(self, event: Mapping[str, Any]) -> None:
        """What the endpoint sends."""
        if event["type"] == "http.response.start":
            await self._incoming.send(b"h", msgspec.msgpack.encode((event["status"], event["headers"])))
            return
        body = event.get("body", b"")
        if not event.get("more_body"):
            await self._incoming.send(b"e", body)
        elif body:
            await self._incoming.send(b"b", body)


def _receiving(incoming: Incoming) -> Receive:
    """The body, then the client's leaving."""
    given = False

    async def receive() -> Any:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": incoming.body, "more_body": False}
        await incoming.left()
        return {"type": "http.disconnect"}

    return receive
