"""One call in flight: its ids on both sides, its frames, its end."""

import logging
import math
import re
from collections.abc import Callable, Mapping
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from gateway.bridge.suspended_calls import SuspendedCall
from gateway.context.facts import RESTARTED_KEY, with_meta
from gateway.observability.observed import Failure, Watcher
from gateway.observability.outcome import CANCELLED, INPUT_REQUIRED, OK, TOOL_ERROR, Outcome
from gateway.observability.spans import CallSpan
from gateway.protocol.capabilities import Caller
from session_store import Context, Session
from session_store.session import redact
from transports.jsonrpc import Message, Object, RequestId, encode, encode_error, encode_result, error_code, splice
from transports.reply_queue import Frame, ReplyQueue

if TYPE_CHECKING:
    from gateway.calls.conversation import Conversation
    from gateway.calls.live_session import LiveSession
    from gateway.identity.context_rules import CredentialClaims

__all__ = ["Exchange"]


logger = logging.getLogger(__name__)

_IS_ERROR: Final = re.compile(rb'"isError"\s*:\s*true')

_NOBODY = Context(trust="sandboxed")


class Bridge(Protocol):
    """Between a client of one era and a server of the other."""

    def finish(self, exchange: "Exchange", message: Message) -> Message | None:
        """The client's answer, for the server's. None: there is none yet."""
        ...


