"""One request of a client in flight: its ids on both sides, its frames, its end.

Knows neither links nor other calls. What it needs of its session and of its conversation is in the two protocols here.
"""

import logging
import secrets
from collections.abc import Callable, Generator, Mapping
from time import monotonic
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from gateway.calls.lifecycles import (
    ANSWER,
    ASKING,
    EXCHANGE,
    OVER,
    QUEUED,
    SEND,
    Deadlines,
    ExchangeEvent,
    ExchangeState,
    step,
)
from gateway.calls.link import LinkSession
from gateway.calls.session_frames import SessionFrames
from gateway.calls.suspended_call import AskingServer, SuspendedCall, rewritten_ids
from gateway.calls.usage import Use
from gateway.context.facts import RESTARTED_KEY, trace_meta, traced_error, with_meta
from gateway.errors import CANCELLED as CANCELLED_CODE
from gateway.errors import CANCELLED_BY_CLIENT, error_of
from gateway.identity.credential_claims import CredentialClaims
from gateway.observability.observed import Failure, ObservedCall
from gateway.observability.outcome import INPUT_REQUIRED, TOOL_ERROR, Outcome, is_complete, outcome_of
from gateway.protocol.caching import of_one_session
from gateway.protocol.capabilities import Caller
from gateway.protocol.subscription_filter import Filter
from gateway.protocol.tasks import TaskAtServer, asks_for_task
from session_store import Context, Session
from transports.inbound_port import Refused
from transports.jsonrpc import (
    Message,
    Object,
    RequestId,
    encode,
    encode_error,
    encode_request,
    encode_result,
    error_code,
    splice,
)
from transports.reply_queue import Frame, ReplyQueue
from transports.turns import in_turns, is_large

__all__ = ["Bridge", "Exchange", "ExchangeConversation", "ExchangeSession", "fallback_id"]

logger = logging.getLogger(__name__)

_NOBODY = Context(trust="sandboxed")
_CANCELLED = frozenset({CANCELLED_CODE, CANCELLED_BY_CLIENT})
_objects = msgspec.json.Decoder(Object)


def fallback_id() -> str:
    """Return an id for a call that no request of a client has made. No client knows it, so that no
    `notifications/cancelled` means the call. A number would not do: clients count their requests from 0 or 1."""
    return f"gateway {secrets.token_hex(8)}"


class Bridge(Protocol):
    """Between a client of one era and a server of the other."""

    def finish(self, exchange: "Exchange", message: Message) -> Message | None:
        """Return the client's answer to the call, made from the server's response. None if the call has not ended."""
        ...


class ExchangeSession(LinkSession, Protocol):
    """The session that an exchange belongs to."""

    @property
    def frames(self) -> SessionFrames | None:
        """Who watches the session; None if nobody does."""
        ...

    def exchange_begins(self, exchange: "Exchange") -> None:
        """Count the call as one in flight."""
        ...

    def exchange_ended(self, exchange: "Exchange") -> None:
        """Count the call no longer as one in flight."""
        ...

    def in_use(self) -> Use:
        """Count one more use, until it is released."""
        ...

    def count(self, failure: Failure | None) -> None:
        """Count an answered call; `failure` if it failed."""
        ...

    def withdraw_questions(self, exchange: "Exchange") -> None:
        """Withdraw what the client was asked as a result of the call, which is over."""
        ...


class ExchangeConversation(AskingServer, Protocol):
    """The conversation that an exchange was sent or queued in."""

    @property
    def name(self) -> str:
        """The server's name."""
        ...

    @property
    def deadlines(self) -> Deadlines:
        """How long the call and its questions may wait."""
        ...

    def cancel(self, exchange: "Exchange", reason: str, code: int = CANCELLED_CODE) -> None:
        """Cancel a call: notify the server, and answer the client with an error."""
        ...

    def fail(self, exchange: "Exchange", code: int, reason: str) -> None:
        """Answer a call with an error of the gateway's; the server is not notified."""
        ...


