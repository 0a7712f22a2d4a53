"""A POST that another replica has sent on a channel: begun where it arrives, and answered there if nothing is unusual.

Its endpoint begins it, as it begins the POSTs that a client's connection repeats. An answer that is one small JSON
message is one frame. All else is served by the endpoint's app, in a task. If that begins a stream, or a large answer,
the other replica fetches it with a ticket, on a connection of its own.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, MutableMapping
from contextvars import Context
from typing import Any, Final, Protocol

import msgspec

from gateway.cluster.envelope import CallFacts, Common, Headers, Refusal
from gateway.cluster.ownership import Forwarded
from gateway.errors import unreachable
from gateway.observability.request_log import CORRELATION_HEADER
from session_store import Principal
from transports.inbound.begun_post import BegunPost
from transports.inbound.begun_post import Endpoint as Beginning
from transports.inbound.http import Receive, Scope, Send
from transports.inbound.posts import Head, Posts, is_batch
from transports.inbound_port import OwnedByPeer
from transports.peer_channel import SMALL_BYTES
from transports.peer_channel_server import Call, CallLeft
from transports.replica_wire_server import Incoming
from transports.soon import Soon
from transports.tasks import Tasks

__all__ = ["ForwardedPost", "KnownCommon", "Tickets", "writer"]

logger = logging.getLogger(__name__)

_TICKET_S: Final = 10.0
"""How long an answer waits to be fetched."""

_JSON: Final = (b"content-type", b"application/json")
_encode = msgspec.msgpack.Encoder().encode


class Endpoint(Beginning, Protocol):
    """What serves POSTs, as an app, or from where they arrive."""

    posts: Posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class KnownCommon:
    """What is known of calls with one head. `head` is None if it is refused: then the app of the endpoint says so."""

    __slots__ = ("common", "endpoint", "head", "principal")

    def __init__(self, common: Common, endpoint: Endpoint, head: Head | None) -> None:
        self.common = common
        self.endpoint = endpoint
        self.head = head
        self.principal = Principal(issuer=common.issuer, subject=common.subject)

    def forwarded(self, facts: CallFacts, started: Callable[[], Soon[None]]) -> Forwarded:
        """What the sender of a call has verified."""
        common = self.common
        return Forwarded(
            session_id=common.session,
            principal=self.principal,
            epoch=facts.epoch,
            version=facts.version,
            granted=common.granted,
            started=started,
        )

    def head_of(self, facts: CallFacts, forwarded: Forwarded) -> Head | None:
        """The head of one call."""
        if self.head is None:
            return None
        headers = {**self.head.headers, CORRELATION_HEADER: facts.correlation}
        if facts.traceparent:
            headers["traceparent"] = facts.traceparent
        return msgspec.structs.replace(self.head, headers=headers, forwarded=forwarded)

    def scope(self, facts: CallFacts, forwarded: Forwarded) -> dict[str, Any]:
        """The ASGI scope of one call."""
        headers: Headers = [*self.common.headers, (CORRELATION_HEADER.encode(), facts.correlation.encode())]
        if facts.traceparent:
            headers.append((b"traceparent", facts.traceparent.encode()))
        return scope_of("POST", self.common.path, secure=self.common.secure, headers=headers, forwarded=forwarded)


def scope_of(method: str, path: str, *, secure: bool, headers: Headers, forwarded: Forwarded) -> dict[str, Any]:
    """The ASGI scope of a forwarded request. `mcp.forwarded` holds the facts that the sender has verified."""
    return {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "scheme": "https" if secure else "http",
        "headers": headers,
        "client": None,
        "mcp.forwarded": forwarded,
        "mcp.again": False,
    }


class Tickets:
    """Answers that have begun and are to be fetched."""

    def __init__(self) -> None:
        self._waiting: dict[str, ForwardedPost] = {}

    def issue(self, post: "ForwardedPost") -> str:
        """A ticket for an answer."""
        ticket = secrets.token_urlsafe(16)
        self._waiting[ticket] = post
        return ticket

    def take(self, ticket: str) -> "ForwardedPost | None":
        """The answer that is fetched with a ticket. None: it was not there any more."""
        return self._waiting.pop(ticket, None)


class ForwardedPost:
    """One call. `start` begins it."""

    __slots__ = (
        *("_begun", "_body", "_call", "_context", "_facts", "_gone", "_has_started", "_is_waiting", "_known"),
        *("_incoming", "_is_given", "_response", "_task", "_tasks", "_tickets", "_writer"),
    )

    def __init__(self, call: Call, facts: CallFacts, tasks: Tasks, tickets: Tickets) -> None:
        self._call = call
        self._known: KnownCommon = call.definition
        self._facts = facts
        self._tasks = tasks
        self._tickets = tickets
        self._context = Context()
        self._begun: BegunPost | None = None
        self._has_started = self._is_waiting = self._is_given = False
        self._gone: asyncio.Future[None] | None = None
        self._response: MutableMapping[str, Any] | None = None
        self._incoming: asyncio.Future[Incoming] | None = None
        self._writer: Send | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin the call."""
        known, call = self._known, self._call
        head = known.head_of(self._facts, known.forwarded(self._facts, self.started))
        call.channel.attend(call.number, self.leave)
        if head is None or is_batch(call.body):
            self._finish()
            return
        self._begun = begun = self._context.run(BegunPost, known.endpoint, known.endpoint.posts, head, call.body, [])
        if begun.answer is not None:
            self._go_on()
        elif begun.has_failed or begun.is_no_request:
            self._finish()
        else:
            self._wait()
            begun.wait(lambda work: self._context.run(self._tasks.spawn, work)).add_done_callback(self._waited)

    def started(self) -> Soon[None]:
        """The request is about to be sent to a server. The sender counts on it, unless it knows that it has waited."""
        self._has_started = True
        if not self._is_waiting or self._incoming is not None:
            return None
        self._is_waiting = False
        return self._agreed()

    async def _agreed(self) -> None:
        try:
            await self._call.channel.agreed(self._call.number)
        except CallLeft:
            raise unreachable() from None

    def _wait(self) -> None:
        """Something has to be awaited: the request was not sent to a server yet, whatever becomes of this process."""
        if not self._has_started and not self._is_waiting:
            self._is_waiting = True
            self._call.channel.send(b"n", self._call.number)

    # -- the answer, where it is one small message

    def _waited(self, _: asyncio.Task[None]) -> None:
        if self._begun is not None:
            self._go_on()

    def _go_on(self) -> None:
        begun = self._begun
        assert begun is not None
        if begun.answer is None or not begun.quiet_at or begun.answer.replies.first is not None:
            self._answer()
        else:
            begun.answer.replies.when_ready(self._ready, begun.quiet_at)

    def _ready(self, is_quiet: bool) -> None:
        """A frame has come, or none for too long, or none will."""
        if self._begun is None:
            return  # its task has it
        if is_quiet:
            self._begun.went_quiet()
        self._answer()

    def _answer(self) -> None:
        begun = self._begun
        assert begun is not None
        try:
            whole = _whole(begun)
        except Exception:
            logger.exception("an answer cannot be sent at once")
            whole = None
        if whole is None:
            self._finish()
            return
        self._begun = None
        self._call.channel.end(b"a", self._call.number, whole)
        try:
            rest = begun.answered()
        except Exception:
            logger.exception("an answer was sent, and could not be recorded")
            return
        if rest is not None:
            self._tasks.spawn(rest)

    # -- the app of the endpoint, for all else

    def leave(self) -> None:
        """The other side has cancelled the call, or is gone."""
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
        if not self._gone.done():
            self._gone.set_result(None)
        if self._begun is not None:
            self._finish()

    def _finish(self) -> None:
        begun, self._begun = self._begun, None
        self._task = self._context.run(self._tasks.spawn, self._serve(begun))

    async def _serve(self, begun: BegunPost | None) -> None:
        known, call = self._known, self._call
        try:
            scope = known.scope(self._facts, known.forwarded(self._facts, self.started))
            if begun is None:
                await known.endpoint(scope, self._receive, self._send)
            else:
                await begun.finish(scope, self._receive, self._send)
        except OwnedByPeer:
            call.channel.end(b"m", call.number)
        except Exception:
            logger.exception("a forwarded request failed")
            if self._incoming is None:  # else its connection is closed
                call.channel.end(b"r", call.number, Refusal.SEEN.value.encode())
        finally:
            call.channel.forget(call.number)
            if self._incoming is not None:
                self._incoming.cancel()

    async def _receive(self) -> Any:
        if not self._is_given:
            self._is_given = True
            return {"type": "http.request", "body": self._call.body, "more_body": False}
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    async def _send(self, event: MutableMapping[str, Any]) -> None:
        """Handle an ASGI event of the endpoint."""
        if self._writer is not None:
            await self._writer(event)
            return
        if event["type"] == "http.response.start":
            self._response = event
            return
        start, body = self._response, event.get("body", b"")
        assert start is not None
        headers = [(bytes(name), bytes(value)) for name, value in start["headers"]]
        if not event.get("more_body") and len(body) <= SMALL_BYTES:
            self._call.channel.end(b"a", self._call.number, _packed(start["status"], headers, body))
            return
        self._writer = await self._fetched()
        await self._writer(start)
        await self._writer(event)

    async def _fetched(self) -> Send:
        """Where the rest of the answer is written, once the other side has come for it."""
        self._incoming = coming = asyncio.get_running_loop().create_future()
        ticket = self._tickets.issue(self)
        self._call.channel.end(b"x", self._call.number, ticket.encode())
        await asyncio.wait((coming,), timeout=_TICKET_S)
        if coming.done():  # at the last moment too: `fetch` waits for what is written
            return writer(coming.result())
        coming.cancel()
        self._tickets.take(ticket)
        self.leave()
        return _nowhere

    async def fetch(self, incoming: Incoming) -> None:
        """Write the answer to this connection, until it is complete or the other side leaves. An answer that has no end
        by then gets none: the connection is to be closed."""
        assert self._incoming is not None and self._task is not None
        if self._incoming.done():
            return  # it has come too late
        self._incoming.set_result(incoming)
        leaving = asyncio.ensure_future(incoming.left())
        try:
            await asyncio.wait((leaving, self._task), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                self.leave()
                await asyncio.wait((self._task,))
        finally:
            leaving.cancel()


async def _nowhere(_: MutableMapping[str, Any]) -> None:
    """Nobody has come for the answer."""


def _whole(begun: BegunPost) -> bytes | None:
    """The frame of an answer that is one small message, and there; None if it is anything else."""
    answer = begun.answer
    frame = None if answer is None else answer.replies.first
    if answer is None or frame is None or not frame.final or not begun.quiet_at or answer.is_doubtful:
        return None
    if len(frame.data) > SMALL_BYTES:
        return None
    length = (b"content-length", b"%d" % len(frame.data))
    return _packed(begun.status(frame), [_JSON, length, *answer.headers], frame.data)


def _packed(status: int, headers: Headers, body: bytes) -> bytes:
    head = _encode((status, headers))
    return b"".join((len(head).to_bytes(2, "big"), head, body))


def writer(incoming: Incoming) -> Send:
    """Writes the answer of an endpoint as frames. Who stops to wait for a slow reader closes the connection: the reader
    would miss a part, and must not wait for the rest."""

    async def send(event: MutableMapping[str, Any]) -> None:
        body = event.get("body", b"")
        try:
            if event["type"] == "http.response.start":
                await incoming.send(b"h", msgspec.msgpack.encode((event["status"], event["headers"])))
            elif not event.get("more_body"):
                await incoming.send(b"e", body)
            elif body:
                await incoming.send(b"b", body)
        except asyncio.CancelledError:
            incoming.abort()
            raise

    return send
