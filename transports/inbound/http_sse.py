"""Serve HTTP+SSE, the transport before Streamable HTTP, for old clients: one session for each event stream.

MCP 2024-11-05, Transports §HTTP with SSE. Each stream has an address, to which its client posts messages. Any process
accepts a message, and publishes it to the process that has the stream.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol
from urllib.parse import parse_qs

import msgspec
from itsdangerous import BadSignature, Signer

from transports.background_tasks import Tasks, first_of
from transports.era import Era
from transports.inbound.event_stream import KEEPALIVE_S, Stream
from transports.inbound.host_and_origin import Guard, check_same_site, is_same_site
from transports.inbound.http_requests_and_responses import (
    Receive,
    Scope,
    Send,
    check_is_json,
    peer_of,
    read_body,
    send_refusal,
    send_status,
    until_disconnect,
)
from transports.inbound.in_process_client import InProcessClient
from transports.inbound.two_way_connection import TwoWayConnection
from transports.inbound_port import Carried, Handler, Refused, Request
from transports.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST
from transports.reply_queue import Frame, ReplyQueue
from transports.sse import COMMENT, encode_event


class Addresses:
    """Make and check the addresses of event streams, to which clients post messages. `keys` are newest first: the first
    signs, all verify."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = list(reversed(keys))  # itsdangerous signs with the last key

    def new(self, caller: str) -> str:
        """Return a new address for a caller. It cannot be guessed."""
        return self._signer(caller).sign(secrets.token_urlsafe(18)).decode()

    def is_of(self, address: str, caller: str) -> bool:
        """Return True if the address was made for this caller."""
        try:
            self._signer(caller).unsign(address)
        except BadSignature:
            return False
        return True

    def _signer(self, caller: str) -> Signer:
        salt = f"http+sse:{caller}".encode()
        return Signer(self._keys, salt=salt, sep=".", key_derivation="hmac", digest_method=hashlib.sha256)


logger = logging.getLogger(__name__)

LONGEST_ADDRESS: Final = 128

ACKNOWLEDGED_S: Final = 2.0
"""Seconds in which the process that serves a stream acknowledges a message."""

_NOT_PASSED_ON: Final = frozenset(
    """accept accept-encoding connection content-encoding content-length content-type cookie expect keep-alive
    last-event-id origin te trailer transfer-encoding upgrade
    mcp-gateway-session mcp-method mcp-name mcp-protocol-version mcp-session-id""".split()
)
"""Headers of a posted message that are not passed on to the endpoint: they belong to one HTTP request or message, or
name a session. This transport finds the session itself."""


class MessageBus(Protocol):
    """Publish short messages to those processes that subscribe to a topic at the moment."""

    async def publish(self, topic: str, data: bytes) -> None: ...

    def subscribed(self, topic: str, receive: Callable[[bytes | None], None]) -> AbstractAsyncContextManager[None]: ...


class _Posted(msgspec.Struct):
    """A posted message, as it is published to the process that serves the sender's stream."""

    headers: dict[str, str]
    """The headers of the POST by which its sender is authenticated."""
    peer: str
    """The sender's address."""
    body: bytes
    session: str = ""
    """The token of the session that the message names; empty if it names none."""
    by_cookie: bool = False
    """True if this token came in a cookie."""
    nonce: bytes = b""  # a former version has none
    """Random bytes by which equal messages differ, so that each gets an acknowledgement of its own."""


