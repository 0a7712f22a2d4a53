"""Track the requests of one conversation that have no answer yet: calls of clients and the gateway's own requests. End
calls that are late.

`sent` has the calls that were sent to the server, by request id. The others wait for the link or for their client
(`gateway.calls.lifecycles`).
"""

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol
from weakref import ref

import msgspec

from gateway.calls.exchange import Exchange, ExchangeConversation, ExchangeSession
from gateway.calls.lifecycles import Deadlines, ExchangeState
from gateway.calls.link_manager import LinkSource
from gateway.calls.questions_to_client import give_up
from gateway.errors import CALL_TIMED_OUT, CANCELLED
from session_store.session import redact
from transports.jsonrpc import Message, encode
from transports.upstream_port import LinkClosed

TICK_S: Final = 0.25
"""Seconds between two checks of the calls in flight, for deadlines and keepalives."""

MOST_TOKENS: Final = 256
"""Maximum number of stored progress tokens of tasks in one conversation. Beyond it, the oldest token is dropped."""

MOST_NAMED: Final = 3
"""Maximum number of calls in flight that a log line lists by correlation id. A longer list would not help a reader."""

_EXIT_S: Final = 1.0
"""Seconds to wait for the exit of a process that has closed its input, so that errors can report the exit."""

_UNNEEDED_S: Final = 10.0
"""Seconds after which the gateway gives up one of its own requests to a server whose answer nobody needs."""

_NO_LIMITS: Final = Deadlines(start_s=math.inf, call_s=math.inf, suspended_s=math.inf, idle_stop_s=None)

_LATE: Final = {
    ExchangeState.SENT: "server {!r} did not answer",
    ExchangeState.ASKING: "the client did not answer the server",
}


class CallOnFastPath(Protocol):
    """A call on the fast path: it repeats an earlier call, and skips most steps. `gateway.relay.fast_path.FastCall`
    describes the methods."""

    falls_back_at: float
    """The monotonic time at which the call leaves the fast path if it has no answer yet."""

    @property
    def progress_token(self) -> bytes: ...
    def emit(self, frame: bytes) -> None: ...
    def answer(self, result: msgspec.Raw) -> bool: ...
    def fall_back(self) -> None: ...


class TaskToken(NamedTuple):
    """A client's progress token for a task, and a weak reference to the client's session."""

    token: msgspec.Raw
    session: "ref[object]"


