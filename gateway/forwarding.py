"""One hop to the owner of a session and back: the envelope, the internal listener's app, the client side.

The owner answers with frames on one HTTP response: `s` before anything is written upstream, then what ASGI sends: `h`
the response's head, `b` pieces of its body, `e` its end; or `m` alone: the session is not (any longer) served there.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import httpx2
import msgspec
from itsdangerous import BadSignature, Signer

from gateway.cluster import Cluster, Forwarded, Route
from gateway.errors import OUTCOME_UNKNOWN, store_unavailable, unreachable
from session_store import KeyRing, Principal, Purpose, Session, StoreUnavailable
from transports.base import Elsewhere
from transports.inbound.http import Guard, Receive, Scope, Send, header_map, read_body, send_json
from transports.inbound.streamable_http import StreamableHttp
from transports.jsonrpc import InvalidMessage, encode, encode_error, parse

__all__ = ["Forwarding"]

logger = logging.getLogger(__name__)

ENVELOPE: Final = b"mcp-gateway-envelope"
GOOD_FOR_S: Final = 10.0
CONNECT_S: Final = 1.0
_SOMEBODY_ELSE: Final = 421
_LOOK_EVERY_S: Final = 0.5
_MOVED_S: Final = 0.02
"""What a session that changes hands may take to have a new owner in the store."""

_NOT_PASSED_ON: Final = frozenset({b"authorization", b"connection", b"content-length", b"transfer-encoding", ENVELOPE})


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """Who may do what where, for the next seconds, once."""

    target: str
    session: str
    epoch: int
    issuer: str
    subject: str
    method: str
    path: str
    secure: bool
    digest: str
    nonce: str
    expires: float


class Forwarding:
    """Both ends of the hop."""

    def __init__(
        self,
        cluster: Cluster,
        ring: KeyRing,
        endpoints: Mapping[str, StreamableHttp],
        *,
        took_over: Callable[[Session], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._endpoints = endpoints
        self._took_over = took_over
        self._clock = clock
        self._signer = Signer(
            list(reversed(ring.derive(Purpose.FORWARD))),
            salt=Purpose.FORWARD.value.encode(),
            digest_method=hashlib.sha256,
        )
        self._seen: dict[str, float] = {}
        self._client: httpx2.AsyncClient | None = None

    # -- to the owner

    async def forward(self, route: Route, scope: Scope, body: bytes, receive: Receive, send: Send) -> bool:
        """Have the owner answer. False when the session is (or may be) ours now: try it here again.

        Raises:
            Refused: 503, neither the owner nor the session can be had.
        """
        hop = _Hop(send, body)
        try:
            if route.session.owner in ("", self._cluster.replica):
                return await self._hand_over(hop, route, scope, receive)
            address, leased = await self._cluster.address_of(route.session.owner)
            cut_off = False
            if address is not None:
                try:
                    answered = await self._to_owner(hop, address, route, scope, receive)
                except httpx2.ConnectTimeout:
                    # Nobody says no: it may be cut off from us, or its machine is gone.
                    if not leased and not self._cluster.may_claim_from_the_silent:
                        raise unreachable() from None
                    answered, cut_off = None, leased
                if answered is not None:
                    return answered
            claimed = await self._cluster.take(route.session, leased=cut_off)
        except StoreUnavailable:
            raise store_unavailable() from None
        if claimed is not None and claimed.owner == self._cluster.replica:
            self._took_over(claimed)
        return False

    async def _to_owner(self, hop: "_Hop", address: str, route: Route, scope: Scope, receive: Receive) -> bool | None:
        """As `forward`; None when the owner is gone and the session may be claimed. Raises `ConnectTimeout`."""
        try:
            return await self._hop(hop, route.session.owner, address, route, scope, receive)
        except httpx2.ConnectTimeout:
            raise
        except httpx2.ConnectError:
            return None  # refused: nobody is there any more
        except (httpx2.HTTPError, OSError) as error:
            logger.warning("a forwarded request was cut off: %s", type(error).__name__)
            if hop.begun:
                raise  # the client's stream breaks too; what was recorded of it can be resumed
            if not hop.started:
                return None
            await hop.outcome_unknown()
            return True

    async def _hand_over(self, hop: "_Hop", route: Route, scope: Scope, receive: Receive) -> bool:
        """This replica leaves, and what it served belongs to nobody: another one takes it."""
        another = await self._cluster.another()
        if another is None:
            raise unreachable()
        try:
            return await self._hop(hop, *another, route, scope, receive)
        except (httpx2.HTTPError, OSError):
            raise unreachable() from None

    async def _hop(self, hop: "_Hop", target: str, address: str, route: Route, scope: Scope, receive: Receive) -> bool:
        if self._client is None:
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=256)
            timeout = httpx2.Timeout(None, connect=CONNECT_S)
            self._client = httpx2.AsyncClient(limits=limits, timeout=timeout, trust_env=False)
        headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_PASSED_ON]
        headers.append((ENVELOPE, self._sealed(target, route, scope, hop.body)))
        reading = asyncio.ensure_future(self._read(hop, address, headers))
        leaving = asyncio.ensure_future(_left(receive))
        silence = asyncio.ensure_future(self._silent(target))
        tasks = (reading, leaving, silence)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
            if leaving.done():
                return True  # closing the hop tells the owner that the client has left
            raise httpx2.RemoteProtocolError("the owner has gone silent")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, hop: "_Hop", address: str, headers: list[tuple[bytes, bytes]]) -> bool:
        assert self._client is not None
        async with self._client.stream("POST", address, content=hop.body, headers=headers) as response:
            if response.status_code == _SOMEBODY_ELSE:
                raise httpx2.ConnectError("another process has the owner's address now")
            if response.status_code != 200:
                logger.error("a gateway on this store refuses our requests: do its keys and its clock agree with ours?")
                raise unreachable()
            return await hop.relay(_frames(response))

    async def _silent(self, owner: str) -> None:
        """Until the owner's lease is gone, and that means something: it is stopped, or its machine is."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            with contextlib.suppress(StoreUnavailable):
                _, leased = await self._cluster.address_of(owner)
                if not leased and self._cluster.may_claim_from_the_silent:
                    return

    def _sealed(self, target: str, route: Route, scope: Scope, body: bytes) -> bytes:
        envelope = _Envelope(
            target=target,
            session=route.session.id,
            epoch=route.session.epoch,
            issuer=route.principal.issuer,
            subject=route.principal.subject,
            method=scope["method"],
            path=scope["path"].removeprefix(scope.get("root_path", "")),
            secure=Guard.is_secure(scope, header_map(scope["headers"])),
            digest=hashlib.blake2b(body, digest_size=16).hexdigest(),
            nonce=secrets.token_urlsafe(12),
            expires=self._clock() + GOOD_FOR_S,
        )
        return bytes(self._signer.sign(msgspec.json.encode(envelope).hex().encode()))

    # -- at the owner (the app of the internal listener)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        envelope = self._opened(headers.get(ENVELOPE, b""))
        body = await read_body(receive, {}, 1 << 30)
        if body is None:
            return
        if envelope is not None and envelope.target != self._cluster.replica:
            await send_json(send, _SOMEBODY_ELSE, b'{"error":"an envelope for another replica"}')
            return
        if envelope is None or hashlib.blake2b(body, digest_size=16).hexdigest() != envelope.digest:
            await send_json(send, 403, b'{"error":"not an envelope for this replica"}')
            return
        endpoint = self._endpoints.get(envelope.path)
        if endpoint is None:
            await send_json(send, 403, b'{"error":"no such endpoint"}')
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        outlet = _Outlet(send)
        forwarded = Forwarded(
            session_id=envelope.session,
            principal=Principal(issuer=envelope.issuer, subject=envelope.subject),
            epoch=envelope.epoch,
            started=outlet.started,
        )
        inner: dict[str, Any] = {
            "type": "http",
            "method": envelope.method,
            "path": envelope.path,
            "root_path": "",
            "scheme": "https" if envelope.secure else "http",
            "headers": [(name, value) for name, value in scope["headers"] if name not in _NOT_PASSED_ON],
            "client": None,
            "mcp.forwarded": forwarded,
        }
        try:
            await endpoint(inner, _replayed(body, receive), outlet.send)
        except Elsewhere:
            await outlet.moved()
        await outlet.end()

    def _opened(self, sealed: bytes) -> _Envelope | None:
        """The envelope, if it is one of ours, fresh and not seen before."""
        try:
            text = self._signer.unsign(sealed)
            envelope = msgspec.json.decode(bytes.fromhex(text.decode()), type=_Envelope)
        except (BadSignature, ValueError, msgspec.MsgspecError):
            return None
        now = self._clock()
        if now >= envelope.expires or envelope.nonce in self._seen:
            return None
        self._seen[envelope.nonce] = envelope.expires
        if len(self._seen) > 10_000:
            self._seen = {nonce: expires for nonce, expires in self._seen.items() if expires > now}
        return envelope

    async def close(self) -> None:
        """Give the connections back."""
        if self._client is not None:
            await self._client.aclose()


