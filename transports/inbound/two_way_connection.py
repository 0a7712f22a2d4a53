"""Serve a client whose messages, and those for it, form one conversation: it has one session as long as this lasts.

Used for the gateway's own stdin and stdout (MCP 2025-11-25 and 2026-07-28, Transports §stdio), and for the event
streams of HTTP+SSE (MCP 2024-11-05)."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from transports.background_tasks import Tasks
from transports.era import NAME_SOURCES, SESSIONLESS, VERSION_KEY
from transports.inbound.in_process_client import InProcessClient, Reply
from transports.inbound.modern_request_checks import names_version
from transports.inbound_port import Refused
from transports.json_part_counts import REQUEST_PARTS
from transports.jsonrpc import (
    INTERNAL_ERROR,
    InvalidMessage,
    Message,
    Object,
    decode_id,
    decode_meta,
    decode_object,
    encode,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    parse,
    splice,
)
from transports.mirrored_headers import encode_value

logger = logging.getLogger(__name__)

_LATEST: Final = "2025-11-25"
_CANCELLED: Final = "notifications/cancelled"
_LISTEN: Final = "subscriptions/listen"
_ANSWER_S: Final = 5.0
"""Seconds that calls may take after the client has closed its side. Streams of notifications are not waited for."""
_CANCEL_S: Final = 1.0
"""Seconds that the cancellation of a modern call may take at its server."""


class TwoWayConnection:
    """Serve one connected client, whose messages become requests to the endpoint behind `client`.

    `write` sends the client a message. `token` names a session to continue; empty: a new one is opened. With
    `outlives`, the session does not end with the connection. The client gets the session's token in the `initialize`
    result, under the key `session_key` in `_meta`; if the key is empty, the client does not get it. `headers` and
    `peer` (an address) are those of each request, until a message brings its own.
    """

    def __init__(
        self,
        client: InProcessClient,
        write: Callable[[bytes], Awaitable[None]],
        *,
        token: str,
        outlives: bool = False,
        session_key: str = "",
        headers: dict[str, str] | None = None,
        peer: str = "",
    ) -> None:
        self._client = client
        self._peer = peer
        self._write = write
        self._headers = headers or {}
        self._token = token
        self._session = ""
        self._outlives = outlives
        self._given = token
        self._session_key = session_key
        self.may_return = False
        """True once the client has sent the token of this connection's session itself, so that it may come back to the
        session later."""
        self._version = _LATEST
        self._modern_version = ""  # the version that the last modern message named
        self._calls: dict[object, tuple[Reply, asyncio.Task[None]]] = {}
        self._starting: set[object] = set()  # ids of modern calls that are not sent yet, and not cancelled
        self._cancelled: set[object] = set()  # ids of legacy calls whose answer the client does not want
        self._due = Tasks("client's calls")  # a client that leaves still gets the answers of these
        self._tasks = Tasks("client connection")
        self._stream: Reply | None = None
        self._opening = asyncio.Lock()
        self._last_post: asyncio.Task[None] | None = None

    def returned(self, token: str) -> None:
        """Handle the session token that a message has brought in a cookie. If it names an older session than the one
        that was opened for this connection, use the older one, and end the new one. Do neither if the client has
        initialized the new one already."""
        if token == self._given:
            self.may_return = not self._outlives
        elif self._token and not self._session and not self._outlives:
            unused, self._token = self._token, token
            self._outlives = True
            self._tasks.spawn(self._end(unused))

    async def receive(
        self, line: bytes, headers: dict[str, str] | None = None, peer: str = "", session: str = ""
    ) -> None:
        """Handle a message of the client. `headers` and `peer`, if given, are those of this message and of later ones.
        `session` is the token of the session that the message names; empty if it names none. A message that cannot be
        handled does not end the connection."""
        if not line.strip():
            return
        try:
            await self._receive(line, headers, peer, session)
        except Exception:
            logger.exception("a message of the client could not be handled")
            with contextlib.suppress(InvalidMessage):
                message = parse(line)
                if message.is_request:
                    error = Refused(500, INTERNAL_ERROR, "The gateway could not handle the message.")
                    await self._write(encode_error(encode(message.id), error.error()))

    async def _receive(self, line: bytes, headers: dict[str, str] | None, peer: str, session: str) -> None:
        if session and session == self._given:
            self.may_return, session = not self._outlives, ""
        if headers is not None:
            self._headers, self._peer = headers, peer
        try:
            message = parse(line, REQUEST_PARTS)
            params = message.params_object()
            meta = decode_meta(params["_meta"]) if "_meta" in params else {}
        except (InvalidMessage, msgspec.MsgspecError, RecursionError):
            if line.lstrip()[:1] == b"[" and (session or self._session):
                # A batch (MCP 2025-03-26). Its servers may ask the client, whose answers come while it is handled.
                batch = self._ask("POST", self._session_headers(session or self._session), line)
                self._due.spawn(_pass_on(batch, self._write))
                return
            # The endpoint refuses it by the same rules, with an error that says where to find it in the log.
            headers = {**self._headers, "mcp-protocol-version": self._version}
            await _pass_on(self._ask("POST", headers, line), self._write)
            return
        version = str(meta[VERSION_KEY]) if names_version(meta) else ""
        if message.is_notification and not self._session and message.method != _CANCELLED:
            version = version or self._modern_version  # a modern notification may come without it
        if version:
            self._modern(message, line, version, params)
        elif session and message.method == "initialize":
            if self._token and not self._session and not self._outlives:
                self._tasks.spawn(self._end(self._token))
            self._token, self._outlives = session, True
            await self._initialize(line)
        else:
            await self._legacy(message, line, session)

    def _ask(self, method: str, headers: dict[str, str], body: bytes = b"") -> Reply:
        return self._client.ask(method, headers, body, self._peer)

    # -- the modern era

    def _modern(self, message: Message, line: bytes, version: str, params: Object) -> None:
        self._modern_version = version
        headers = {**self._headers, **_modern_headers(str(message.method), version, params)}
        if message.is_request:
            self._starting.add(message.id)
            tasks = self._tasks if message.method == _LISTEN else self._due
            tasks.spawn(self._modern_call(message, line, headers, self._last_post))
        elif message.method == _CANCELLED:
            self._cancel_modern(message)
        elif message.is_notification:
            self._last_post = self._tasks.spawn(self._modern_notice(line, headers, self._last_post))

    async def _modern_notice(self, line: bytes, headers: dict[str, str], before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait((before,))
        async with self._opening:
            reply = self._ask_modern(headers, line)
            if not self._token:
                await self._learn_token(reply)
        await _sent_in_order(reply, None)

    async def _modern_call(
        self, message: Message, line: bytes, headers: dict[str, str], before: "asyncio.Task[None] | None"
    ) -> None:
        if before is not None and not before.done():
            await asyncio.wait((before,))
        if not self._token and message.method not in SESSIONLESS:
            # The first call opens the session of this connection. Calls that arrive meanwhile wait for it.
            async with self._opening:
                reply = self._begin_modern(message, line, headers)
                if reply is not None and not self._token:
                    await self._learn_token(reply)
        else:
            reply = self._begin_modern(message, line, headers)
        if reply is not None:
            await self._answer(message, reply)

    def _begin_modern(self, message: Message, line: bytes, headers: dict[str, str]) -> Reply | None:
        """Send a modern call, and return its response, which arrives later; None if the call was cancelled before."""
        if message.id not in self._starting:
            return None
        self._starting.discard(message.id)
        reply = self._ask_modern(headers, line)
        task = asyncio.current_task()
        assert task is not None
        self._calls[message.id] = (reply, task)
        task.add_done_callback(lambda _: self._calls.pop(message.id, None))
        return reply

    def _ask_modern(self, headers: dict[str, str], line: bytes) -> Reply:
        carried = {"mcp-gateway-session": self._token} if self._token else {}
        return self._ask("POST", {**headers, **carried}, line)

    async def _learn_token(self, reply: Reply) -> None:
        """Store the session's token from the response head. This must happen before a message of the response makes the
        client send its next request."""
        await reply.begun()
        self._token = reply.headers.get("mcp-gateway-session", self._token)

    # -- the handshake era

    async def _legacy(self, message: Message, line: bytes, session: str = "") -> None:
        if message.method == "initialize":
            await self._initialize(line)
            return
        if message.method == _CANCELLED and self._cancel_modern(message):
            return
        if message.method == _CANCELLED and (cancelled := _cancelled_id(message)) in self._calls:
            self._cancelled.add(cancelled)
        if not self._session and not session:
            async with self._opening:
                failure = None if self._session else await self._open()
            if failure is not None and message.is_request:
                await self._write(encode_error(encode(message.id), failure))
                return
        headers = self._session_headers(session or self._session)
        if message.is_request:
            if self._last_post is not None:
                await self._last_post
            reply = self._ask("POST", headers, line)
            task = self._due.spawn(self._answer(message, reply))
            self._calls[message.id] = (reply, task)
            task.add_done_callback(lambda _: self._ended(message.id))
            return
        before, reply = self._last_post, self._ask("POST", headers, line)
        self._last_post = self._tasks.spawn(_sent_in_order(reply, before))
        if message.method == "notifications/initialized" and headers["mcp-session-id"]:
            await self._last_post
            self._stream = self._ask("GET", headers)
            self._tasks.spawn(_pass_on(self._stream, self._write))

    def _cancel_modern(self, message: Message) -> bool:
        """Cancel a call that this class sent as a modern one, by closing its request. Ignore a notification that names
        no known call (MCP 2026-07-28, Cancellation §Error Handling). Return False if the notification is about a legacy
        call: then the caller sends it on."""
        if self._session:
            return False
        cancelled = _cancelled_id(message)
        self._starting.discard(cancelled)
        if (call := self._calls.get(cancelled)) is not None:
            self._tasks.spawn(call[0].leave(_CANCEL_S))
        return call is not None or bool(self._modern_version)

    async def _initialize(self, line: bytes) -> None:
        """Pass the client's `initialize` (`line`) on, and send the answer. This opens a session, or continues the one
        that the connection's token names. End the connection's earlier session, which the client has left, unless calls
        are in flight, or that session may outlive the connection."""
        headers, former = dict(self._headers), self._session
        if self._token:
            headers["mcp-session-id"], self._token = self._token, ""
        if self._stream is not None:
            await self._stream.leave()
        reply = self._ask("POST", headers, line)
        async for frame in reply.frames():
            self._session = reply.headers.get("mcp-session-id", "")
            answer = _parse_own(frame)
            if isinstance(answer.result, msgspec.Raw):
                self._version = str(msgspec.json.decode(answer.result).get("protocolVersion", _LATEST))
                if self._session_key and self._session:
                    frame = _with_token(frame, self._session_key, self._session)
            await self._write(splice(frame))
        if former and former != self._session and not (self._calls or self._outlives or self.may_return):
            self._tasks.spawn(self._end(former))

    def _session_headers(self, session: str) -> dict[str, str]:
        return {**self._headers, "mcp-session-id": session, "mcp-protocol-version": self._version}

    async def _end(self, session: str) -> None:
        await self._ask("DELETE", self._session_headers(session)).begun()

    async def _open(self) -> msgspec.Raw | None:
        """Open a session for a client that does not begin with `initialize`, or whose `initialize` has failed. Return
        the JSON-RPC error if that fails; otherwise None."""
        headers = self._headers | ({"mcp-session-id": self._token} if self._token else {})
        info = {"name": "stdio", "version": "0"}
        hello = encode({"protocolVersion": _LATEST, "capabilities": {}, "clientInfo": info})
        reply = self._ask("POST", headers, encode_request(0, "initialize", hello))
        failure = None
        async for frame in reply.frames():
            self._session = reply.headers.get("mcp-session-id", "")
            error = _parse_own(frame).error
            failure = error if isinstance(error, msgspec.Raw) else None
        return failure

    # -- answers

    def _ended(self, request_id: object) -> None:
        self._calls.pop(request_id, None)
        self._cancelled.discard(request_id)

    async def _answer(self, message: Message, reply: Reply) -> None:
        await self._learn_token(reply)
        answered = False
        async for frame in reply.frames():
            answer = _parse_own(frame)
            answered = answered or answer.is_response
            # A cancelled request has no response (MCP 2025-11-25, Cancellation). Over HTTP its POST needs one.
            if not (answer.is_response and message.id in self._cancelled):
                await self._write(splice(frame))
            if message.method == _LISTEN and isinstance(answer.result, msgspec.Raw):
                await self._write(_end_of_subscription(message.id))
        if not answered and reply.status not in (0, 200):
            error = Refused(500, INTERNAL_ERROR, f"The gateway answered {reply.status}.")
            await self._write(encode_error(encode(message.id), error.error()))

    async def close(self, *, answering: bool = True) -> None:
        """End the connection and its session. With `answering`, first finish the answers: the client still reads."""
        if answering:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.settled(), _ANSWER_S)
        if self._stream is not None:
            await self._stream.leave()
        session = self._session or self._given or self._token
        if session and not self._outlives and not self.may_return:
            await self._end(session)
        for reply, _ in list(self._calls.values()):
            await reply.leave()
        await asyncio.gather(self._due.close(), self._tasks.close())


async def _pass_on(reply: Reply, write: Callable[[bytes], Awaitable[None]]) -> None:
    async for frame in reply.frames():
        await write(splice(frame))


async def _sent_in_order(reply: Reply, before: "asyncio.Task[None] | None") -> None:
    """Wait until the task `before`, which sent an earlier message, has ended. Then wait until the app has handled the
    message whose response is `reply`. If the app refuses this message, log that, because it has no other answer."""
    if before is not None:
        await before
    async for _ in reply.frames():
        logger.warning("a message of the client was refused with status %d", reply.status)


def _modern_headers(method: str, version: str, params: Object) -> dict[str, str]:
    """Return the headers that repeat parts of a modern message: its MCP version, its method and a name in its params
    (MCP 2026-07-28, Streamable HTTP §Request Metadata)."""
    headers = {"mcp-protocol-version": version, "mcp-method": method}
    source = NAME_SOURCES.get(method)
    if source in params:
        # Without the header, the endpoint refuses a name that cannot be decoded, such as 1e400.
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            headers["mcp-name"] = encode_value(str(msgspec.json.decode(params[source])))
    return headers


def _cancelled_id(message: Message) -> object:
    """Return the id of the request that a notification cancels; None if it names none."""
    return decode_id(message.params_object().get("requestId", msgspec.Raw(b"null")))


def _parse_own(frame: bytes) -> Message:
    """Parse a message that the gateway itself has made. The number of its parts is not limited, because the gateway may
    have added some to a server's message."""
    return parse(frame, len(frame))


def _with_token(frame: bytes, key: str, token: str) -> bytes:
    """Return the answer `frame` to `initialize` with the session's token under `key` in its `_meta`, for a client that
    sees no headers."""
    answer = _parse_own(frame)
    assert isinstance(answer.result, msgspec.Raw)
    found = decode_object(answer.result, "result")
    meta = decode_object(found.get("_meta", b"{}"), "_meta")
    meta[key] = msgspec.Raw(encode(token))
    return encode_result(encode(answer.id), encode(found | {"_meta": msgspec.Raw(encode(meta))}))


def _end_of_subscription(request_id: object) -> bytes:
    """Return the cancellation that the client gets after the result of a subscription (MCP 2026-07-28, Cancellation).
    The result comes first, and means a graceful end. After a cancellation alone, SDK clients assume a lost stream."""
    params = {"requestId": request_id, "reason": "the subscription has ended"}
    return encode_notification(_CANCELLED, encode(params))