class CallsInFlight:
    """The calls of one conversation that have no answer yet. Any access to `sent` takes all calls off the fast path.
    Calls may begin and end while this object is iterated over."""

    __slots__ = ("_left", "_questions", "_sent", "_tokens", "_waiting", "fast")

    def __init__(self) -> None:
        self.fast: dict[int, CallOnFastPath] = {}
        """The calls on the fast path, by request id."""
        self._questions: dict[bytes, ExchangeSession] | None = None  # by the id of the server's request, as JSON
        # The client of the last call that has ended without an answer, when that was, and when it was for another one.
        self._left: tuple[ref[object], float, float] | None = None
        self._sent: dict[int, Exchange] = {}
        self._tokens: dict[int, TaskToken] | None = None  # of calls that were answered with a task, by number
        self._waiting: dict[Exchange, None] = {}

    def __bool__(self) -> bool:
        return bool(self._sent or self._waiting or self.fast)

    def __len__(self) -> int:
        return len(self._sent) + len(self._waiting) + len(self.fast)

    def __iter__(self) -> Iterator[Exchange]:
        return iter([*self.sent.values(), *self._waiting])

    @property
    def sent(self) -> dict[int, Exchange]:
        """Take all calls off the fast path, and return the calls that were sent to the server, by request id."""
        if self.fast:
            self.fall_back()
        return self._sent

    def fall_back(self, before: float = math.inf) -> None:
        """Take off the fast path the calls whose `falls_back_at` is before this monotonic time."""
        if self.fast:
            for call in [call for call in self.fast.values() if call.falls_back_at < before]:
                call.fall_back()

    def slow(self, now: float) -> Iterator[Exchange]:
        """Iterate over the calls that are not on the fast path. Before that, take off the fast path the calls whose
        `falls_back_at` is over at the monotonic time `now`."""
        self.fall_back(now)
        return iter([*self._sent.values(), *self._waiting])

    def add_sent(self, exchange: Exchange) -> None:
        """Record that the call was sent to the server."""
        if self._waiting:
            self._waiting.pop(exchange, None)
        self._sent[exchange.number] = exchange

    def add_waiting(self, exchange: Exchange) -> None:
        """Record that the call waits for its client, or to be sent to the server."""
        if self._sent.get(exchange.number) is exchange:
            del self._sent[exchange.number]
        self._waiting[exchange] = None

    def is_sent(self, exchange: Exchange) -> bool:
        """Return True if the call was sent to the server and is not answered yet."""
        return self._sent.get(exchange.number) is exchange

    def find(self, number: object) -> Exchange | None:
        """Return the sent call with this request id, taken off the fast path; None if there is no such call."""
        if not isinstance(number, int):
            return None
        if (fast := self.fast.get(number)) is not None:
            fast.fall_back()
        return self._sent.get(number)

    def pop(self, number: object) -> Exchange | None:
        """Remove and return the sent call with this request id, because the server has answered it. Return None if
        there is no such call."""
        exchange = self._sent.pop(number, None) if isinstance(number, int) else None
        if exchange is not None and exchange.makes_task:
            self._keep_token(exchange)
        return exchange

    def _keep_token(self, exchange: Exchange) -> None:
        """Store the progress token of an answered call of a legacy client. The call may have created a task, for which
        the token stays valid (MCP 2025-11-25, Progress). The end of the task is not known here, but a server sends no
        progress after it."""
        if exchange.progress_token is None or exchange.live is None or exchange.declaration is not None:
            return  # a modern client gets the progress of a task with the task
        if self._tokens is None:
            self._tokens = {}
        while len(self._tokens) >= MOST_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[exchange.number] = TaskToken(exchange.progress_token, ref(exchange.live))

    def token_of_task(self, number: object) -> TaskToken | None:
        """Return the client's progress token for the task that the call with this request id has created. Return None
        if no token is known."""
        return self._tokens.get(number) if self._tokens is not None and isinstance(number, int) else None

    def free_memory(self) -> None:
        """Free the memory that earlier calls have left. Keep what calls in flight use."""
        if not self._sent:
            self._sent = {}
        if not self.fast:
            self.fast = {}
        if not self._waiting:
            self._waiting = {}

    def add_question(self, server_id: bytes, live: ExchangeSession) -> None:
        """Record that the server has asked the client of the session `live` a question. `server_id` is the id of the
        server's request, as JSON."""
        if self._questions is None:
            self._questions = {}
        self._questions[server_id] = live

    def has_question(self, server_id: bytes) -> bool:
        """Return True if the server waits for the answer to its own request with this id (JSON)."""
        return self._questions is not None and server_id in self._questions

    def remove_question(self, server_id: bytes) -> ExchangeSession | None:
        """Remove the server's request with this id (JSON), because it is answered or cancelled. Return the session
        whose client was asked; None if there is no such request."""
        live = None if self._questions is None else self._questions.pop(server_id, None)
        self._questions = self._questions or None
        return live

    def forget_server(self) -> None:
        """Drop what ends with a server that is gone: the progress tokens of its tasks, the questions that it has asked,
        and the record of calls that ended without an answer."""
        self._tokens = self._questions = self._left = None

    def pop_only(self) -> Exchange | None:
        """Remove and return the sent call if there is exactly one; else return None. Used for an error response without
        an id, by which a server says that it could not read a message."""
        return self.sent.popitem()[1] if len(self.sent) == 1 else None

    def end(self, exchange: Exchange) -> bool:
        """Remove a call, because it ends. Return False if it was not in flight."""
        if self._sent.get(exchange.number) is exchange:
            del self._sent[exchange.number]
            if not exchange.is_subscription:
                self._leave(exchange)
            return True
        return exchange in self._waiting and self._waiting.pop(exchange) is None

    def _leave(self, exchange: Exchange) -> None:
        last, at, before = self._left or (None, -math.inf, -math.inf)
        client = client_of(exchange)
        if last is None or last() is not client:
            before = at
        self._left = (ref(client), monotonic(), before)

    def may_work_for_others(self, client: object, since: float) -> bool:
        """Return True if the server may still work on a call of another client (see `client_of`): one that has ended
        without an answer after the monotonic time `since`. A server need not heed a cancellation."""
        if self._left is None:
            return False
        last, at, before = self._left
        return (before if last() is client else at) > since