class _Hop:
    """What the client has been sent of an answer that comes from elsewhere."""

    def __init__(self, send: Send, body: bytes) -> None:
        self._send = send
        self.body = body
        self.started = False
        self.begun = False

    async def relay(self, frames: AsyncIterator[tuple[bytes, bytes]]) -> bool:
        """Pass the owner's frames on. False when the session has moved. Raises `HTTPError` when they break off."""
        async for kind, payload in frames:
            if kind == b"s":
                self.started = True
            elif kind == b"m":
                await asyncio.sleep(_MOVED_S)
                return False
            elif kind == b"h":
                status, headers = msgspec.msgpack.decode(payload, type=tuple[int, list[tuple[bytes, bytes]]])
                self.begun = True
                await self._send({"type": "http.response.start", "status": status, "headers": headers})
            elif kind == b"b":
                await self._send({"type": "http.response.body", "body": payload, "more_body": True})
            elif kind == b"e":
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
                return True
        raise httpx2.RemoteProtocolError("the owner's answer broke off")

    async def outcome_unknown(self) -> None:
        """The owner died after it had passed the call on."""
        try:
            message = parse(self.body)
        except InvalidMessage:
            message = None
        request_id = encode(message.id) if message is not None and message.is_request else b"null"
        reason = "The gateway that served this session died before it answered; whether the call took effect is unknown"
        error = {"code": OUTCOME_UNKNOWN, "message": reason}
        await send_json(self._send, 200, encode_error(request_id, error))


