"""Send the calls of clients to one server, and find the call to which each answer belongs.

A conversation outlives its link, which is one connection to the server (`gateway.calls.link_manager`). If the server's
process is gone, the next call opens a new link. The first result that each session then gets reports the loss."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any, Final, Protocol, cast

import msgspec

from gateway.calls.consent_questions import refuse_or_ask
from gateway.calls.exchange import Exchange
from gateway.calls.in_flight import CallOnFastPath, CallsInFlight, CallWatch, OwnRequests, fields_of_line
from gateway.calls.lifecycles import Deadlines, ExchangeEvent
from gateway.calls.link_manager import LinkLifecycle, LinkSession, LinkSource, LinkUsers
from gateway.calls.messages_for_operators import MessageRecorder
from gateway.calls.received_lists import Lists
from gateway.calls.server_task_owners import OwnedTask, OwnedTasks
from gateway.calls.suspended_call import response_under
from gateway.errors import CANCELLED, OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE, StartRefused, store_unavailable
from gateway.observability.logs import CORRELATION
from gateway.protocol.extensions import Declared
from gateway.protocol.handshake import HandshakeRefused, is_lower, lowest_level
from gateway.protocol.methods import CACHEABLE, LISTS, may_be_relayed
from gateway.protocol.reserved_meta import with_reports_only, without_reserved_in
from session_store import StoreUnavailable
from transports.background_tasks import Tasks
from transports.era import LEGACY, OF_ONE_RESOURCE, Era
from transports.inbound_port import Refused
from transports.jsonrpc import (
    HEADER_MISMATCH,
    UNREADABLE,
    InvalidMessage,
    Message,
    Object,
    encode,
    encode_error,
    encode_notification,
    encode_request,
    error_code,
    splice,
)
from transports.upstream_port import Link, LinkClosed, UpstreamUnavailable, is_refusal

logger = logging.getLogger(__name__)

_FINISHED_S: Final = 0.1
"""Seconds from the last answer of a server that gets no more calls until its link is closed."""


class Router(Protocol):
    """Forwards a server's own requests and notifications to clients. On stdio, such messages do not name their call."""

    def relay_request(self, conversation: "Conversation", message: Message, stream: int | str | None = None) -> None:
        """Forward a request of the server to a client, or refuse it. `stream`: as for `LinkEvents.message`."""

    def relay_notification(
        self, conversation: "Conversation", message: Message, stream: int | str | None = None
    ) -> None:
        """Forward a notification of the server to its clients. `stream`: as for `LinkEvents.message`."""

    def tools_changed(self, conversation: "Conversation") -> None:
        """Discard the cached list of the server's tools. The server has refused the headers of a call, and these follow
        from the tools' schemas in the list (MCP 2026-07-28, Transports §Client Behavior)."""

    def closed(self, conversation: "Conversation") -> None:
        """Cancel the server's requests to clients. The link is closed, so the server cannot get the answers."""


class _HttpLink(Protocol):
    def send(self, frame: bytes, forwarded: Mapping[str, str] | None = None) -> None:
        """Send a message as an HTTP request with these headers. An intermediary forwards every `Mcp-Param-*` header
        that it does not recognize (MCP 2026-07-28, Streamable HTTP §Server Behavior for Custom Headers)."""