def client_of(exchange: Exchange) -> object:
    """Return an object that stands for the client of a call: the call's session. For a call without a session, return
    the call itself, because nothing says that two such calls have the same client."""
    return exchange if exchange.live is None else exchange.live


class CallWatch:
    """Check the calls of a conversation at intervals while there are any: send keepalives to clients that wait, log
    slow calls, and end late ones."""

    __slots__ = ("_calls", "_conversation", "ticking")

    def __init__(self, conversation: ExchangeConversation, calls: CallsInFlight) -> None:
        self._conversation = conversation
        self._calls = calls
        self.ticking: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start the periodic checks, if they are not running."""
        # One timer for all calls: one for each would cost more than the write of the call.
        if self.ticking is None:
            self.ticking = self._later()

    def end(self) -> None:
        if self.ticking is not None:
            self.ticking.cancel()
            self.ticking = None

    def _later(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(min(TICK_S, self._conversation.deadlines.call_s / 4), self._tick)

    def _tick(self) -> None:
        self.ticking = self._later() if self._calls else None
        now = monotonic()
        for exchange in self._calls.slow(now):
            exchange.replies.tick(now)
            if exchange.is_suspended:
                if exchange.suspended is not None and now >= exchange.suspended.until:
                    give_up(exchange)
            elif not exchange.is_subscription:
                if exchange.state is ExchangeState.SENT:
                    exchange.log_if_hanging(now)
                self._end_if_late(exchange, now)

    def _end_if_late(self, exchange: Exchange, now: float) -> None:
        conversation, late = self._conversation, _LATE.get(exchange.state)
        limit_s = exchange.call_s or conversation.deadlines.call_s
        if late is None or now - exchange.deadline_from < limit_s:
            return
        cancelled = encode({"requestId": exchange.number, "reason": "timed out"})
        conversation.notify("notifications/cancelled", cancelled)
        reason = f"{late.format(conversation.name)} within {limit_s:g} s; the call was cancelled"
        conversation.fail(exchange, CALL_TIMED_OUT, reason)


class WaitingCalls:
    """The calls that no single server answers, such as `tasks/result` and a `subscriptions/listen` for several servers.
    This object begins their event streams, and sends keepalives on them. The calls have no deadline."""

    name = ""
    deadlines = _NO_LIMITS

    def __init__(self) -> None:
        self.calls = CallsInFlight()
        self._watch = CallWatch(self, self.calls)
        self._numbers = itertools.count(1)  # two calls may have the same id, one after the other

    def add(self, exchange: Exchange) -> None:
        """Begin a call's event stream, and send keepalives on it until its reply has ended."""
        exchange.queue_at(self, next(self._numbers))
        self.calls.add_waiting(exchange)

        def end() -> None:
            self.calls.end(exchange)

        exchange.when_done(end)
        self._watch.begin()

    def cancel(self, exchange: Exchange, reason: str, code: int = CANCELLED) -> None:
        exchange.fail_cancelled(code, reason)

    def fail(self, exchange: Exchange, code: int, reason: str) -> None:
        exchange.fail(code, reason)

    def answer(self, request_id: bytes, message: Message) -> None:
        """Do nothing: no server has sent these clients a request."""

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """Do nothing: no server has sent these clients a request."""

    def notify(self, method: str, params: bytes | None) -> None:
        """Do nothing: there is no server to notify."""