class _Outlet:
    """The frames of an answer, at the owner."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def started(self) -> None:
        """Something is about to be written upstream; when this returns, the other side can know."""
        await self._send({"type": "http.response.body", "body": _frame(b"s", b""), "more_body": True})
        await asyncio.sleep(0)  # the loop writes when its turn ends

    async def send(self, event: Mapping[str, Any]) -> None:
        """What the endpoint sends, as frames."""
        if event["type"] == "http.response.start":
            data = _frame(b"h", msgspec.msgpack.encode((event["status"], event["headers"])))
        else:
            body = event.get("body", b"")
            data = _frame(b"b", body) if body else b""
            if not event.get("more_body"):
                data += _frame(b"e", b"")
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def moved(self) -> None:
        """Not here."""
        await self._send({"type": "http.response.body", "body": _frame(b"m", b""), "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _frame(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


async def _frames(response: httpx2.Response) -> AsyncIterator[tuple[bytes, bytes]]:
    rest = b""
    async for chunk in response.aiter_raw():
        rest += chunk
        while len(rest) >= 5:
            size = int.from_bytes(rest[1:5], "big")
            if len(rest) < 5 + size:
                break
            yield rest[:1], rest[5 : 5 + size]
            rest = rest[5 + size :]


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body that was read already, then whatever else comes."""
    given = False

    async def again() -> Any:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again
