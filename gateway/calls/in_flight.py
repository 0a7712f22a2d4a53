"""The calls of one conversation that have no answer yet, and what becomes of those that are late.

`sent` has those that the server has, by their numbers; the others wait for the link or for their client
(`gateway.calls.exchange_state`).
"""

import asyncio
from collections.abc import Generator, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.calls.exchange_state import TIMED_BY, Clock
from gateway.calls.questions import give_up
from gateway.errors import CALL_TIMED_OUT
from transports.jsonrpc import Object, encode, encode_request, splice

if TYPE_CHECKING:
    from gateway.calls.conversation import Conversation
    from gateway.calls.exchange import Exchange

__all__ = ["CallWatch", "Calls", "framed"]

TICK_S: Final = 0.25
"""How often calls in flight are checked for their deadlines and keepalives."""

_LATE: Final = {
    Clock.SERVER: "server {!r} did not answer",
    Clock.CLIENT: "the client did not answer the server",
}


class Calls:
    """Iterates over all of them; it may be changed meanwhile."""

    __slots__ = ("_waiting", "sent")

    def __init__(self) -> None:
        self.sent: dict[int, Exchange] = {}
        self._waiting: dict[Exchange, None] = {}

    def __bool__(self) -> bool:
        return bool(self.sent or self._waiting)

    def __len__(self) -> int:
        return len(self.sent) + len(self._waiting)

    def __iter__(self) -> "Iterator[Exchange]":
        return iter([*self.sent.values(), *self._waiting])

    def send(self, exchange: "Exchange") -> None:
        """The server has it, under the exchange's number."""
        if self._waiting:
            self._waiting.pop(exchange, None)
        self.sent[exchange.number] = exchange

    def wait(self, exchange: "Exchange") -> None:
        """The server does not have it yet, or wants to know something before it answers."""
        if self.sent.get(exchange.number) is exchange:
            del self.sent[exchange.number]
        self._waiting[exchange] = None

    def is_sent(self, exchange: "Exchange") -> bool:
        """Whether the server has it."""
        return self.sent.get(exchange.number) is exchange

    def take(self, number: object, *, is_alone: bool) -> "Exchange | None":
        """Remove and return the call that the server has under that number. An error response whose id is None is about
        a message that the server could not read: the only call sent, if nothing else was sent (`is_alone`)."""
        if number is None and is_alone and len(self.sent) == 1:
            return self.sent.popitem()[1]
        return self.sent.pop(number, None) if isinstance(number, int) else None

    def end(self, exchange: "Exchange") -> bool:
        """Remove a call. False when it was not in flight."""
        if self.sent.get(exchange.number) is exchange:
            del self.sent[exchange.number]
            return True
        return exchange in self._waiting and self._waiting.pop(exchange) is None


class CallWatch:
    """Looks at the calls of a conversation now and then while there are any: sends keepalives to clients that wait, and
    ends calls that are late."""

    __slots__ = ("_conversation", "_ticking")

    def __init__(self, conversation: "Conversation") -> None:
        self._conversation = conversation
        self._ticking: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """There is a call in flight."""
        # One timer for all calls: one for each would cost more than writing the call.
        if self._ticking is None:
            self._ticking = self._later()

    def end(self) -> None:
        """Look at no more calls."""
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    def _later(self) -> asyncio.TimerHandle:
        tick_s = min(TICK_S, self._conversation.deadlines.call_s / 4)
        return asyncio.get_running_loop().call_later(tick_s, self._tick)

    def _tick(self) -> None:
        self._ticking = self._later() if self._conversation.calls else None
        now = monotonic()
        for exchange in self._conversation.calls:
            exchange.replies.tick(now)
            if exchange.is_suspended:
                if exchange.suspended is not None and now >= exchange.suspended.until:
                    give_up(exchange)
            elif not exchange.is_subscription:
                self._end_if_late(exchange, now)

    def _end_if_late(self, exchange: "Exchange", now: float) -> None:
        conversation, late = self._conversation, _LATE.get(TIMED_BY[exchange.state])
        limit_s = conversation.deadlines.call_s
        if late is None or now - exchange.heard_at < limit_s:
            return
        cancelled = encode({"requestId": exchange.number, "reason": "timed out"})
        conversation.notify("notifications/cancelled", cancelled)
        reason = f"{late.format(conversation.name)} within {limit_s:g} s; the call was cancelled"
        conversation.fail(exchange, CALL_TIMED_OUT, reason)


def framed(exchange: "Exchange", number: int, params: Object, meta: Object) -> Generator[None, None, tuple[int, bytes]]:
    """The number, and the call as sent to the server. Works in steps, because it may be large (`transports.turns`)."""
    token = meta.get("progressToken")
    exchange.progress_token = None if token is None else token.copy()  # what was cut out of a message keeps all of it
    if token is not None:
        meta = meta | {"progressToken": msgspec.Raw(encode(number))}
    body = encode({**params, "_meta": meta} if meta else params) if meta or params else None
    yield
    request = encode_request(number, exchange.method, body)
    yield
    return number, splice(request)