class Exchange:
    """A client's request on its way through one conversation.

    `number` is its id on the upstream's side, where ids of many clients must not collide; it serves as progress token
    and subscription id there too. `shape` turns the upstream's result into what the client gets; None keeps it.
    `context` and `granted` are of the request it came with.
    `caller` is who a server of the other era is told of. A call that is `suspended` waits for its client, until
    `suspended_until` in the loop's time; `replay` has answers that were given before, by the question.
    """

    # What most calls never need stands here once, not in each of them.
    conversation: "Conversation | None" = None
    number = 0
    progress_token: msgspec.Raw | None = None
    heard_at = 0.0
    written_at = 0.0
    tool = ""
    slow_s = math.inf
    sent: tuple[Object, Object] | None = None  # params and `_meta`, should it have to be sent again
    bridge: Bridge | None = None
    suspended: SuspendedCall | None = None
    suspended_until = 0.0
    replay: Mapping[str, str] = MappingProxyType({})
    restarted: str | None = None
    ended: Callable[[], None] | None = None  # called once, when the wire is done with it
    began = 0.0
    correlation = ""
    span: CallSpan | None = None
    watchers: tuple[Watcher, ...] = ()

    def __init__(
        self,
        *,
        method: str,
        client_id: RequestId,
        live: "LiveSession | None",
        replies: ReplyQueue,
        shape: Callable[["Exchange", Object], Object] | None = None,
        caller: Caller | None = None,
        context: Context | None = None,
        granted: "CredentialClaims | None" = None,
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
        """What its own request may: another request of the session may have changed that of the session since."""
        if self._context is None and self.live is not None:
            return self.live.session.context
        return self._context or _NOBODY

    @property
    def is_suspended(self) -> bool:
        """Whether it waits for its client."""
        return self.suspended is not None and self.suspended.is_waiting

    @property
    def is_subscription(self) -> bool:
        """A stream that stays open (MCP 2026-07-28 `subscriptions/listen`): nothing else is said on it."""
        return self.method == "subscriptions/listen"

    def move_to(self, live: "LiveSession") -> None:
        """Continue in another session, which is in use until the wire is done with this exchange."""
        self.live = live
        self.when_done(live.in_use().release)

    def filter_result(self, shape: Callable[["Exchange", Object], Object]) -> None:
        """Have the server's result changed by `shape`, before the shape that the exchange has already."""
        later = self.shape
        self.shape = shape if later is None else lambda exchange, result: later(exchange, shape(exchange, result))

    def use_bridge(self, bridge: Bridge) -> None:
        """The server is of the other era: have its answer translated."""
        self.bridge = bridge

    def calls_tool(self, tool: str, slow_s: float) -> None:
        """This is a call of that tool, as logs name it. A call that takes longer than `slow_s` is logged as slow."""
        self.tool, self.slow_s = tool, slow_s

    def replay_answers(self, answers: Mapping[str, str]) -> None:
        """The client has answered these questions before (by digest): the server gets the answers if it asks again."""
        self.replay = answers

    def resume(
        self,
        client_id: RequestId,
        shape: Callable[["Exchange", Object], Object] | None,
        progress_token: msgspec.Raw | None,
    ) -> None:
        """The client of a suspended call has come back with another request, which the answer is for."""
        self.client_id = client_id
        self.shape = shape
        self.progress_token = progress_token

    def when_done(self, callback: Callable[[], None]) -> None:
        """Have that called once, when the wire is done with this exchange: before what was given earlier."""
        earlier = self.ended
        if earlier is None:
            self.ended = callback
            return

        def both() -> None:
            callback()
            earlier()

        self.ended = both

    def sent_as(self, conversation: "Conversation", number: int, request: tuple[Object, Object] | None) -> None:
        """The server has it, under that number. `request`: params and `_meta`, if it may have to be sent again."""
        self.conversation = conversation
        self.number = number
        self.sent = request
        self.heard_at = self.written_at = monotonic()

    def take_request(self) -> tuple[Object, Object] | None:
        """Params and `_meta` to be sent again. They are returned once."""
        request, self.sent = self.sent, None
        return request

    def heard(self) -> None:
        """Count the call's deadline from now on."""
        self.heard_at = monotonic()

    def emit(self, frame: bytes) -> bool:
        """Send the client something that belongs to this call; False when it does not read."""
        return self.replies.push(Frame(frame))

    def finish(self, message: Message, restarted: str | None = None) -> None:
        """Answer with the upstream's response; `restarted` says why the server had to be started anew before it."""
        self.restarted = restarted or self.restarted
        if self.slow_s is not math.inf and (took := monotonic() - self.written_at) > self.slow_s:
            session = "" if self.live is None else redact(self.live.session.id)
            logger.warning("slow call", extra={"tool": self.tool, "session": session, "took_s": round(took, 3)})
        if self.bridge is not None:
            bridged = self.bridge.finish(self, message)
            if bridged is None:
                return
            message = bridged
        self.settle(message)

    def settle(self, message: Message) -> None:
        """Answer with that response, which is of the client's era."""
        client_id = encode(self.client_id)
        restarted = self.restarted
        if isinstance(message.error, msgspec.Raw):
            error = splice(message.error)
            code = error_code(message.error)
            self.replies.push(Frame(encode_error(client_id, error), final=True, error_code=code))
            self._notify(Outcome.error(code), error)
        elif isinstance(message.result, msgspec.Raw):
            result = splice(message.result)
            if self.shape is not None or restarted is not None:
                result = encode(self._shaped(msgspec.json.decode(result, type=Object), restarted))
            self.replies.push(Frame(encode_result(client_id, result), final=True))
            if self.watchers:
                outcome = _outcome_of(result)
                self._notify(outcome, result if outcome is TOOL_ERROR else b"")

    # -- observability (`gateway.observability.observed.ObservedExchange`)

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` when the request ends."""
        self.watchers = (*self.watchers, watcher)

    def unwatch(self) -> CallSpan | None:
        """Forget all watchers, and the span, which is returned."""
        self.watchers = ()
        return self.take_span()

    def begin(self, at: float, correlation: str, span: CallSpan | None) -> None:
        """Set when the request arrived, what correlates its log lines, and the span of the call."""
        self.began, self.correlation = at, correlation
        if span is not None:
            self.span = span

    def take_span(self) -> CallSpan | None:
        """Remove and return the span of the call."""
        span = self.span
        if span is not None:
            self.span = None
        return span

    def count(self, failure: Failure | None) -> None:
        """Count the call in its session; `failure` if it failed."""
        if self.live is not None:
            self.live.count(failure)

    @property
    def server(self) -> str:
        """The name of the server that has the call; empty if none has it."""
        return "" if self.conversation is None else self.conversation.name

    @property
    def session(self) -> Session | None:
        """The record of its session."""
        return None if self.live is None else self.live.session

    def _notify(self, outcome: Outcome, answer: bytes = b"") -> None:
        watchers, self.watchers = self.watchers, ()
        for watcher in watchers:
            watcher(self, outcome, answer)

    def left(self) -> None:
        """The wire is done with the request: a request without an answer was cancelled."""
        self._notify(CANCELLED)

    @property
    def era(self) -> str:
        """The client's."""
        return "legacy" if self.caller is None else "modern"  # not `Era`, whose hash is slow

    def _shaped(self, result: Object, restarted: str | None) -> Object:
        if self.shape is not None:
            result = self.shape(self, result)
        if restarted is not None:
            result = with_meta(result, {RESTARTED_KEY: msgspec.Raw(encode({"reason": restarted}))})
        return result

    def suspend(self, result: Object) -> None:
        """End the client's present request with a question. What comes from now on waits for its next one."""
        answered, self.replies = self.replies, ReplyQueue()
        # The server has it, and its client may take long: what the request came with is kept no longer.
        self.sent = None
        restarted, self.restarted = self.restarted, None
        data = encode(self._shaped(result, restarted))
        answered.push(Frame(encode_result(encode(self.client_id), data), final=True))
        for watcher in self.watchers:  # which go on watching
            watcher(self, INPUT_REQUIRED, b"")

    def fail(self, code: int, reason: str) -> None:
        """Answer with an error of ours."""
        error = encode({"code": code, "message": reason})
        self.replies.push(Frame(encode_error(encode(self.client_id), error), final=True, error_code=code))
        self._notify(Outcome.error(code), error)


class _Result(msgspec.Struct):
    isError: bool = False
    resultType: str = ""


def _outcome_of(result: bytes) -> Outcome:
    """The outcome by `isError` (MCP, CallToolResult) and `resultType` of a result."""
    # A search for the names first: most results have neither, and may be long.
    if b'"input_required"' not in result and not (b'"isError"' in result and _IS_ERROR.search(result)):
        return OK
    try:
        head = msgspec.json.decode(result, type=_Result)
    except msgspec.MsgspecError:
        return OK
    return TOOL_ERROR if head.isError else INPUT_REQUIRED if head.resultType == "input_required" else OK