class Conversation:
    """All messages between one server and one session, or all sessions if they share it. It has one link at a time.

    `unreturned` is True if the session's client has sent only its first request (`Deadlines`)."""

    # Slots save one dictionary for each conversation: there are as many as there are sessions.
    __slots__ = """__weakref__ _background _holds _own _router _source _task_link _tasks _watch
        calls deadlines era known_lists last_number links name recorder users was_used""".split()

    def __init__(
        self,
        source: LinkSource,
        router: Router,
        deadlines: Deadlines,
        *,
        unreturned: bool = False,
        was_used: bool = False,
    ) -> None:
        self.name = source.name  # the server's
        self.era: Era = source.era
        idle_stop_s = deadlines.unreturned_stop_s if unreturned else deadlines.idle_stop_s
        self.links = LinkLifecycle(source, self, deadlines, idle_stop_s=idle_stop_s)
        self.recorder: MessageRecorder | None = source.recorder
        """Records all messages for an operator. None if no operator watches."""
        self.calls, self.users = CallsInFlight(), LinkUsers()
        self.deadlines = deadlines
        self.was_used = was_used
        """True if a process was sent a message that may change its later answers, such as a call."""
        self.known_lists: Lists | None = None
        """The lists received from the server. None until `lists` is first read."""
        self._source = source
        self._router = router
        self._watch = CallWatch(self, self.calls)
        self._own = OwnRequests()
        self.last_number = 0
        self._holds = 0
        self._background: Tasks | None = None
        self._tasks: OwnedTasks | None = None
        self._task_link: Link | None = None  # the link over which `_tasks` were made

    # -- its link

    @property
    def link(self) -> Link | None:
        """Return the present link, even during its handshake; None if there is none."""
        return self.links.link

    @property
    def is_open(self) -> bool:
        """Return True if the link takes a message now."""
        return self.links.is_open

    @property
    def is_process(self) -> bool:
        """Return True if the link is a child process, so that the server's work ends with the link."""
        link = self.links.link
        return link is not None and link.pid is not None

    @property
    def is_remote(self) -> bool:
        """Return True if the link leads to a URL, so that the server's work goes on when the gateway ends."""
        link = self.links.link
        return link is not None and link.may_forget

    @property
    def initialize_result(self) -> bytes | None:
        """Return the server's result of the last handshake; None before the first."""
        return self.links.initialize_result

    @property
    def declared(self) -> Declared:
        """Return the extensions that the server declared in the last handshake."""
        return self.links.greeting.declared

    @property
    def output_tail(self) -> Sequence[str]:
        """Return the last stderr lines of the server's present process, or, without one, of its last process."""
        return self.links.output_tail if self.links.link is None else self.links.link.output_tail

    @property
    def lists(self) -> Lists:
        """Return the lists (of tools and others) received from the server. Callers add the pages that they receive."""
        self.known_lists = self.known_lists or Lists(self.users.changed)
        return self.known_lists

    async def ready(self) -> None:
        """Wait until the link is open. Raises `UpstreamUnavailable`, `HandshakeRefused`: the server cannot be used."""
        await self.links.ready()

    @property
    def has_calls(self) -> bool:
        """Return True if a client's call is in flight, or the server works on a task."""
        return bool(self.calls) or self._holds > 0

    @property
    def is_idle(self) -> bool:
        """Return True if no call, no task and no request of the gateway itself is in flight."""
        return not self.has_calls and not self._own

    @property
    def is_unused(self) -> bool:
        """Return True if nothing but clients' streams of notifications is in flight."""
        return not (self._holds or self._own) and all(exchange.is_subscription for exchange in self.calls)

    def is_open_to(self, live: LinkSession | None) -> bool:
        """Return True if a call of this session can be sent at once: the link is open and renews no tokens before each
        call, and the session has joined (`join`)."""
        return self.links.is_open and live in self.users and not self.links.renews_tokens

    def can_send_fast(self, live: LinkSession | None) -> bool:
        """Return True if a call of this session can be sent at once, no operator watches, and the session's next result
        need not report a restart of the server."""
        return self.is_open_to(live) and self.recorder is None and not self.users.has_notice(live)

    def watch(self, recorder: MessageRecorder | None) -> None:
        """Record all messages from now on, and the last stderr lines, in `recorder` for an operator. None: stop
        recording."""
        if recorder is not None and self.recorder is None:
            recorder.hide(self.links.secrets())
            for line in self.output_tail:
                recorder.line(self.name, line, is_earlier=True)
        self.recorder = recorder

    # -- sending calls

    async def start(self, exchange: Exchange, params: Object, meta: Object, *, again: bool = False) -> None:
        """Send a client's request. If there is no open link, open one first.

        If the link turns out to be closed before it accepts the message, open it again, once: nothing was executed.
        `again`: the request was sent before, and must not be sent a third time. Raises `UpstreamUnavailable` or
        `HandshakeRefused`: nothing reached the server.
        """
        if exchange.is_over:
            return
        if not self.is_open_to(exchange.live):
            exchange.queue_at(self)
            self.calls.add_waiting(exchange)
            self._watch.begin()
        try:
            if exchange.method not in LISTS or not self._source.session:  # else a restart of the server loses nothing
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
                self.links.discard(reason)
            raise UpstreamUnavailable(f"server {self.name!r} accepts no message: {reason}")
        except BaseException:
            self.calls.end(exchange)
            raise

    def start_in_background(self, exchange: Exchange, params: Object, meta: Object, *, again: bool = False) -> None:
        """Run `start` with these arguments in a task that ends with the conversation. An error ends the call."""

        async def start() -> None:
            CORRELATION.set(exchange.correlation)  # of this task
            try:
                await self.start(exchange, params, meta, again=again)
            except Exception as error:  # nobody else would answer the call
                # Without `again`, the server may have executed an earlier round of the call.
                self.fail_start(exchange, error, exchange.unsent_code if again else OUTCOME_UNKNOWN, params)

        self.in_background(start())

    def fail_start(self, exchange: Exchange, error: Exception, code: int, params: Object | None = None) -> None:
        """Answer a call with the error of a `start` that has failed in the background. `code` is the error code for
        faults of the server or its link, and for unexpected errors. `params` are as for `refuse_or_ask`."""
        if isinstance(error, StoreUnavailable):
            error = store_unavailable()
        elif isinstance(error, StartRefused):
            error = error.refused
        if isinstance(error, Refused | HandshakeRefused) and code == OUTCOME_UNKNOWN:
            # An earlier round may have taken effect, and refusals invite clients to send the request again.
            logger.warning("a call could not go on at server %s: %s", self.name, error, extra=exchange.log_fields())
            self.fail(exchange, code, f"the call could not go on at server {self.name!r}; it may have taken effect")
        elif isinstance(error, Refused):
            self.end(exchange)
            refuse_or_ask(exchange, error, params)
        elif isinstance(error, UpstreamUnavailable | LinkClosed):
            self.fail(exchange, code, str(error))
        elif isinstance(error, HandshakeRefused):
            exchange.finish(Message(jsonrpc="2.0", id=0, error=error.error))
        else:
            fields = exchange.log_fields()
            logger.error("a call could not be sent to server %s", self.name, exc_info=error, extra=fields)
            self.fail(exchange, code, f"the call could not be sent to server {self.name!r}")

    def _send(
        self, exchange: Exchange, number: int, frame: bytes, request: tuple[Object, Object] | None
    ) -> LinkClosed | None:
        """Send a call over the open link. Return None if it was sent. If the link does not accept it, return the error:
        the server has executed nothing."""
        link, written_at = self.links.link, monotonic()  # before the write: after it, the server may run first
        if link is None or not self.links.is_open:
            return LinkClosed("it exited")
        level = self.log_level_for(exchange)
        if level and is_lower(level, self.links.log_level, self.initialize_result):
            self.links.log_level_is(level)
            levels = (level, *(live.session.log_level for live in self.users if live is not None))
            self.request("logging/setLevel", encode({"level": lowest_level(levels)}))
        self.was_used |= not exchange.is_subscription and exchange.method not in CACHEABLE
        try:
            link.send(frame) if exchange.forwarded is None else cast("_HttpLink", link).send(frame, exchange.forwarded)
        except LinkClosed as error:
            return error
        if self.recorder is not None:
            self.recorder.to_server(self.name, frame)
        exchange.sent_as(self, number, request if link.may_forget else None, written_at)
        self.calls.add_sent(exchange)
        self._watch.begin()
        return None

    def log_level_for(self, exchange: Exchange) -> str:
        """Return the log level that a legacy server must be set to for this call; empty if the call needs none."""
        return exchange.declaration.log_level if exchange.declaration is not None and self.era is LEGACY else ""

    def send_fast(self, number: int, frame: bytes, call: CallOnFastPath) -> bool:
        """Send a call of the fast path (it repeats an earlier call) over the link. Return False if nothing was sent."""
        link = self.links.link
        try:
            if link is None:
                return False
            link.send(frame)
        except (LinkClosed, InvalidMessage):  # the general path reports the error
            return False
        self.calls.fast[number] = call
        if self._watch.ticking is None:
            self._watch.begin()
        return True

    def move_to_waiting(self, exchange: Exchange, event: ExchangeEvent) -> None:
        """Let a sent call wait: for its client's answer (event `ASK`), or until it is sent again (`REQUEUE`)."""
        exchange.step(event)
        self.calls.add_waiting(exchange)
        exchange.restart_deadline()
        self._watch.begin()

    def end(self, exchange: Exchange) -> bool:
        """Remove an ended call, and cancel the questions to its client. Return False if it was not in flight."""
        if not self.calls.end(exchange):
            return False
        if exchange.suspended is not None:
            exchange.suspended.call_ended()
        if exchange.live is not None:
            exchange.live.withdraw_questions(exchange)
        self.links.start_idle_timer()
        return True

    async def join(self, live: LinkSession | None) -> None:
        """Record that a session uses the server, before the session's first message is sent. A later gateway process
        then knows that it must report a restart of the server. Raises `StoreUnavailable`."""
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
        """Cancel a call: notify the server, if the server has the call, and answer the client with an error."""
        if self.end(exchange) and exchange.number:  # else the server does not have it
            self.notify("notifications/cancelled", encode({"requestId": exchange.number, "reason": reason}))
        exchange.fail_cancelled(code, reason)

    def fail(self, exchange: Exchange, code: int, reason: str) -> None:
        """Answer a call with an error of the gateway. The server is not notified."""
        self.end(exchange)
        exchange.fail(code, reason)

    # -- sending what belongs to no call

    def put(self, frame: bytes) -> None:
        """Send a message over the present link, even during its handshake. Raises `LinkClosed`."""
        self.links.require().send(frame)
        if self.recorder is not None:
            self.recorder.to_server(self.name, frame)

    def _send_or_drop(self, frame: bytes) -> None:
        with contextlib.suppress(LinkClosed):
            self.put(frame)

    def next_number(self) -> int:
        """Return a new request id, unique in this conversation."""
        self.last_number += 1
        return self.last_number

    async def ask(self, method: str, params: bytes | None) -> Message:
        """Send a request of the gateway itself, and return the answer. Raises `LinkClosed` if the link ends first."""
        try:
            answer = self.future_answer(method, params)
        except LinkClosed as closed:
            if not self.is_process:
                raise
            raise await self._own.exit_error(closed, self.next_number()) from None
        return await answer

    def future_answer(self, method: str, params: bytes | None) -> asyncio.Future[Message]:
        """Send a request of the gateway itself, and return a future for the answer. Raises `LinkClosed` if the link is
        closed. If the link ends before the answer, the future fails with `LinkClosed`."""
        self.links.require()
        number = self.next_number()
        answer = self._own.expect(number, self.notify)
        try:
            self.put(encode_request(number, method, params))
        except BaseException:
            answer.cancel()
            raise
        return answer

    def in_background(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` in a task that ends with the conversation."""
        if self._background is None:
            self._background = Tasks(f"calls to server {self.name!r}")
        self._background.spawn(work)

    def request(self, method: str, params: bytes) -> None:
        """Send a request of the gateway itself, without waiting for the answer."""
        with contextlib.suppress(LinkClosed):
            if method in OF_ONE_RESOURCE:  # they come by the thousand, and the link bounds their number and time
                self.put(encode_request(self.next_number(), method, params))
            else:
                self._own.end_if_late(self.future_answer(method, params))

    def notify(self, method: str, params: bytes | None) -> None:
        """Send a notification. Do nothing if there is no link, or its handshake is not complete."""
        if self.links.greeted is not None:
            self.was_used |= may_be_relayed(method, is_request=False)
            self._send_or_drop(splice(encode_notification(method, params)))

    def answer(self, request_id: bytes, message: Message) -> None:
        """Send the server a client's answer to one of its requests. `request_id` is the server's own id, as JSON."""
        self.was_used |= self.calls.remove_question(request_id) is not None
        tasks = self.known_tasks
        self._send_or_drop(response_under(request_id, message if tasks is None else tasks.answer_for_server(message)))

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """Answer a request of the server with an error of the gateway. `request_id` is the server's own id, as JSON."""
        self.calls.remove_question(request_id)
        self._send_or_drop(encode_error(request_id, {"code": code, "message": reason}))

    # -- tasks that the server has made

    @property
    def known_tasks(self) -> OwnedTasks | None:
        """Return the tasks that the server has created over the present link; None if there are none."""
        if self._tasks is not None and self._task_link is not self.links.link:
            tasks, self._tasks, self._task_link = self._tasks, None, None
            for task in tasks:
                task.lost()
        return self._tasks

    def own_task(self, own_id: str, task: OwnedTask) -> None:
        """Record a task that the server has created over the present link."""
        if self.known_tasks is None:
            self._tasks, self._task_link = OwnedTasks(), self.links.link
        assert self._tasks is not None
        self._tasks.add(own_id, task)

    def hold_link(self) -> None:
        """Keep the link open, because the server works on a task. The caller must call `free_link` once, at its end."""
        self._holds += 1

    def free_link(self) -> None:
        """End one `hold_link`. When all have ended, the link may be closed for being idle again."""
        self._holds -= 1
        self.links.start_idle_timer()

    # -- receiving (LinkEvents)

    def log_fields(self) -> dict[str, Any]:
        return fields_of_line(self._source, self.calls, self.links.opened_for)

    def message(self, message: Message, stream: int | str | None = None) -> None:
        if (fast := self.calls.fast.get(message.id)) is not None:  # type: ignore[arg-type]  # anything can be looked up
            if isinstance(message.result, msgspec.Raw) and fast.answer(message.result):
                return
            fast.fall_back()
        if self.recorder is not None:
            self.recorder.from_server(self.name, message)
        try:
            message = with_reports_only(message) if self._source.is_gateway else without_reserved_in(message)
        except (msgspec.MsgspecError, InvalidMessage):
            if isinstance(message.id, int | str):
                self.unreadable(message.id, f"server {self.name!r} sent a message that cannot be read")
            return
        if message.is_response:
            self._answered(message)
        elif message.is_request:
            self._router.relay_request(self, message, stream)
        else:
            self._router.relay_notification(self, message, stream)

    def unreadable(self, request_id: int | str | None, reason: str) -> None:
        for exchange in [e for number, e in self.calls.sent.items() if request_id in (None, number)]:
            self.fail(exchange, OUTCOME_UNKNOWN, reason)
        self._own.fail(request_id, LinkClosed(reason))

    def refused(self, request_id: int | str, reason: str, status: int = 0, cause: Exception | None = None) -> None:
        self._own.fail(request_id, cause or UpstreamUnavailable(reason, status=status))
        if (exchange := self.calls.find(request_id)) is None:
            return
        code = exchange.unsent_code if is_refusal(status) else OUTCOME_UNKNOWN
        unknown = "; whether the call took effect is unknown" if code == OUTCOME_UNKNOWN else ""
        error = cause if isinstance(cause, StartRefused) else UpstreamUnavailable(reason + unknown)
        self.fail_start(exchange, error, code)

    def unsent(self, link: Link, request_id: int | str | None, reason: str) -> None:
        # Other calls may still be answered over the old link; whatever is sent now goes over another one.
        self.links.forgotten(link)
        if request_id is not None:
            self._own.fail(request_id, LinkClosed(reason))
        if (exchange := self.calls.find(request_id)) is None:
            return
        request = exchange.take_request()
        if request is None:
            return self.fail(exchange, exchange.unsent_code, reason)
        exchange.step(ExchangeEvent.REQUEUE)
        self.calls.add_waiting(exchange)
        self.start_in_background(exchange, *request, again=True)

    def closed(self, reason: str) -> None:
        reason = self.links.lost(reason)
        if self.calls.sent:  # the gateway's own requests fail below, and their callers report it
            logger.warning("%s; calls in flight: %d", reason, len(self.calls.sent), extra=self.log_fields())
        unknown = f"{reason}; it had not answered, so whether the call took effect is unknown"
        for exchange in list(self.calls.sent.values()):  # calls that wait only need a new link for their next round
            self.fail(exchange, OUTCOME_UNKNOWN, unknown)
        self._own.fail(None, LinkClosed(reason))
        self._router.closed(self)

    def noise(self) -> None:
        self.links.first_answer.noise()

    @property
    def stderr(self) -> Callable[[str], None] | None:
        return None if self.recorder is None else functools.partial(self.recorder.line, self.name)

    # -- what its link tells it (LinkUser)

    def restarted(self, reason: str) -> None:
        self.users.restarted(reason)

    def link_changed(self) -> None:
        """Invalidate the sessions' cached decisions on calls, and drop the tool list of a process that has ended."""
        if self.known_lists is not None and not self.links.is_open:
            self.known_lists.process_ended()
        self.users.changed()

    def stopped(self) -> None:
        self.calls.free_memory()
        self.users.free_memory()

    def _answered(self, message: Message) -> None:
        if not self.links.has_answered and self.links.is_open:
            self.links.answered()
        # Numbers of calls and of the gateway's own requests differ. Nearly all answers are those of calls.
        exchange = self.calls.pop(message.id)
        if exchange is None:
            if self._own.answered(message):
                return
            if message.id is None and not self._own:
                exchange = self.calls.pop_only()
        if exchange is None:
            logger.debug("server %s answered a request that is not pending", self.name)
            return
        restarted = None if message.result is msgspec.UNSET else self.users.take_notice(exchange.live)
        try:
            if isinstance(message.error, msgspec.Raw) and error_code(message.error) == HEADER_MISMATCH:
                self._router.tools_changed(self)
            exchange.finish(message, restarted)
        except Exception as error:  # whatever the server has sent, its call must not wait for ever
            if not isinstance(error, (*UNREADABLE, ValueError)):
                logger.exception("an answer of %s could not be passed on", self.name, extra=exchange.log_fields())
            self.end(exchange)
            exchange.fail(OUTCOME_UNKNOWN, f"server {self.name!r} answered with a result that cannot be read")
        self.links.start_idle_timer()

    # -- ending

    def finish_calls(self, reason: str) -> bool:
        """Close the link as soon as the calls in flight are answered. End streams of notifications now, with `reason`.
        Return False, and do nothing, if no call is in flight: the caller can close the conversation at once."""
        calls = list(self.calls)
        if all(exchange.is_subscription for exchange in calls):
            return False
        self._fail_all([exchange for exchange in calls if exchange.is_subscription], reason)
        self.links.stop_idle_after(_FINISHED_S)
        return True

    def _fail_all(self, calls: list[Exchange], reason: str) -> None:
        for exchange in calls:
            if exchange.number:  # the server has it, or had it
                self.fail(exchange, OUTCOME_UNKNOWN, f"{reason}; whether the call took effect is unknown")
            else:
                self.fail(exchange, UPSTREAM_UNAVAILABLE, reason)

    async def close(self, reason: str = "the session has ended") -> None:
        """Close the conversation for good, and wait until its link is closed. Calls in flight fail with `reason`.
        Idempotent."""
        self._watch.end()
        self._fail_all(list(self.calls), reason)
        await self.links.close()
        if self._background is not None:
            await self._background.close()


def conversation_of(exchange: Exchange) -> Conversation:
    """Return the conversation of a sent call with its full type. `Exchange.conversation` has a narrower type."""
    assert exchange.conversation is not None
    return exchange.conversation  # type: ignore[return-value]  # of a call that was sent
