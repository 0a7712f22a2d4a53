"""The calls of one conversation that have no answer yet, and what becomes of those that are late.

`sent` has those that the server has, by their numbers; the others wait for the link or for their client
(`gateway.calls.lifecycles`).
"""

import asyncio
import math
from collections.abc import Iterator
from time import monotonic
from typing import Final, Protocol

import msgspec

from gateway.calls.deadlines import Deadlines
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import TIMED_BY, Clock, ExchangeState
from gateway.calls.questions import give_up
from gateway.calls.task_tokens import TaskToken, TaskTokens
from gateway.errors import CALL_TIMED_OUT
from transports.jsonrpc import encode

__all__ = ["CallWatch", "Calls", "FastCall", "WatchedConversation"]

TICK_S: Final = 0.25
"""How often calls in flight are checked for their deadlines and keepalives."""

_LATE: Final = {
    Clock.SERVER: "server {!r} did not answer",
    Clock.CLIENT: "the client did not answer the server",
}


class FastCall(Protocol):
    """A call on the fast path (`gateway.relay.fast_path`)."""

    falls_back_at: float
    """When it leaves the fast path if it has no answer, by the monotonic clock."""

    def answer(self, result: msgspec.Raw) -> bool:
        """Answer its client with its server's result. False: it has left the fast path, and is to be answered as any
        other."""
        ...

    def fall_back(self) -> None:
        """Go on as the exchange that it would have been without the fast path."""
        ...


class Calls:
    """The calls of one conversation. They may change while they are iterated over. `fast` has those on the fast path by
    their numbers. They leave it as soon as somebody asks for the calls."""

    __slots__ = ("_sent", "_tasks", "_waiting", "fast")

    def __init__(self) -> None:
        self.fast: dict[int, FastCall] = {}
        self._sent: dict[int, Exchange] = {}
        self._tasks: TaskTokens | None = None
        self._waiting: dict[Exchange, None] = {}

    def __bool__(self) -> bool:
        return bool(self._sent or self._waiting or self.fast)

    def __len__(self) -> int:
        return len(self._sent) + len(self._waiting) + len(self.fast)

    def __iter__(self) -> Iterator[Exchange]:
        return iter([*self.sent.values(), *self._waiting])

    @property
    def sent(self) -> dict[int, Exchange]:
        """Those that the server has, by their numbers."""
        if self.fast:
            self.fall_back()
        return self._sent

    def fall_back(self, before: float = math.inf) -> None:
        """Have the calls leave the fast path, of those whose `falls_back_at` is before that time."""
        if self.fast:
            for call in [call for call in self.fast.values() if call.falls_back_at < before]:
                call.fall_back()

    def slow(self, now: float) -> Iterator[Exchange]:
        """As the iteration, without those that are still on the fast path then."""
        self.fall_back(now)
        return iter([*self._sent.values(), *self._waiting])

    def send(self, exchange: Exchange) -> None:
        """The server has it, under the exchange's number."""
        if self._waiting:
            self._waiting.pop(exchange, None)
        self._sent[exchange.number] = exchange

    def wait(self, exchange: Exchange) -> None:
        """The server does not have it yet, or needs more before it answers."""
        if self._sent.get(exchange.number) is exchange:
            del self._sent[exchange.number]
        self._waiting[exchange] = None

    def is_sent(self, exchange: Exchange) -> bool:
        """Whether the server has it."""
        return self._sent.get(exchange.number) is exchange

    def find(self, number: object) -> Exchange | None:
        """Return the call that the server has under that number. Only this one leaves the fast path."""
        if not isinstance(number, int):
            return None
        if (fast := self.fast.get(number)) is not None:
            fast.fall_back()
        return self._sent.get(number)

    def take(self, number: object) -> Exchange | None:
        """Remove and return the call that the server has under that number."""
        exchange = self._sent.pop(number, None) if isinstance(number, int) else None
        if exchange is not None and exchange.makes_task:
            self._keep_token(exchange)
        return exchange

    def _keep_token(self, exchange: Exchange) -> None:
        if exchange.progress_token is None or exchange.live is None or exchange.caller is not None:
            return  # a modern client gets the progress of a task with the task
        if self._tasks is None:
            self._tasks = TaskTokens()
        self._tasks.keep(exchange.number, exchange.progress_token, exchange.live)

    def of_task(self, number: object) -> TaskToken | None:
        """The token for progress of a task that the call of that number may have made; None if it has none."""
        return None if self._tasks is None else self._tasks.find(number)

    def rest(self) -> None:
        """Give back the memory that calls in flight have taken, if there are none. One for each session adds up."""
        if not self._sent:
            self._sent = {}
        if not self.fast:
            self.fast = {}
        if not self._waiting:
            self._waiting = {}

    def forget_tasks(self) -> None:
        """The server with their tasks is gone."""
        self._tasks = None

    def take_only(self) -> Exchange | None:
        """Remove and return the only call that the server has; None if it has several.

        An error response without an id is about a message that the server could not read: the only one sent.
        """
        return self.sent.popitem()[1] if len(self.sent) == 1 else None

    def end(self, exchange: Exchange) -> bool:
        """Remove a call. False if it was not in flight."""
        if self._sent.get(exchange.number) is exchange:
            del self._sent[exchange.number]
            return True
        return exchange in self._waiting and self._waiting.pop(exchange) is None