class Exchange(ObservedCall):
    """A client's request on its way through one conversation.

    `number` is its id on the upstream's side, where ids of many clients must not collide. It is the progress token and
    the subscription id there too. `shape` turns the upstream's result into what the client gets. `context` and
    `granted` are those of the client's request. `caller` describes a modern client to servers of the legacy era; None
    for a legacy client. `suspended` has the questions to a modern client. `replay` has earlier answers of that client,
    by the digest of the question.
    """

    # Class attributes, because most calls never need them.
    state: ExchangeState = QUEUED
    conversation: ExchangeConversation | None = None
    number = 0
    deadline_from = 0.0  # by the monotonic clock
    sent: tuple[Object, Object] | None = None  # params and `_meta`, in case the request has to be sent again
    sent_method = ""  # that of the request to the server, if it is not the client's
    forwarded: Mapping[str, str] | None = None  # headers of its request that a server behind a URL gets as they are
    progress_token: msgspec.Raw | None = None  # the client's
    makes_task = False  # whether the client wants a task (MCP 2025-11-25), and its progress
    keeps_complete = False  # whether `shape` leaves complete results as they are
    bridge: Bridge | None = None
    takes_rounds = False  # whether `settle` takes questions and tasks of a modern server, whatever the client's era
    suspended: SuspendedCall | None = None
    replay: Mapping[str, str] = MappingProxyType({})
    restarted: str | None = None
    call_s: float | None = None  # its own limit, in place of `Deadlines.call_s`
    ended: Callable[[], None] | None = None  # called once the wire is done with it
    _wanted: Filter | None = None
    _on_acknowledged: Callable[[], None] | None = None

    def __init__(
        self,
        *,
        method: str,
        client_id: RequestId,
        live: ExchangeSession | None,
        replies: ReplyQueue,
        shape: Callable[[Any, Object], Object] | None = None,
        caller: Caller | None = None,
        context: Context | None = None,
        granted: CredentialClaims | None = None,
    ) -> None:
        self.method = method
        self.client_id = client_id
        self.live = live
        self.replies = replies
        self.shape = shape
        self.caller = caller
        self._context = context
        self.granted = granted

    @property
    def context(self) -> Context:
        """The rights of its own request. Those of the session may have changed since, by another request."""
        if self._context is None and self.live is not None:
            return self.live.session.context
        return self._context or _NOBODY

    @property
    def server(self) -> str:
        """The name of the server that has the call; empty if none has."""
        return "" if self.conversation is None or not self.number else self.conversation.name

    @property
    def session(self) -> Session | None:
        """Its session's record."""
        return None if self.live is None else self.live.session

    @property
    def era(self) -> str:
        """The client's."""
        return "legacy" if self.caller is None else "modern"  # not `Era`, whose hash is slow

    def count(self, failure: Failure | None) -> None:
        """Count the call in its session; `failure` if it failed."""
        if self.live is not None:
            self.live.count(failure)

    @property
    def is_over(self) -> bool:
        """True if it has ended."""
        return self.state in OVER

    @property
    def is_suspended(self) -> bool:
        """True if a modern client was asked something and has not come back: no request of the client waits."""
        return self.state is ASKING and self.suspended is not None

    def step(self, event: ExchangeEvent) -> None:
        """Change the state. Raises `IllegalStep` if the table has no such step; then nothing has changed."""
        self.state = step(EXCHANGE, self.state, event)

    def move_to(self, live: ExchangeSession) -> None:
        """Continue in another session, which is in use until the wire is done with this exchange."""
        self.live = live
        live.exchange_begins(self)
        self.when_done(lambda: live.exchange_ended(self))
        self.when_done(live.in_use().release)

    # -- to the server

    def use_bridge(self, bridge: Bridge | None, method: str = "") -> None:
        """Have `bridge` translate the response of a server of the other era, who gets requests of `method` from now on
        if it is not that of the client. None: the response stays as it is."""
        self.bridge, self.sent_method = bridge, method

    def forward(self, headers: Mapping[str, str]) -> None:
        """Have the server behind a URL get these headers."""
        self.forwarded = headers or None

    def frame(self, number: int, params: Object, meta: Object) -> bytes:
        """Return the request as the server reads it, under that number."""
        return splice(encode_request(number, self.sent_method or self.method, self.encoded(number, params, meta)))

    async def frame_in_turns(self, number: int, params: Object, meta: Object) -> bytes:
        """Do as `frame`, in steps if params are large: each step takes a while then."""

        def steps() -> Generator[None, None, bytes]:
            body = self.encoded(number, params, meta)
            yield
            request = encode_request(number, self.sent_method or self.method, body)
            yield
            return splice(request)

        return await in_turns(steps()) if is_large(params) else self.frame(number, params, meta)

    def encoded(self, number: int, params: Object, meta: Object) -> bytes | None:
        """Encode the params and `_meta` of the request under that number. The client's progress token is kept."""
        token = meta.get("progressToken")
        if token is not None:
            self.progress_token = token.copy()  # a slice would keep the whole message in memory
            self.makes_task = asks_for_task(params)
            meta = meta | {"progressToken": msgspec.Raw(encode(number))}
        return encode({**params, "_meta": meta} if meta else params) if meta or params else None

    def sent_as(
        self, conversation: ExchangeConversation, number: int, request: tuple[Object, Object] | None, written_at: float
    ) -> None:
        """Record that the server has it, under that number, since `written_at` by the monotonic clock. `request`:
        params and `_meta`, if it may have to be sent again."""
        self.step(SEND)
        self.conversation = conversation
        self.number = number
        self.sent = request
        self.deadline_from = self.written_at = written_at

    def queue_at(self, conversation: ExchangeConversation, number: int | None = None) -> None:
        """Record which conversation will send it, once its link is open. `number` is that of a call which is never
        sent."""
        if self.state is not QUEUED:
            self.step(ExchangeEvent.REQUEUE)
        self.conversation = conversation
        if number is not None:
            self.number = number

    def take_request(self) -> tuple[Object, Object] | None:
        """Return params and `_meta` to be sent again, once."""
        request, self.sent = self.sent, None
        return request

    def restart_deadline(self) -> None:
        """Count the call's deadline from now on."""
        self.deadline_from = monotonic()

    @property
    def keeps_task_at_server(self) -> bool:
        """True if a later process follows the server's task, so that the task is not cancelled with this exchange."""
        return False

    def has_become(self, task: TaskAtServer) -> None:
        """Learn which task the server has made of the call. The task goes on without this process."""

    # -- to the client

    def shape_with(self, shape: Callable[[Any, Object], Object] | None) -> None:
        """Replace the shape."""
        self.shape, self.keeps_complete = shape, False

    def filter_result(self, shape: Callable[[Any, Object], Object]) -> None:
        """Apply `shape` to the server's result, before the shape that the exchange has already."""
        later = self.shape
        self.shape_with(shape if later is None else lambda exchange, result: later(exchange, shape(exchange, result)))

    def keep_complete(self) -> None:
        """Have the shape change only results that ask for input and those that are tasks. No other is read for it."""
        self.keeps_complete = True

    def _shaped(self, result: Object, restarted: str | None) -> Object:
        """Return a server's result as the client gets it. Raises `Refused`: the client may not have it."""
        if self.shape is not None:
            result = self.shape(self, result)
        if restarted is not None:
            result = with_meta(of_one_session(result), {RESTARTED_KEY: msgspec.Raw(encode({"reason": restarted}))})
        return result

    def _push(self, frame: Frame, replies: ReplyQueue | None = None) -> bool:
        """Send the client a frame. `replies`: of another request than the present one."""
        if self.live is not None and self.live.frames is not None:
            self.live.frames.to_client(frame.data)
        return (replies or self.replies).push(frame)

    def emit(self, frame: bytes) -> bool:
        """Send the client a message that belongs to this call. Returns False if the client does not read."""
        return self._push(Frame(frame))

    def suspendable(self) -> SuspendedCall:
        """Return the questions to its modern client, asked or to be asked."""
        if self.suspended is None:
            self.suspended = SuspendedCall()
        return self.suspended

    def suspend(self, result: Object) -> None:
        """End the client's present request with the server's questions. Later frames wait for its next request."""
        self.step(ExchangeEvent.ASK)
        answered, self.replies = self.replies, ReplyQueue()
        # The server has the request, and the client may take long: free the params.
        self.sent = None
        restarted, self.restarted = self.restarted, None
        data = encode(self._shaped(result, restarted))
        self._push(Frame(encode_result(encode(self.client_id), data), final=True), answered)
        for watcher in self.watchers:  # they stay: the call has not ended
            watcher(self, INPUT_REQUIRED, b"")

    def resume(
        self,
        client_id: RequestId,
        shape: Callable[[Any, Object], Object] | None,
        progress_token: msgspec.Raw | None,
    ) -> None:
        """Answer this later request of the client from now on: the client of a suspended call has come back."""
        self.client_id = client_id
        self.shape_with(shape)
        self.progress_token = progress_token
        self.replies.rewrite(rewritten_ids(client_id, progress_token))

    def resumed(self) -> None:
        """Go on: the client has come back with answers."""
        if self.is_suspended:
            self.step(ExchangeEvent.RESUME)
            self.written_at = monotonic()  # the client's time is not the server's

    def replay_answers(self, answers: Mapping[str, str]) -> None:
        """Give the server these earlier answers, by the digest of the question, if it asks the same again."""
        self.replay = answers

    def take_replay(self, digest: str) -> str | None:
        """Return the earlier answer to the question with that digest, once."""
        known = self.replay.get(digest)
        if known is not None:
            self.replay = {asked: answer for asked, answer in self.replay.items() if asked != digest}
        return known

    # -- its end

    def finish(self, message: Message, restarted: str | None = None) -> None:
        """Answer with the upstream's response. `restarted` is why the server was restarted before it, if it was."""
        self.restarted = restarted or self.restarted
        if self.bridge is not None:
            if (bridged := self.bridge.finish(self, message)) is None:
                return
            message = bridged
        self.settle(message)

    def settle(self, message: Message) -> None:
        """Answer with a response of the client's era."""
        client_id = encode(self.client_id)
        restarted = self.restarted
        if isinstance(message.error, msgspec.Raw):
            error = traced_error(splice(message.error), self.correlation)
            code = error_code(message.error)
            if not self._end(ANSWER):
                return
            self._push(Frame(encode_error(client_id, error), final=True, error_code=code))
            self._notify(Outcome.error(code), error)
        elif isinstance(message.result, msgspec.Raw):
            result = splice(message.result)
            if restarted is not None or (self.shape is not None and not (self.keeps_complete and is_complete(result))):
                try:
                    shaped = self._shaped(found := _objects.decode(result), restarted)
                except Refused as refused:
                    refusal = {"code": refused.code, "message": str(refused), "data": refused.data or {}}
                    return self.settle(Message(jsonrpc="2.0", id=0, error=msgspec.Raw(encode(refusal))))
                result = result if shaped is found else encode(shaped)  # what nobody has changed stays as it came
            outcome = outcome_of(result)
            if outcome is TOOL_ERROR:
                result = encode(with_meta(_objects.decode(result), trace_meta(self.session, self.correlation)))
            if not self._end(ANSWER):
                return
            self._push(Frame(encode_result(client_id, result), final=True))
            if self.watchers:
                self._notify(outcome, result if outcome is TOOL_ERROR else b"")

    def fail(self, code: int, reason: str) -> None:
        """Answer with an error of the gateway's."""
        if not self._end(ExchangeEvent.CANCEL if code in _CANCELLED else ExchangeEvent.FAIL):
            return
        error = encode(error_of(code, reason, self.correlation))
        self._push(Frame(encode_error(encode(self.client_id), error), final=True, error_code=code))
        self._notify(Outcome.error(code), error)

    def cancel(self, reason: str, code: int = CANCELLED_CODE) -> None:
        """Cancel it: notify the server that has it, and answer the client with an error."""
        if self.conversation is not None:
            self.conversation.cancel(self, reason, code)
        elif not self.is_subscription:  # it waits for what is needed before it can be sent
            self.fail(code, f"Cancelled: {reason}")

    def abandon(self) -> None:
        """End it without an answer: nobody waits for one."""
        self._end(ExchangeEvent.ABANDON)

    def _end(self, event: ExchangeEvent) -> bool:
        """End the exchange. Returns False if it has ended before: the first end counts."""
        if self.state in OVER:
            return False
        was_suspended = self.suspended is not None and self.is_suspended
        self.step(event)
        self.log_if_slow()
        if was_suspended:
            self.done()  # no wire uses it
        if self.suspended is not None:
            self.suspended.call_ended()
        return True

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the wire is done with the exchange, before earlier callbacks."""
        earlier = self.ended

        def both() -> None:
            callback()
            if earlier is not None:
                earlier()

        self.ended = both

    def done(self) -> None:
        """Call what waits for the end of the wire's use. Idempotent."""
        callback, self.ended = self.ended, None
        if callback is not None:
            callback()

    # -- a stream of notifications (MCP 2026-07-28, `subscriptions/listen`)

    @property
    def is_subscription(self) -> bool:
        """True if it is a stream of notifications that stays open."""
        return self.method == "subscriptions/listen"

    def listen_for(self, wanted: Filter) -> None:
        """Pass on changes of these kinds only."""
        self._wanted = wanted

    def listens_for(self, method: str) -> bool:
        """Return True if that notification may be on the stream."""
        return self.is_subscription and (self._wanted is None or self._wanted.may_have(method))

    def acknowledged_here(self, then: Callable[[], None]) -> None:
        """Have the gateway acknowledge the stream, so that the client gets no acknowledgement of the server. `then` is
        called when that comes: the server has the subscription."""
        self._on_acknowledged = then

    def takes_acknowledgement(self) -> bool:
        """Take the acknowledgement of the stream by its server. Returns False if that is for the client."""
        if self._on_acknowledged is None:
            return False
        self._on_acknowledged()
        return True
