"""`tasks/result` of a 2025-11-25 client about a task that the gateway has made (MCP 2025-11-25, Tasks).

The call is open until the task is over, and the task asks its client on it. A question waits in the record until some
session of the principal asks for the result at the replica that runs the task; the first answer counts.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from gateway.bridge.subscription_relay import caller_of
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.owned_tasks import with_related, without_related
from gateway.errors import error_of
from gateway.observability.logs import CORRELATION
from gateway.protocol.capabilities import may_be_asked
from gateway.protocol.questions import for_legacy_client, question_of
from gateway.tasks.asked import AskedExchange
from gateway.tasks.changes import topic_of
from gateway.tasks.handles import TaskHandle
from gateway.tasks.outcomes import Look, Outcomes, Room, SharedOutcome
from gateway.tasks.running import RunningTask
from gateway.tasks.table import TaskTable
from gateway.tasks.waiting_calls import WaitingCalls
from session_store import Bus, StoreUnavailable, Task
from transports.inbound_port import Refused
from transports.jsonrpc import INTERNAL_ERROR, Message, Object, encode
from transports.tasks import Tasks

__all__ = ["ResultCalls"]

logger = logging.getLogger(__name__)

_LOOK_S: Final = 5.0
"""How often a task is looked at of which nobody tells anything: its owner may be gone."""

_AGAIN_S: Final = 1.0
"""How long after a failure of the store a task is looked at again."""

_Read = Callable[[], Awaitable[Task | None]]


class ResultCalls:
    """Answers `tasks/result`. `table` has the tasks that this replica runs."""

    def __init__(self, table: TaskTable, bus: Bus, outcomes: Outcomes) -> None:
        self._table = table
        self._outcomes = outcomes
        self._bus = bus
        self._asked: WeakKeyDictionary[LiveSession, _Asked] = WeakKeyDictionary()
        self._waiting = WaitingCalls()
        self._tasks = Tasks("results of tasks")

    def begin(self, call: Exchange, handle: TaskHandle, text: str, look: Look) -> None:
        """Answer that call once the task is over. `text` is the handle that its client has sent."""
        live = live_session_of(call)
        assert live is not None
        self._waiting.add(call)
        outcome, room = self._outcomes.of(f"{handle.session_id}/{handle.id}"), self._outcomes.room_of(live)
        read = functools.partial(_read, call, text, look, outcome, room)
        waiting = _Waiting(call, live, text, read, asked=self._asked.setdefault(live, _Asked()))
        self._tasks.spawn(waiting.run(self._bus, handle, self._table))


async def _read(call: Exchange, text: str, look: Look, outcome: SharedOutcome, room: Room) -> Task | None:
    """The task, as long as it works. Otherwise answer the call, whose client has sent the handle `text`."""
    async with room.turn:
        if call.is_over:
            return None
        found = await outcome.look(text, look)
        if isinstance(found, Message):
            await room.settle(call, found)
            return None
        return found


class _Asked:
    """The questions that the client of a session has, by the name of the task and their key, and its calls that wait,
    which are woken when one of them takes its questions back."""

    def __init__(self) -> None:
        self.names: set[tuple[str, str]] = set()
        self.waiting: set[asyncio.Event] = set()

    def wake(self) -> None:
        for event in self.waiting:
            event.set()


class _Waiting:
    """One call. `asked`: what the client of its session has been asked."""

    def __init__(self, call: Exchange, live: LiveSession, text: str, read: _Read, *, asked: _Asked) -> None:
        self._call = call
        self._live = live
        self._text = text
        self._read = read
        self._asked = asked
        self._own: dict[str, tuple[str, str]] = {}  # those of `asked` that this call has asked
        self._wake = asyncio.Event()

    async def run(self, bus: Bus, handle: TaskHandle, table: TaskTable) -> None:
        CORRELATION.set(self._call.correlation)  # of this task
        self._call.when_done(self._wake.set)
        self._asked.waiting.add(self._wake)

        def changed(data: bytes | None) -> None:
            if data is None or data.decode() == handle.id:  # None: messages may have been lost
                self._wake.set()

        try:
            while not self._call.is_over:
                try:
                    async with bus.subscribed(topic_of(handle.session_id), changed):
                        await self._follow(table)
                except StoreUnavailable:
                    await asyncio.sleep(_AGAIN_S)
        except Refused as refused:
            error = error_of(refused.code, str(refused), self._call.correlation)
            self._call.settle(Message(jsonrpc="2.0", id=0, error=msgspec.Raw(encode(error))))
        except Exception as error:  # nobody else would answer the call
            logger.error("the result of a task could not be told", exc_info=error, extra=self._call.log_fields())
            self._call.fail(INTERNAL_ERROR, "the result of the task could not be read")
        finally:
            self._asked.waiting.discard(self._wake)
            self._withdraw()
            self._asked.wake()

    async def _follow(self, table: TaskTable) -> None:
        call = self._call
        while not call.is_over:
            self._wake.clear()
            task = await self._read()
            if task is None:
                return
            running = table.get(task.name)
            if running is not None:
                if isinstance(running.exchange, AskedExchange) and running.exchange.owned is not None:
                    if running.exchange.owned.stream is None:
                        running.exchange.owned.await_result(call)
                self._ask(running)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _LOOK_S)

    # -- questions

    def _ask(self, running: RunningTask) -> None:
        """Ask the client what the task asks now, unless the client has the question already."""
        questions = running.exchange.open_questions()
        if self._own and not self._own.keys() & questions.keys():
            self._withdraw()
        for key, raw in questions.items():
            name = (running.name, key)
            method, params = for_legacy_client(question_of(raw))
            params = {} if params is None else params
            if name in self._asked.names or not may_be_asked(caller_of(self._live).capabilities, method, params):
                continue
            self._asked.names.add(name)
            self._own[key] = name
            answered = functools.partial(self._answered, running, key)
            self._live.questions.ask_for_result(self._call, method, with_related(params, self._text), answered)

    def _answered(self, running: RunningTask, key: str, message: Message) -> None:
        self._forget(key)
        if isinstance(message.result, msgspec.Raw):
            with contextlib.suppress(msgspec.MsgspecError):  # the server refuses what it cannot read
                result = without_related(msgspec.json.decode(message.result, type=Object))
                message = Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(result)))
        running.answer_one(key, message)

    def _forget(self, key: str) -> None:
        name = self._own.pop(key, None)
        if name is not None:
            self._asked.names.discard(name)

    def _withdraw(self) -> None:
        """What this call has asked needs no answer any more."""
        for key in [*self._own]:
            self._forget(key)
        self._live.withdraw_questions(self._call)
