"""Follow one request of a client from its arrival to its end: its ids at client and server, its messages (frames), its
state. This module does not know links or other calls. Two protocols here list the parts of sessions and conversations
that it uses."""

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
from gateway.calls.link_manager import LinkSession
from gateway.calls.messages_for_operators import MessageRecorder
from gateway.calls.open_call_counts import Use
from gateway.calls.suspended_call import AskingServer, SuspendedCall, rewritten_ids
from gateway.context.session_facts import RESTARTED_KEY, traced_error, with_meta, with_trace
from gateway.errors import CANCELLED as CANCELLED_CODE
from gateway.errors import CANCELLED_BY_CLIENT, OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE, cancelled_message, error_of
from gateway.identity.credential_claims import CredentialClaims
from gateway.observability.observed_call import Failure, ObservedCall
from gateway.observability.request_outcomes import INPUT_REQUIRED, TOOL_ERROR, Outcome, is_complete, outcome_of
from gateway.protocol.cache_hints import of_one_session
from gateway.protocol.client_capabilities import ClientDeclaration
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
from transports.work_steps import is_large, run_steps_with_pauses

logger = logging.getLogger(__name__)

_NOBODY = Context(trust="sandboxed")
_CANCELLED = frozenset({CANCELLED_CODE, CANCELLED_BY_CLIENT})
_objects = msgspec.json.Decoder(Object)


def fallback_id() -> str:
    """Return a random request id for a call that the gateway makes itself. Clients cannot guess it, so they cannot
    cancel the call. It is not a number, because clients count their requests from 0 or 1."""
    return f"gateway {secrets.token_hex(8)}"


class Bridge(Protocol):
    """Translates between a client of one protocol era (MCP up to 2025-11-25, or 2026-07-28) and a server of the
    other."""

    def answer_for_client(self, exchange: "Exchange", message: Message) -> Message | None:
        """Translate the server's response for the client. Return None if the call goes on: the response does not end
        it."""


class ExchangeSession(LinkSession, Protocol):
    """The part of a session (`gateway.calls.live_session.LiveSession`) that its exchanges use."""

    @property
    def recorder(self) -> MessageRecorder | None: ...
    @property
    def ended(self) -> bool: ...
    def exchange_begins(self, exchange: "Exchange") -> None: ...
    def exchange_ended(self, exchange: "Exchange") -> None: ...
    def open_use(self) -> Use: ...
    def count(self, failure: Failure | None) -> None: ...
    def withdraw_questions(self, exchange: "Exchange") -> None: ...


class ExchangeConversation(AskingServer, Protocol):
    """The part of a conversation (`gateway.calls.conversation.Conversation`) that its exchanges use."""

    @property
    def name(self) -> str: ...
    @property
    def deadlines(self) -> Deadlines: ...
    def cancel(self, exchange: "Exchange", reason: str, code: int = CANCELLED_CODE) -> None: ...
    def fail(self, exchange: "Exchange", code: int, reason: str) -> None: ...