class WatchedConversation(Protocol):
    """The conversation whose calls are watched."""

    @property
    def name(self) -> str:
        """The server's name."""
        ...

    @property
    def calls(self) -> Calls:
        """Its calls in flight."""
        ...

    @property
    def deadlines(self) -> Deadlines:
        """How long they may take."""
        ...

    def notify(self, method: str, params: bytes | None) -> None:
        """Send the server a notification."""
        ...

    def fail(self, exchange: Exchange, code: int, reason: str) -> None:
        """Answer a call with an error of the gateway's."""
        ...


class CallWatch:
    """Checks the calls of a conversation at intervals while there are any: sends keepalives to clients that wait, logs
    calls that are slow, and ends those that are late."""

    __slots__ = ("_conversation", "ticking")

    def __init__(self, conversation: WatchedConversation) -> None:
        self._conversation = conversation
        self.ticking: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """There is a call in flight."""
        # One timer for all calls: one for each would cost more than writing the call.
        if self.ticking is None:
            self.ticking = self._later()

    def end(self) -> None:
        """Check no more calls."""
        if self.ticking is not None:
            self.ticking.cancel()
            self.ticking = None

    def _later(self) -> asyncio.TimerHandle:
        tick_s = min(TICK_S, self._conversation.deadlines.call_s / 4)
        return asyncio.get_running_loop().call_later(tick_s, self._tick)

    def _tick(self) -> None:
        self.ticking = self._later() if self._conversation.calls else None
        now = monotonic()
        for exchange in self._conversation.calls.slow(now):
            exchange.replies.tick(now)
            if exchange.is_suspended:
                if exchange.suspended is not None and now >= exchange.suspended.until:
                    give_up(exchange)
            elif not exchange.is_subscription:
                if exchange.state is ExchangeState.SENT:
                    exchange.log_if_hanging(now)
                self._end_if_late(exchange, now)

    def _end_if_late(self, exchange: Exchange, now: float) -> None:
        conversation, late = self._conversation, _LATE.get(TIMED_BY[exchange.state])
        limit_s = exchange.call_s or conversation.deadlines.call_s
        if late is None or now - exchange.deadline_from < limit_s:
            return
        cancelled = encode({"requestId": exchange.number, "reason": "timed out"})
        conversation.notify("notifications/cancelled", cancelled)
        reason = f"{late.format(conversation.name)} within {limit_s:g} s; the call was cancelled"
        conversation.fail(exchange, CALL_TIMED_OUT, reason)
