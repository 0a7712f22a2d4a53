"""The calls that wait for something here and are sent to no server, in place of the conversation with one."""

import itertools
import math
from typing import Final

from gateway.calls.exchange import Exchange
from gateway.calls.in_flight import Calls, CallWatch
from gateway.calls.lifecycles import Deadlines
from gateway.errors import CANCELLED
from transports.jsonrpc import Message

__all__ = ["WaitingCalls"]

_NO_LIMITS: Final = Deadlines(start_s=math.inf, call_s=math.inf, suspended_s=math.inf, idle_stop_s=None)


class WaitingCalls:
    """Has their event streams begin and kept alive, as those of calls that a server has. They are never late: what they
    wait for has its own limits."""

    name = ""
    deadlines = _NO_LIMITS

    def __init__(self) -> None:
        self.calls = Calls()
        self._watch = CallWatch(self)
        self._numbers = itertools.count(1)  # two calls may have the same id, one after the other

    def add(self, exchange: Exchange) -> None:
        """Watch a call until its reply is done."""
        exchange.queue_at(self, next(self._numbers))
        self.calls.wait(exchange)
        exchange.when_done(lambda: self._end(exchange))
        self._watch.begin()

    def _end(self, exchange: Exchange) -> None:
        self.calls.end(exchange)

    def cancel(self, exchange: Exchange, reason: str, code: int = CANCELLED) -> None:
        self.fail(exchange, code, f"Cancelled: {reason}")

    def fail(self, exchange: Exchange, code: int, reason: str) -> None:
        exchange.fail(code, reason)

    def answer(self, request_id: bytes, message: Message) -> None:
        """Do nothing: no server has asked."""

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """Do nothing, as `answer`."""

    def notify(self, method: str, params: bytes | None) -> None:
        """Do nothing: no server waits for progress."""