class Exchange(ObservedCall):
    """The state of one client request on its way to a server and back."""

    # Class attributes, because most calls never need them.
    state: ExchangeState = QUEUED
    conversation: ExchangeConversation | None = None
    number = 0
    """The request id that the server sees, unique in the conversation. To the server, it is also the progress token and
    the subscription id. 0 if the request was not sent. A call that the gateway keeps open itself has the number that
    `queue_at` was given."""
    deadline_from = 0.0  # by the monotonic clock
    sent: tuple[Object, Object] | None = None  # params and `_meta`, for a second try
    sent_method = ""  # the method sent to the server, if it differs from the client's
    forwarded: Mapping[str, str] | None = None  # headers of the client's request that a server behind a URL gets too
    progress_token: msgspec.Raw | None = None  # the client's
    makes_task = False  # True if the client wants a task (MCP 2025-11-25), and its progress
    keeps_complete = False  # True if `shape` leaves complete results as they are
    bridge: Bridge | None = None
    takes_rounds = False  # True if questions and tasks of a modern server are taken, in either era of the client
    suspended: SuspendedCall | None = None
    """The questions of a server to a modern client. None if there were none."""
    replay: Mapping[str, str] = MappingProxyType({})
    """Earlier answers of the client, by the digest of their question."""
    restarted: str | None = None
    """The reason of a restart of the server that the client must be told."""
    _goes_on = False  # the server has answered a request of the call, and the call has not ended
    call_s: float | None = None  # its own limit, in place of `Deadlines.call_s`
    ended: Callable[[], None] | None = None  # called once the wire no longer uses the exchange
    _wanted: Filter | None = None
    _on_acknowledged: Callable[[], None] | None = None
    _acknowledged_as = -1  # the number of the request that the server has acknowledged last

    def __init__(
        self,
        *,
        method: str,
        client_id: RequestId,
        live: ExchangeSession | None,
        replies: ReplyQueue | None = None,
        shape: Callable[[Any, Object], Object] | None = None,
        declaration: ClientDeclaration | None = None,
        context: Context | None = None,
        granted: CredentialClaims | None = None,
    ) -> None:
        self.method = method
        self.client_id = client_id
        self.live = live
        self.replies = ReplyQueue() if replies is None else replies
        self.shape = shape
        """Completes the server's result for the client."""
        self.declaration = declaration
        """What a modern client has declared in its request. None for a legacy client."""
        self._context = context
        self.granted = granted
        """What the credential of the request grants."""

    @property
    def context(self) -> Context:
        """Return the context (the rights) of this request. A later request may have given the session another
        context."""
        if self._context is None and self.live is not None:
            return self.live.session.context
        return self._context or _NOBODY

    @property
    def server(self) -> str:
        """Return the name of the server that the call was sent to; empty if it was not sent."""
        return "" if self.conversation is None or not self.number else self.conversation.name

    @property
    def session(self) -> Session | None:
        """Return the record of the call's session; None if the call has no session."""
        return None if self.live is None else self.live.session

    @property
    def era(self) -> str:
        """Return the client's era: "legacy" or "modern"."""
        return "legacy" if self.declaration is None else "modern"  # not `Era`, whose hash is slow

    def count(self, failure: Failure | None) -> None:
        """Count the ended call in its session. `failure` describes why it failed; None if it succeeded."""
        if self.live is not None:
            self.live.count(failure)

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def is_suspended(self) -> bool:
        """Return True while the call waits for answers of a modern client that has no open request for it."""
        return self.state is ASKING and self.suspended is not None

    def step(self, event: ExchangeEvent) -> None:
        """Change the state of the call as `event` requires. Raises `IllegalStep`, and changes nothing, if the event is
        impossible in the present state."""
        self.state = step(EXCHANGE, self.state, event)

    def move_to(self, live: ExchangeSession) -> None:
        """Move the call to another session. That session counts as in use until `done`."""
        self.live = live
        live.exchange_begins(self)
        self.when_done(lambda: live.exchange_ended(self))
        self.when_done(live.open_use().release)

    # -- to the server

    def use_bridge(self, bridge: Bridge | None, method: str = "") -> None:
        """Set the bridge that translates the response of a server of the other era; None: no translation. `method` is
        the method to send to the server; if empty, the client's method."""
        self.bridge, self.sent_method = bridge, method

    def forward_headers(self, headers: Mapping[str, str]) -> None:
        """Set HTTP headers of the client to send along to a server behind a URL."""
        self.forwarded = headers or None

    def frame(self, number: int, params: Object, meta: Object) -> bytes:
        """Return the request to the server as JSON, with `number` as its id."""
        return splice(encode_request(number, self.sent_method or self.method, self.encoded(number, params, meta)))

    async def frame_in_turns(self, number: int, params: Object, meta: Object) -> bytes:
        """Return the request to the server as JSON, with `number` as its id. Encode large params in steps, so that
        other tasks run in between."""

        def steps() -> Generator[None, None, bytes]:
            body = self.encoded(number, params, meta)
            yield
            request = encode_request(number, self.sent_method or self.method, body)
            yield
            return splice(request)

        return await run_steps_with_pauses(steps()) if is_large(params) else self.frame(number, params, meta)

    def encoded(self, number: int, params: Object, meta: Object) -> bytes | None:
        """Return the params and `_meta` as JSON; None if both are empty. Put `number` in place of the client's progress
        token, which is stored."""
        token = meta.get("progressToken")
        if token is not None:
            self.progress_token = token.copy()  # a slice would keep the whole message in memory
            self.makes_task = asks_for_task(params)
            meta = meta | {"progressToken": msgspec.Raw(encode(number))}
        return encode({**params, "_meta": meta} if meta else params) if meta or params else None

    def sent_as(
        self, conversation: ExchangeConversation, number: int, request: tuple[Object, Object] | None, written_at: float
    ) -> None:
        """Record that the request was sent to the server at `written_at` (monotonic clock), with `number` as its id.
        `request` has the params and `_meta`, if the request may have to be sent a second time; else None."""
        self.step(SEND)
        self.conversation = conversation
        self.number = number
        self.sent = request
        self.deadline_from = self.written_at = written_at

    def queue_at(self, conversation: ExchangeConversation, number: int | None = None) -> None:
        """Record that the request waits in this conversation until its server has a link. `number` is given only for a
        call that the gateway keeps open itself and never sends: the id that the conversation has given it."""
        if self.state is not QUEUED:
            self.step(ExchangeEvent.REQUEUE)
        self.conversation = conversation
        if number is not None:
            self.number = number

    def take_request(self) -> tuple[Object, Object] | None:
        """Return and delete the stored params and `_meta` of the sent request; None if none are stored."""
        request, self.sent = self.sent, None
        return request

    def restart_deadline(self) -> None:
        """Start the time limit of the call anew, from now."""
        self.deadline_from = monotonic()

    @property
    def keeps_task_at_server(self) -> bool:
        """Return True if the server's task goes on after this exchange, because a later gateway process follows the
        task. False here; subclasses override this."""
        return False

    def task_created(self, task: TaskAtServer) -> None:
        """Handle the task that the server has created for the call. Subclasses override this."""

    def goes_on(self) -> None:
        """Record that the server has begun the call: it has asked for input, or has created a task."""
        self._goes_on = True

    @property
    def unsent_code(self) -> int:
        """Return the error code for a call whose server did not get, or has refused, a request of the call:
        `OUTCOME_UNKNOWN` if the server had begun the call before (`goes_on`), else `UPSTREAM_UNAVAILABLE`."""
        return OUTCOME_UNKNOWN if self._goes_on else UPSTREAM_UNAVAILABLE

    # -- to the client

    def shape_with(self, shape: Callable[[Any, Object], Object] | None) -> None:
        """Set the function that turns the server's result into the client's, in place of the present one."""
        self.shape, self.keeps_complete = shape, False

    def filter_result(self, shape: Callable[[Any, Object], Object]) -> None:
        """Apply `shape` to the server's result, before the function that completes the result already
        (`shape_with`)."""
        later = self.shape
        self.shape_with(shape if later is None else lambda exchange, result: later(exchange, shape(exchange, result)))

    def keep_complete(self) -> None:
        """Pass complete results to the client unchanged. Apply the shape only to results that ask for input or are
        tasks."""
        self.keeps_complete = True

    def _shaped(self, result: Object, restarted: str | None) -> Object:
        """Return a server's result in the form for the client. Raises `Refused` if the client may not have it."""
        if self.shape is not None:
            result = self.shape(self, result)
        if restarted is not None:
            result = with_meta(of_one_session(result), {RESTARTED_KEY: msgspec.Raw(encode({"reason": restarted}))})
        return result

    def _push(self, frame: Frame, replies: ReplyQueue | None = None) -> bool:
        """Queue a frame for the client. Return False if it was dropped: the reply has ended, or too much waits unread.
        `replies` is the queue of an earlier request of the client; None: of the present one."""
        if self.live is not None and self.live.recorder is not None:
            self.live.recorder.to_client(frame.data)
        return (replies or self.replies).push(frame)

    def emit(self, frame: bytes) -> bool:
        """Queue a message of this call for the client. Return False if it was dropped, as `_push` does."""
        return self._push(Frame(frame))

    def suspendable(self) -> SuspendedCall:
        """Return the object that holds the call's questions to its modern client. Create it if needed."""
        if self.suspended is None:
            self.suspended = SuspendedCall()
        return self.suspended

    def suspend(self, result: Object) -> None:
        """Answer the client's open request with the questions in `result`. Keep later messages for the client's next
        request."""
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
        """Continue a suspended call with its client's next request, which gets all further messages. `client_id`,
        `shape` and `progress_token` are those of that request."""
        self.client_id = client_id
        self.shape_with(shape)
        self.progress_token = progress_token
        self.replies.rewrite(rewritten_ids(client_id, progress_token))

    def client_answered(self) -> None:
        """Record that the client has sent its answers, so that the server works on the call again."""
        if self.is_suspended:
            self.step(ExchangeEvent.RESUME)
            self.written_at = monotonic()  # time that the client took does not count as the server's

    def replay_answers(self, answers: Mapping[str, str]) -> None:
        """Store earlier answers of the client, by the digest of the question, in case a server asks the same again."""
        self.replay = answers

    def take_replay(self, digest: str) -> str | None:
        """Return and delete the stored answer to the question with this digest; None if there is none."""
        known = self.replay.get(digest)
        if known is not None:
            self.replay = {asked: answer for asked, answer in self.replay.items() if asked != digest}
        return known

    # -- its end

    def finish(self, message: Message, restarted: str | None = None) -> None:
        """Translate the server's response, if there is a bridge, and send it to the client. This ends the call, unless
        the bridge says that the call goes on. `restarted` is the reason of a restart of the server that the client must
        be told; None if there is none."""
        self.restarted = restarted or self.restarted
        if self.bridge is not None:
            if (bridged := self.bridge.answer_for_client(self, message)) is None:
                if isinstance(message.result, msgspec.Raw):  # else it has refused the headers
                    self.goes_on()
                return
            message = bridged
        self.finish_translated(message)

    def finish_translated(self, message: Message) -> None:
        """End the call with a response in the client's era: apply the shape, and send the response to the client."""
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
                    refusal = msgspec.Raw(encode(refused.error()))
                    return self.finish_translated(Message(jsonrpc="2.0", id=0, error=refusal))
                result = result if shaped is found else encode(shaped)  # an unchanged result keeps its bytes
            outcome = outcome_of(result)
            if outcome is TOOL_ERROR:
                result = encode(with_trace(_objects.decode(result), self.session, self.correlation))
            if not self._end(ANSWER):
                return
            self._push(Frame(encode_result(client_id, result), final=True))
            if self.watchers:
                self._notify(outcome, result if outcome is TOOL_ERROR else b"")

    def fail(self, code: int, reason: str) -> None:
        """End the call with an error of the gateway."""
        self._fail(code, encode(error_of(code, reason, self.correlation)))

    def fail_cancelled(self, code: int, reason: str) -> None:
        """End the call with the error of a cancelled call."""
        self.fail(code, cancelled_message(code, reason))

    def refuse(self, refused: Refused) -> None:
        """End the call with a refusal: an error with machine-readable data, such as the reason."""
        self._fail(refused.code, traced_error(encode(refused.error()), self.correlation))

    def _fail(self, code: int, error: bytes) -> None:
        if not self._end(ExchangeEvent.CANCEL if code in _CANCELLED else ExchangeEvent.FAIL):
            return
        self._push(Frame(encode_error(encode(self.client_id), error), final=True, error_code=code))
        self._notify(Outcome.error(code), error)

    def cancel(self, reason: str, code: int = CANCELLED_CODE) -> None:
        """Cancel the call: notify the server if it was sent, and answer the client with an error."""
        if self.conversation is not None:
            self.conversation.cancel(self, reason, code)
        else:  # it is not sent yet
            self.fail_cancelled(code, reason)

    def abandon(self) -> None:
        """End the call without an answer, because no client waits for one."""
        self._end(ExchangeEvent.ABANDON)

    def _end(self, event: ExchangeEvent) -> bool:
        """End the exchange, and return True. If it has ended before, do nothing and return False."""
        if self.state in OVER:
            return False
        was_suspended = self.suspended is not None and self.is_suspended
        self.step(event)
        self.log_if_slow()
        if was_suspended:
            self.done()  # no wire uses a suspended call
        if self.suspended is not None:
            self.suspended.call_ended()
        return True

    def when_done(self, callback: Callable[[], object]) -> None:
        """Add a callback that `done` calls once. The callback that was added last is called first."""
        earlier = self.ended

        def both() -> None:
            callback()
            if earlier is not None:
                earlier()

        self.ended = both

    def done(self) -> None:
        """Call the callbacks of `when_done`. The transport calls this once it no longer needs the exchange.
        Idempotent."""
        callback, self.ended = self.ended, None
        if callback is not None:
            callback()

    # -- a stream of notifications (MCP 2026-07-28, `subscriptions/listen`)

    @property
    def is_subscription(self) -> bool:
        """Return True if the call is a stream of notifications that stays open."""
        return self.method == "subscriptions/listen"

    def listen_for(self, wanted: Filter) -> None:
        """Set the kinds of changes of which the stream notifies the client (the filter of its
        `subscriptions/listen`)."""
        self._wanted = wanted

    def listens_for(self, method: str) -> bool:
        """Return True if the stream may have notifications with this method."""
        return self.is_subscription and (self._wanted is None or self._wanted.may_have(method))

    def acknowledged_here(self, then: Callable[[], None]) -> None:
        """Record that the gateway itself has acknowledged the client's stream. When the server acknowledges it later,
        `then` is called, and the client gets no second acknowledgement."""
        self._on_acknowledged = then

    def take_acknowledgement(self) -> bool:
        """Handle the server's acknowledgement of the stream. If the gateway has acknowledged the stream itself, return
        True, and call the callback of `acknowledged_here`, once for each time that the request was sent. Otherwise
        return False: the acknowledgement must be forwarded to the client."""
        if self._on_acknowledged is None:
            return False
        if self._acknowledged_as != self.number:  # each may notify the client of thousands of resources
            self._acknowledged_as = self.number
            self._on_acknowledged()
        return True
