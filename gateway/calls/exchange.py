"""One call in flight: its ids on both sides, its frames, its end."""

import logging
import math
import re
from collections.abc import Callable, Mapping
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from gateway.calls.exchange_state import OVER, ExchangeEvent, ExchangeLife, ExchangeState
from gateway.calls.observed import Observed
from gateway.calls.questions import SuspendedCall
from gateway.context.facts import RESTARTED_KEY, with_meta
from gateway.errors import CANCELLED as CANCELLED_CODE
from gateway.observability.observed import Failure
from gateway.observability.outcome import INPUT_REQUIRED, OK, TOOL_ERROR, Outcome
from gateway.protocol.capabilities import Caller
from session_store import Context, Session
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


class Exchange(ExchangeLife, Observed):
    """A client's request on its way through one conversation.

    `number` is its id on the upstream's side, where ids of many clients must not collide; it serves as progress token
    and subscription id there too. `shape` turns the upstream's result into what the client gets; None keeps it.
    `context` and `granted` are of the request it came with.
    `caller` is the client, as a server of the other era gets it. `suspended` is what a modern client was asked.
    `replay` has answers that were given before, by the digest of the question.
    """

    # What most calls never need stands here once, not in each of them.
    conversation: "Conversation | None" = None
    number = 0
    progress_token: msgspec.Raw | None = None
    heard_at = 0.0
    sent: tuple[Object, Object] | None = None  # params and `_meta`, should it have to be sent again
    bridge: Bridge | None = None
    suspended: SuspendedCall | None = None
    replay: Mapping[str, str] = MappingProxyType({})
    restarted: str | None = None
    ended: Callable[[], None] | None = None  # called once, when the wire is done with it

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
        """Whether its client has the questions of a server and no request that waits."""
        return self.state is ExchangeState.ASKING and self.suspended is not None

    def _end(self, event: ExchangeEvent) -> bool:
        """End it. False when it is over already: the first end counts."""
        if self.state in OVER:
            return False
        was_suspended = self.is_suspended
        self.step(event)
        if was_suspended:
            self.done()  # no wire is at work for it
        return True

    def done(self) -> None:
        """The wire is done with it. Idempotent."""
        callback, self.ended = self.ended, None
        if callback is not None:
            callback()

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

        def both() -> None:
            callback()
            if earlier is not None:
                earlier()

        self.ended = both

    def sent_as(self, conversation: "Conversation", number: int, request: tuple[Object, Object] | None) -> None:
        """The server has it, under that number. `request`: params and `_meta`, if it may have to be sent again."""
        self.step(ExchangeEvent.SEND)
        self.conversation = conversation
        self.number = number
        self.sent = request
        self.heard_at = self.written_at = monotonic()

    def queue_at(self, conversation: "Conversation") -> None:
        """That conversation will send it, once its link is open."""
        if self.state is not ExchangeState.QUEUED:
            self.step(ExchangeEvent.REQUEUE)
        self.conversation = conversation

    def take_request(self) -> tuple[Object, Object] | None:
        """Params and `_meta` to be sent again. They are returned once."""
        request, self.sent = self.sent, None
        return request

    def heard(self) -> None:
        """Count the call's deadline from now on."""
        self.heard_at = monotonic()

    def cancel(self, reason: str) -> None:
        """Give it up: notify the server that has it, and answer the client with an error."""
        if self.conversation is not None:
            self.conversation.cancel(self, reason)

    def emit(self, frame: bytes) -> bool:
        """Send the client something that belongs to this call; False when it does not read."""
        return self.replies.push(Frame(frame))

    def finish(self, message: Message, restarted: str | None = None) -> None:
        """Answer with the upstream's response; `restarted` says why the server had to be started anew before it."""
        self.restarted = restarted or self.restarted
        if self.slow_s is not math.inf:
            self.log_if_slow(self.session)
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
            if not self._end(ExchangeEvent.ANSWER):
                return
            self.replies.push(Frame(encode_error(client_id, error), final=True, error_code=code))
            self._notify(Outcome.error(code), error)
        elif isinstance(message.result, msgspec.Raw):
            result = splice(message.result)
            if self.shape is not None or restarted is not None:
                result = encode(self._shaped(msgspec.json.decode(result, type=Object), restarted))
            if not self._end(ExchangeEvent.ANSWER):
                return
            self.replies.push(Frame(encode_result(client_id, result), final=True))
            if self.watchers:
                outcome = _outcome_of(result)
                self._notify(outcome, result if outcome is TOOL_ERROR else b"")

    def count(self, failure: Failure | None) -> None:
        """Count the call in its session; `failure` if it failed."""
        if self.live is not None:
            self.live.count(failure)

    @property
    def server(self) -> str:
        """The name of the server that has got the call; empty if none has."""
        return "" if self.conversation is None or not self.number else self.conversation.name

    @property
    def session(self) -> Session | None:
        """The record of its session."""
        return None if self.live is None else self.live.session

    @property
    def era(self) -> str:
        """The client's."""
        return "legacy" if self.caller is None else "modern"  # not `Era`, whose hash is slow

    def abandon(self) -> None:
        """Nobody waits for an answer."""
        self._end(ExchangeEvent.ABANDON)

    def _shaped(self, result: Object, restarted: str | None) -> Object:
        if self.shape is not None:
            result = self.shape(self, result)
        if restarted is not None:
            result = with_meta(result, {RESTARTED_KEY: msgspec.Raw(encode({"reason": restarted}))})
        return result

    def suspendable(self) -> SuspendedCall:
        """What its modern client was asked, or will be."""
        if self.suspended is None:
            self.suspended = SuspendedCall()
        return self.suspended

    def take_replay(self, digest: str) -> str | None:
        """The answer that was given before to the question with that digest. It is returned once."""
        known = self.replay.get(digest)
        if known is not None:
            self.replay = {asked: answer for asked, answer in self.replay.items() if asked != digest}
        return known

    def resumed(self) -> None:
        """Its client has come back with answers."""
        if self.is_suspended:
            self.step(ExchangeEvent.RESUME)

    def suspend(self, result: Object) -> None:
        """End the client's present request with the questions of a server. Later frames wait for its next request."""
        self.step(ExchangeEvent.ASK)
        answered, self.replies = self.replies, ReplyQueue()
        # The server has it, and its client may take long: what the request came with is kept no longer.
        self.sent = None
        restarted, self.restarted = self.restarted, None
        data = encode(self._shaped(result, restarted))
        answered.push(Frame(encode_result(encode(self.client_id), data), final=True))
        for watcher in self.watchers:  # which go on watching
            watcher(self, INPUT_REQUIRED, b"")

    def fail(self, code: int, reason: str) -> None:
        """Answer with an error of the gateway's."""
        if not self._end(ExchangeEvent.CANCEL if code == CANCELLED_CODE else ExchangeEvent.FAIL):
            return
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