class OwnRequests:
    """The gateway's own requests to a server that have no answer yet, by request id."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def expect(self, number: int, notify: Callable[[str, bytes], None] | None = None) -> asyncio.Future[Message]:
        """Return a future for the answer to the gateway's own request with the id `number`. If the future is cancelled,
        `notify` sends the server `notifications/cancelled`."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        answer.add_done_callback(lambda answer: self._settled(number, notify if answer.cancelled() else None))
        return answer

    def end_if_late(self, answer: asyncio.Future[Message]) -> None:
        """Cancel the future `answer` of a request if it has no answer within `_UNNEEDED_S`. Used for requests whose
        answer nobody needs."""
        timer = asyncio.get_running_loop().call_later(_UNNEEDED_S, answer.cancel)

        def settled(answer: asyncio.Future[Message]) -> None:
            timer.cancel()
            if not answer.cancelled():
                answer.exception()  # else its failure would be logged

        answer.add_done_callback(settled)

    def _settled(self, number: int, notify: Callable[[str, bytes], None] | None) -> None:
        if notify is not None:
            notify("notifications/cancelled", encode({"requestId": number, "reason": "nobody waits for it any more"}))
        self._waiting.pop(number, None)
        if not self._waiting:
            self._waiting = {}  # a dict that was in use keeps its size

    async def exit_error(self, closed: LinkClosed, number: int) -> LinkClosed:
        """Wait up to `_EXIT_S` seconds for the exit of a process that no longer reads its stdin. Return the error that
        tells how the process exited, or `closed` if it still runs. `number` is an unused request id: a wait for its
        answer fails when the process exits."""
        end = self.expect(number)
        try:
            async with asyncio.timeout(_EXIT_S):
                await end
        except LinkClosed as ended:
            return ended
        except TimeoutError:  # the process has only closed its input
            pass
        return closed

    def answered(self, message: Message) -> bool:
        """Give a response to the caller that waits for it, and return True. Return False if the response is to no
        request of the gateway."""
        answer = self._waiting.get(message.id) if isinstance(message.id, int) else None
        if answer is None:
            return False
        if not answer.done():
            answer.set_result(message)
        return True

    def fail(self, number: object, error: Exception) -> None:
        """Fail the request with this id, or all requests if `number` is None, with `error`: no answer will come."""
        found = self._waiting.get(number)  # type: ignore[call-overload]  # anything can be looked up
        for answer in list(self._waiting.values()) if number is None else () if found is None else (found,):
            if not answer.done():
                answer.set_exception(error)


def fields_of_line(source: LinkSource, calls: Iterable[Exchange], opened_for: str) -> dict[str, Any]:
    """Return the fields of a log line about a server's output or exit.

    A server does not say to which call a line belongs. So `correlation` is set only if one call is in flight. Of
    several calls, `in_flight` is the number, and `correlations` lists the correlation ids if there are at most three.
    The line of a shared server gets a session only if all calls in flight have the same session. `opened_for` is the
    correlation id of the request for which the link is being opened; empty once the link is open. It is used if no call
    is in flight."""
    flying = [call for call in calls if not call.is_subscription]
    fields: dict[str, Any] = {"server": source.name}
    if source.principal:
        fields["principal"] = source.principal
    if not (session := source.session):
        sessions = {"" if call.session is None else redact(call.session.id) for call in flying}
        session = sessions.pop() if len(sessions) == 1 else ""
    if session:
        fields["session"] = session
    correlations = sorted({call.correlation for call in flying if call.correlation})
    if not flying:
        fields["correlation"] = opened_for
    elif len(flying) == 1:
        fields["correlation"] = flying[0].correlation
    else:
        # Empty, because a line without one would get that of the task that writes the line.
        fields["correlation"] = ""
        fields["in_flight"] = len(flying)
        if len(correlations) <= MOST_NAMED:
            fields["correlations"] = " ".join(correlations)
    return fields
