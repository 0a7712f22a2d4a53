"""The calls of one conversation that have no answer yet, and what becomes of those that are late.

A call in flight is in one of two states. *Sent*: the server has it, under a number. *Waiting*: its client is asked
something on the server's behalf, or it is about to be sent again.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import msgspec

from gateway.bridge.suspended_calls import give_up_suspended
from gateway.errors import CALL_TIMED_OUT
from transports.jsonrpc import Object, encode, encode_request, splice

if TYPE_CHECKING:
    from gateway.calls.conversation import Conversation
    from gateway.calls.exchange import Exchange

__all__ = ["Calls", "framed", "look_after"]


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
        """The server has answered this round with a question, or has not taken the call; another round follows."""
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


def look_after(conversation: "Conversation", now: float) -> None:
    """Send keepalives to waiting clients, and end the calls that are overdue. `now`: seconds of the monotonic clock."""
    limit_s = conversation.deadlines.call_s
    for exchange in conversation.calls:
        exchange.replies.tick(now)
        if exchange.is_suspended:
            if now >= exchange.suspended_until:
                give_up_suspended(exchange, conversation)
        elif now - exchange.heard_at >= limit_s and not exchange.is_subscription:
            is_sent = conversation.calls.is_sent(exchange)
            late = f"server {conversation.name!r} did not answer" if is_sent else "the client did not answer the server"
            told = encode({"requestId": exchange.number, "reason": "timed out"})
            conversation.notify("notifications/cancelled", told)
            conversation.fail(exchange, CALL_TIMED_OUT, f"{late} within {limit_s:g} s; the call was cancelled")


def framed(exchange: "Exchange", number: int, params: Object, meta: Object) -> Generator[None, None, tuple[int, bytes]]:
    """That number, and the call as the server is to read it; in steps, for it may be large (`transports.turns`)."""
    token = meta.get("progressToken")
    exchange.progress_token = None if token is None else token.copy()  # what was cut out of a message keeps all of it
    if token is not None:
        meta = meta | {"progressToken": msgspec.Raw(encode(number))}
    body = encode({**params, "_meta": meta} if meta else params) if meta or params else None
    yield
    request = encode_request(number, exchange.method, body)
    yield
    return number, splice(request)
