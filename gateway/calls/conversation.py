"""One conversation with a server: sends the calls of clients, and finds the call that each answer belongs to.

A conversation outlives its link (`gateway.calls.link_lifecycle`): when the server's process is gone, the next call
opens a new link, and the first result of every session that had used the old one reports it.
"""

import logging
from collections.abc import Mapping
from time import monotonic
from typing import Any, Protocol, cast

import msgspec

from gateway.calls.deadlines import Deadlines
from gateway.calls.exchange import Exchange
from gateway.calls.in_flight import Calls, CallWatch, FastCall
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.link_lifecycle import LinkLifecycle
from gateway.calls.link_source import LinkSession, LinkSource
from gateway.calls.link_users import LinkUsers
from gateway.calls.log_fields import link_fields
from gateway.calls.peer import Peer
from gateway.errors import CANCELLED, OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE, store_unavailable
from gateway.observability.logs import CORRELATION
from gateway.protocol.handshake import HandshakeRefused
from gateway.protocol.methods import CACHEABLE, LISTS
from gateway.protocol.reserved_meta import without_reserved_in
from session_store import StoreUnavailable
from transports.era import LEGACY
from transports.inbound_port import Refused
from transports.jsonrpc import HEADER_MISMATCH, InvalidMessage, Message, Object, encode, error_code
from transports.upstream_port import Link, LinkClosed, UpstreamUnavailable, is_refusal

__all__ = ["Conversation", "Router"]

logger = logging.getLogger(__name__)


class Router(Protocol):
    """Finds the client for the server's own messages. On stdio a message does not name the call it belongs to."""

    def asked(self, conversation: "Conversation", message: Message, stream: int | str | None = None) -> None:
        """Pass on a request of the server to a client, or refuse it. `stream` as in `LinkEvents.message`."""
        ...

    def notified(self, conversation: "Conversation", message: Message, stream: int | str | None = None) -> None:
        """Pass on a notification of the server. `stream` as in `LinkEvents.message`."""
        ...

    def tools_changed(self, conversation: "Conversation") -> None:
        """The server has refused the headers of a call, which follow the schemas in its list of tools: what is known of
        that list is old (MCP 2026-07-28, Transports §Client Behavior)."""
        ...

    def closed(self, conversation: "Conversation") -> None:
        """The link is gone: nobody waits for the answers to the server's requests."""
        ...


class _HttpLink(Protocol):
    def send(self, frame: bytes, forwarded: Mapping[str, str] | None = None) -> None:
        """As `Link.send`. The request has these headers, too: an intermediary forwards every `Mcp-Param-*` header that
        it does not recognize (MCP 2026-07-28, Streamable HTTP §Server Behavior for Custom Headers)."""
        ...