class HttpSse:
    """Serve one endpoint as an ASGI app: GET opens the stream, POST to `…/messages` sends a message.

    `handler` authenticates the caller before a stream is opened or a message is accepted, and finds the session that
    the request names. `app` serves the endpoint itself, and authenticates every message again, by its headers.
    `session_key` is the key in the `_meta` of the `initialize` result that holds the session's token.

    The end of a stream ends the session if the client has never sent the session's token itself. If the client has sent
    the token with a message, only the session's processes end. If the client has opened the stream with the token,
    nothing ends.
    """

    def __init__(
        self,
        app: object,
        handler: Handler,
        endpoint: str,
        bus: MessageBus,
        *,
        guard: Guard,
        addresses: Addresses,
        body_limit: int,
        session_key: str,
    ) -> None:
        self._session_key = session_key
        self._client = InProcessClient(app, endpoint)
        self._handler = handler
        self._endpoint = endpoint
        self._bus = bus
        self._guard = guard
        self._addresses = addresses
        self._body_limit = body_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def sending(event: object) -> None:
            nonlocal begun
            begun = True
            await send(event)  # type: ignore[arg-type]  # as it came

        try:
            await self._serve(scope, receive, sending)
        except Refused as refused:
            await self._refuse(scope, send, refused)
        except Exception:
            logger.exception("a request of HTTP+SSE failed")
            if not begun:
                failed = Refused(500, INTERNAL_ERROR, "The gateway failed to handle this message.")
                await self._refuse(scope, send, failed)

    async def _refuse(self, scope: Scope, send: Send, refused: Refused) -> None:
        headers: Mapping[str, str] = {}
        with contextlib.suppress(Refused):  # headers that cannot be used name no trace
            headers = self._guard.headers(scope)
        self._handler.refused(headers, refused)
        await send_refusal(send, refused)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._guard.headers(scope)
        self._guard.check(headers)
        is_message = scope["path"].endswith("/messages")
        allowed = "POST" if is_message else "GET"
        if scope["method"] != allowed:
            await send_status(send, 405, [(b"allow", allowed.encode())])
            return
        (check_is_json if is_message else check_same_site)(headers)
        request = Request(
            era=Era.LEGACY,
            endpoint=self._endpoint,
            headers=headers,
            same_site=is_same_site(headers),
            peer=peer_of(scope),
            client=self._guard.client_network(scope, headers),
            secure=self._guard.is_secure(scope, headers),
        )
        if is_message:
            await self._post(scope, headers, await self._handler.carried(request), receive, send)
        else:
            await self._stream(scope, headers, await self._handler.join(request), receive, send)

    async def _stream(
        self, scope: Scope, headers: Mapping[str, str], joined: Carried, receive: Receive, send: Send
    ) -> None:
        name = self._addresses.new(joined.caller)
        # Both are bounded in bytes: a client that sends faster than it is served, or reads too slowly, is cut off.
        received, unsent, stream = ReplyQueue(), ReplyQueue(), Stream(send)
        acknowledging = Tasks("acknowledgements of HTTP+SSE")

        def receive_posted(data: bytes | None) -> None:
            if data is not None and received.push(Frame(data)):
                acknowledging.spawn(self._bus.publish(_acknowledgement(data), b""))

        async def write(line: bytes) -> None:
            unsent.push(Frame(encode_event(line)))

        connection = TwoWayConnection(
            self._client,
            write,
            token=joined.token,
            outlives=joined.is_returned,
            session_key=self._session_key,
            headers=_sender_headers(headers),
            peer=peer_of(scope),
        )
        try:
            async with self._bus.subscribed(_topic(name), receive_posted):
                await stream.start(joined.headers)
                path = f"{scope.get('root_path', '')}{scope['path'].removeprefix(scope.get('root_path', ''))}"
                await stream.write(f"event: endpoint\ndata: {path}/messages?connection={name}\n\n".encode())
                await first_of(until_disconnect(receive), _pump(unsent, stream), self._work(received, connection))
        finally:
            await acknowledging.close()
            await connection.close(answering=False)
            if connection.may_return:
                await self._handler.leave(joined.token)
        await stream.write(b"", more=False)

    async def _work(self, received: ReplyQueue, connection: TwoWayConnection) -> None:
        while (frame := await received.next()) is not None:
            try:
                posted = msgspec.msgpack.decode(frame.data, type=_Posted)
            except msgspec.MsgspecError:  # a program that may write to the store has published it
                logger.warning("a message to an event stream could not be read, and is dropped")
                continue
            if posted.by_cookie:
                connection.returned(posted.session)
            await connection.receive(
                posted.body, posted.headers, posted.peer, session="" if posted.by_cookie else posted.session
            )

    async def _post(
        self, scope: Scope, headers: Mapping[str, str], carried: Carried, receive: Receive, send: Send
    ) -> None:
        names = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("connection", [])
        if len(names) != 1 or len(names[0]) > LONGEST_ADDRESS:
            raise Refused(400, INVALID_REQUEST, "Send messages to the URL in the event stream's first event.")
        if not self._addresses.is_of(names[0], carried.caller):
            raise Refused(404, INVALID_REQUEST, "No open event stream of this client has this address.")
        body = await read_body(receive, headers, self._body_limit)
        if body is None:
            return
        posted = _Posted(
            headers=_sender_headers(headers),
            peer=peer_of(scope),
            body=body,
            session=carried.token,
            by_cookie=carried.by_cookie,
            nonce=secrets.token_bytes(8),
        )
        if not await self._deliver(_topic(names[0]), msgspec.msgpack.encode(posted)):
            # The stream has ended, or its process subscribes again after an outage of the store. After 202, the client
            # would wait for its answer forever.
            text = "No open event stream with this address was found. It is unknown whether the message is handled."
            raise Refused(504, INTERNAL_ERROR, f"{text} Open a new event stream.")
        await send_status(send, 202)

    async def _deliver(self, topic: str, data: bytes) -> bool:
        """Publish a message (`data`) on the topic of the sender's stream. Return True if the process that serves the
        stream acknowledges it in time. The store cannot tell whether the message arrived: it counts dead connections as
        subscribers, and a node of a cluster counts its own subscribers only."""
        acknowledged = asyncio.Event()

        def acknowledge(sent: bytes | None) -> None:
            if sent is not None:  # None: it may have been missed
                acknowledged.set()

        async with self._bus.subscribed(_acknowledgement(data), acknowledge):
            await self._bus.publish(topic, data)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ACKNOWLEDGED_S):
                    await acknowledged.wait()
        return acknowledged.is_set()


def _topic(name: str) -> str:
    return f"mcp:sse:{hashlib.sha256(name.encode()).hexdigest()}"


def _acknowledgement(data: bytes) -> str:
    """Return the topic on which the receipt of the published message `data` is acknowledged."""
    return f"mcp:sse:received:{hashlib.sha256(data).hexdigest()}"


def _sender_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return those headers of a message by which the endpoint authenticates its sender."""
    return {
        name: value
        for name, value in headers.items()
        if name not in _NOT_PASSED_ON and not name.startswith(("mcp-param-", "sec-fetch-"))
    }


async def _pump(unsent: ReplyQueue, stream: Stream) -> None:
    while not stream.gone:
        try:
            async with asyncio.timeout(KEEPALIVE_S):
                frame = await unsent.next()
        except TimeoutError:
            await stream.write(COMMENT)
            continue
        if frame is None:
            return
        await stream.write(frame.data)