class Conversation(Peer):
    """The calls of clients over one link at a time, and what the server sends.

    `deadlines` are the upstream's; `unreturned`: see `Deadlines`. `users` are the sessions that have used a link of it.
    `was_used`: a call was sent which may have changed what the server says, by this process of the gateway or before.
    """

    __slots__ = ("__weakref__", "_router", "_watch", "calls", "deadlines", "users", "was_used")

    def __init__(
        self,
        source: LinkSource,
        router: Router,
        deadlines: Deadlines,
        *,
        unreturned: bool = False,
        was_used: bool = False,
    ) -> None:
        links = LinkLifecycle(source, self, deadlines, idle_stop_s=deadlines.idle_stop(unreturned))
        super().__init__(source, links)
        self.calls = Calls()
        self.deadlines = deadlines
        self.users = LinkUsers()
        self.was_used = was_used
        self._router = router
        self._watch = CallWatch(self)

    @property
    def has_calls(self) -> bool:
        """Whether a client's call is in flight, or the server works on a task."""
        return bool(self.calls) or self._holds > 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for the server."""
        return not self.has_calls and not self._own

    def is_open_to(self, live: LinkSession | None) -> bool:
        """Whether a call of that session can be sent at once: the link is open, and the session's use is recorded."""
        return self._links.is_open and live in self.users

    def has_nothing_but_calls(self, live: LinkSession | None) -> bool:
        """Whether a call of that session can be sent at once, and nobody is to be told anything beside its result."""
        return self.is_open_to(live) and self.frames is None and not self.users.has_notice(live)

    # -- sending calls

    async def start(self, exchange: Exchange, params: Object, meta: Object, *, again: bool = False) -> None:
        """Send a client's request, opening the link if need be.

        A link that turns out to be closed before it took the message is opened again, once: nothing was executed.
        `again`: the request was sent before, and is not sent a third time. Raises `UpstreamUnavailable`,
        `HandshakeRefused`: nothing reached the server.
        """
        if exchange.is_over:
            return
        if not self.is_open_to(exchange.live):
            exchange.queue_at(self)
            self.calls.wait(exchange)
            self._watch.begin()
        try:
            await self._start(exchange, params, meta, again=again)
        except BaseException:
            self.calls.end(exchange)
            raise

    async def _start(self, exchange: Exchange, params: Object, meta: Object, *, again: bool) -> None:
        if exchange.method not in LISTS or not self._source.session:  # else nothing is left that could be lost
            await self.join(exchange.live)
        for _ in range(2):
            await self.ready()
            number = self.next_number()
            frame = await exchange.frame_in_turns(number, params, meta)
            if exchange.is_over or exchange.replies.abandoned or exchange.replies.is_closed:
                self.calls.end(exchange)
                exchange.abandon()
                return
            reason = self._send(exchange, number, frame, None if again else (params, meta))
            if reason is None:
                return
            self._links.discard()
        raise UpstreamUnavailable(f"server {self.name!r} takes no message: {reason}")

    def start_in_background(self, exchange: Exchange, params: Object, meta: Object, *, again: bool = False) -> None:
        """Send a call to its server for its next step, or `again` as in `start`, in a task that ends with the
        conversation. An error ends the call."""

        async def start() -> None:
            CORRELATION.set(exchange.correlation)  # of this task
            try:
                await self.start(exchange, params, meta, again=again)
            except Exception as error:  # nobody else would answer the call
                # A server that has had the call before may have executed it.
                self.fail_start(exchange, error, UPSTREAM_UNAVAILABLE if again else OUTCOME_UNKNOWN)

        self.in_background(start())

    def fail_start(self, exchange: Exchange, error: Exception, code: int) -> None:
        """End a call that `start` has failed to send where no request handler sees the error: whatever the reason, its
        client gets an answer.

        `code`: the code for errors of the server or of its link, and for unexpected errors.
        """
        if isinstance(error, StoreUnavailable):
            error = store_unavailable()
        if isinstance(error, Refused):
            self.fail(exchange, error.code, str(error))
        elif isinstance(error, UpstreamUnavailable | LinkClosed):
            self.fail(exchange, code, str(error))
        elif isinstance(error, HandshakeRefused):
            exchange.finish(Message(jsonrpc="2.0", id=0, error=error.error))
        else:
            fields = exchange.log_fields()
            logger.error("a call could not be sent to server %s", self.name, exc_info=error, extra=fields)
            self.fail(exchange, code, f"the call could not be sent to server {self.name!r}")

    def start_now(self, exchange: Exchange, params: Object, meta: Object) -> bool:
        """As `start` for small params of a session that `is_open_to` allows. If False, nothing was executed."""
        number = self.next_number()
        return self._send(exchange, number, exchange.frame(number, params, meta), (params, meta)) is None

    def _send(
        self, exchange: Exchange, number: int, frame: bytes, request: tuple[Object, Object] | None
    ) -> LinkClosed | None:
        """Send a call over the open link. Returns why the link takes no message, if so; then nothing was executed."""
        link, written_at = self._links.link, monotonic()  # after the write the server may run before this process
        if link is None or not self._links.is_open:
            return LinkClosed("it exited")
        if level := self.log_level_for(exchange):
            self.want_log_level(level)
        if not self.was_used and not exchange.is_subscription and exchange.method not in CACHEABLE:
            self.was_used = True
        try:
            link.send(frame) if exchange.forwarded is None else cast("_HttpLink", link).send(frame, exchange.forwarded)
        except LinkClosed as error:
            return error
        if self.frames is not None:
            self.frames.to_server(self.name, frame)
        exchange.sent_as(self, number, request if link.may_forget else None, written_at)
        self.calls.send(exchange)
        self._watch.begin()
        return None

    def log_level_for(self, exchange: Exchange) -> str:
        """Return the log level that the server is to be set to before it gets the call; empty if none is."""
        return exchange.caller.log_level if exchange.caller is not None and self.era is LEGACY else ""

    def send_fast(self, number: int, frame: bytes, call: FastCall) -> bool:
        """Send a call that is like one before it, over the link of that. If False, nothing was sent."""
        link = self._links.link
        try:
            if link is None:
                return False
            link.send(frame)
        except (LinkClosed, InvalidMessage):  # the general way says what is wrong
            return False
        self.calls.fast[number] = call
        if self._watch.ticking is None:
            self._watch.begin()
        return True

    def answered_fast(self, number: int) -> None:
        """A call on the fast path has its answer."""
        del self.calls.fast[number]
        self._links.rest()

    def wait(self, exchange: Exchange, event: ExchangeEvent) -> None:
        """Keep a call in flight: its client is asked (event `ASK`), or the server is called again (`REQUEUE`)."""
        exchange.step(event)
        self.calls.wait(exchange)
        exchange.restart_deadline()
        self._watch.begin()

    def end(self, exchange: Exchange) -> bool:
        """Remove a call, and end the questions to its client. False if it was not in flight."""
        if not self.calls.end(exchange):
            return False
        if exchange.suspended is not None:
            exchange.suspended.call_ended()
        if exchange.live is not None:
            exchange.live.withdraw_questions(exchange)
        self._links.rest()
        return True

    async def join(self, live: LinkSession | None) -> None:
        """Record that a session uses the server before its first message is sent, so that a later process can report
        what was lost. Raises `StoreUnavailable`."""
        if live in self.users:
            return
        self.users.add(live)
        try:
            if live is not None and await self._source.record_use(live):
                self.users.notify(live, live.new_process)
        except BaseException:
            self.users.discard(live)
            raise

    def cancel(self, exchange: Exchange, reason: str, code: int = CANCELLED) -> None:
        """Cancel a call: notify the server, and answer the client with an error."""
        if self.end(exchange) and exchange.number:  # else the server does not have it
            self.notify("notifications/cancelled", encode({"requestId": exchange.number, "reason": reason}))
        exchange.fail(code, f"Cancelled: {reason}")

    def fail(self, exchange: Exchange, code: int, reason: str) -> None:
        """Answer a call with an error of the gateway's; the server is not notified."""
        self.end(exchange)
        exchange.fail(code, reason)

    # -- receiving (LinkEvents)

    def log_fields(self) -> dict[str, Any]:
        return link_fields(self.name, self._source.session, self._source.principal, self.calls, self._links.opened_for)

    def message(self, message: Message, stream: int | str | None = None) -> None:
        if (fast := self.calls.fast.get(message.id)) is not None:  # type: ignore[arg-type]  # anything can be looked up
            if isinstance(message.result, msgspec.Raw) and fast.answer(message.result):
                return
            fast.fall_back()
        if self.frames is not None:
            self.frames.from_server(self.name, message)
        try:
            message = without_reserved_in(message)
        except (msgspec.MsgspecError, InvalidMessage):
            if isinstance(message.id, int | str):
                self.unreadable(message.id, f"server {self.name!r} sent a message that cannot be read")
            return
        if message.is_response:
            self._settle(message)
        elif message.is_request:
            self._router.asked(self, message, stream)
        else:
            self._router.notified(self, message, stream)

    def unreadable(self, request_id: int | str | None, reason: str) -> None:
        for exchange in [e for number, e in self.calls.sent.items() if request_id in (None, number)]:
            self.fail(exchange, OUTCOME_UNKNOWN, reason)
        self._own.fail(request_id, LinkClosed(reason))

    def refused(self, request_id: int | str, reason: str, status: int = 0) -> None:
        self._own.fail(request_id, UpstreamUnavailable(reason, status=status))
        if (exchange := self.calls.find(request_id)) is not None:
            self.fail(exchange, *_error_of(status, reason))

    def unsent(self, link: Link, request_id: int | str | None, reason: str) -> None:
        # Other calls may still be answered over the old link; whatever is sent now goes over another one.
        self._links.forgotten(link)
        if request_id is not None:
            self._own.fail(request_id, LinkClosed(reason))
        exchange = self.calls.find(request_id)
        if exchange is None:
            return
        request = exchange.take_request()
        if request is None:
            self.fail(exchange, UPSTREAM_UNAVAILABLE, reason)
            return
        exchange.step(ExchangeEvent.REQUEUE)
        self.calls.wait(exchange)
        self.start_in_background(exchange, *request, again=True)

    def closed(self, reason: str) -> None:
        reason = self._links.lost(reason)
        if self.calls.sent:  # who waits for what the gateway has asked itself is told below, and tells it
            logger.warning("%s; calls in flight: %d", reason, len(self.calls.sent), extra=self.log_fields())
        unknown = f"{reason}; it had not answered, so whether the call took effect is unknown"
        for exchange in list(self.calls.sent.values()):  # the others only need a new link for their next round
            self.fail(exchange, OUTCOME_UNKNOWN, unknown)
        self._own.fail(None, LinkClosed(reason))
        self._router.closed(self)

    def restarted(self, reason: str) -> None:
        """The open link replaces an earlier one (LinkUser)."""
        self.users.restarted(reason)

    def turned(self) -> None:
        self.users.changed()

    def stopped(self) -> None:
        """The link was closed because nothing needed it (LinkUser)."""
        self.calls.rest()
        self.users.rest()

    def _settle(self, message: Message) -> None:
        # Numbers of calls and of the gateway's own requests differ. Nearly all answers are those of calls.
        exchange = self.calls.take(message.id)
        if exchange is None:
            if self._own.settle(message):
                return
            if message.id is None and not self._own:
                exchange = self.calls.take_only()
        if exchange is None:
            logger.debug("server %s answered a request that is not pending", self.name)
            return
        restarted = None if message.result is msgspec.UNSET else self.users.take_notice(exchange.live)
        if isinstance(message.error, msgspec.Raw) and error_code(message.error) == HEADER_MISMATCH:
            self._router.tools_changed(self)
        try:
            exchange.finish(message, restarted)
        except Exception as error:  # whatever the server has sent, its call must not wait for ever
            if not isinstance(error, msgspec.MsgspecError | ValueError):
                fields = exchange.log_fields()
                logger.exception("an answer of server %s could not be passed on", self.name, extra=fields)
            self.end(exchange)
            exchange.fail(OUTCOME_UNKNOWN, f"server {self.name!r} answered with a result that cannot be read")
        self._links.rest()

    # -- ending

    async def close(self, reason: str = "the session has ended") -> None:
        """End for good: nothing of it is left when this returns. Idempotent. `reason` is for calls in flight."""
        self._watch.end()
        for exchange in self.calls:
            if exchange.number:  # the server has it, or had it
                self.fail(exchange, OUTCOME_UNKNOWN, f"{reason}; whether the call took effect is unknown")
            else:
                self.fail(exchange, UPSTREAM_UNAVAILABLE, reason)
        await self._links.close()
        if self._background is not None:
            await self._background.close()


def _error_of(status: int, reason: str) -> tuple[int, str]:
    """The code and the message for a call that was answered with an HTTP status alone."""
    if is_refusal(status):
        return UPSTREAM_UNAVAILABLE, reason
    return OUTCOME_UNKNOWN, f"{reason}; whether the call took effect is unknown"
