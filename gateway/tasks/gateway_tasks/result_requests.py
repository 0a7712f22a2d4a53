"""Answer `tasks/result` requests about tasks that the gateway has created (MCP 2025-11-25, Tasks).

A `tasks/result` stays open until the task has ended, and carries the task's questions to the client. A question waits
in the task's record until a session of the principal sends `tasks/result` to the replica that runs the task. The first
answer counts.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
from msgspec.structs import replace

from gateway.bridge.modern_server_subscriptions import declaration_of
from gateway.calls.exchange import Exchange
from gateway.calls.in_flight import WaitingCalls
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.server_task_owners import with_related, without_related
from gateway.observability.logs import CORRELATION
from gateway.protocol.client_capabilities import may_be_asked
from gateway.protocol.input_requests import for_legacy_client, question_of
from gateway.tasks.gateway_tasks.running_task import RunningTask
from gateway.tasks.gateway_tasks.task_exchange import RequestedExchange
from gateway.tasks.gateway_tasks.task_table import TaskTable, topic_of
from gateway.tasks.task_handles import TaskHandle
from gateway.tasks.task_messages import legacy_outcome
from session_store import Bus, StoreUnavailable, Task
from transports.background_tasks import Tasks
from transports.inbound.unauthenticated_limits import SMALL_BODY_BYTES, BodyBudget
from transports.inbound_port import Refused
from transports.jsonrpc import INTERNAL_ERROR, Message, Object, encode
from transports.work_steps import let_others_run

logger = logging.getLogger(__name__)

Look = Callable[[Task | None], Awaitable[Task]]
"""A function that returns a task, with the rights of the `tasks/result` request. An ended task is returned only after
its outcome is stored. The argument is None, or the ended task that another request has just read: then the function
only checks that this request may see the task.

Raises:
    Refused: the task is unknown.
    StoreUnavailable: the store does not answer.
"""

_LOOK_S: Final = 5.0
"""Seconds without news of a task after which its record is read again, because its owner may be gone."""

_AGAIN_S: Final = 1.0
"""Seconds between a failure of the store and the next attempt."""

_Read = Callable[[], Awaitable[Task | None]]


class SharedOutcome:
    """Reads the outcome of one task, and encodes it once for all calls that wait for it. The encoded outcome is in
    memory only while one of these calls refers to this object."""

    __slots__ = ("__weakref__", "_message", "_over", "_text", "_turn")

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._over: Task | None = None  # without its result
        self._text = ""
        self._message: Message | None = None

    async def look(self, text: str, look: Look) -> Task | Message:
        """Return the task if it has not ended. If it has, return the response to a `tasks/result` that names the task
        by the handle `text`.

        `look` reads the task with the rights of the request. If another request has read the outcome already, `look`
        only checks that this request may see the task. Raises the errors of `look`.
        """
        async with self._turn:
            await let_others_run()
            message = self._message if self._text == text else None
            if message is not None:
                await look(self._over)
                return message
            task = await look(None)
            if not task.is_over:
                return task
            self._message = message = legacy_outcome(task, text)
            self._over, self._text = replace(task, result=b"", request=b""), text
            return message


class Room:
    """Limits the bytes of outcomes that were sent to one session's client and that the client has not read.

    A caller locks `turn` before it reads a task, and releases `turn` when the outcome is sent, or at once if the task
    has not ended. So at most one outcome of a session is in memory without room.
    """

    def __init__(self, body_budget: BodyBudget, counted_as: str, most: int) -> None:
        self.turn = asyncio.Lock()
        self._body_budget = body_budget
        self._counted_as = counted_as
        self._most = most
        self._taken = 0
        self._freed = asyncio.Event()

    async def finish(self, call: Exchange, message: Message) -> None:
        """Answer a call with `message`, after its client has read enough of the earlier answers.

        Raises:
            Refused: the clients of all sessions together have too much to read.
        """
        size = sum(len(memoryview(part)) for part in (message.result, message.error) if isinstance(part, msgspec.Raw))
        while self._taken and self._taken + size > self._most and not call.is_over:
            self._freed.clear()
            await self._freed.wait()
        if call.is_over:
            return
        counted = size if size > SMALL_BODY_BYTES else 0
        self._body_budget.reserve(self._counted_as, counted, 0)
        self._taken += size
        call.when_done(functools.partial(self._give_back, size, counted))
        call.finish_translated(message)

    def _give_back(self, size: int, counted: int) -> None:
        self._body_budget.release(self._counted_as, counted)
        self._taken -= size
        self._freed.set()


class ResultCalls:
    """Answers `tasks/result`. `table` has the tasks that this replica runs. `most` limits the bytes that the client of
    one session has not read yet, `body_budget` those that the clients of all sessions have not read."""

    def __init__(self, table: TaskTable, bus: Bus, body_budget: BodyBudget, most: int) -> None:
        self._table = table
        self._bus = bus
        self._body_budget = body_budget
        self._most = most
        self._outcomes: WeakValueDictionary[str, SharedOutcome] = WeakValueDictionary()  # by name of the task
        self._rooms: WeakKeyDictionary[LiveSession, Room] = WeakKeyDictionary()
        self._asked: WeakKeyDictionary[LiveSession, _AskedQuestions] = WeakKeyDictionary()
        self._waiting = WaitingCalls()
        self._tasks = Tasks("results of tasks")

    def begin(self, call: Exchange, handle: TaskHandle, text: str, look: Look) -> None:
        """Answer the `tasks/result` request `call` in the background, when its task has ended. `text` is the handle as
        the client has sent it. `look` reads the task with the rights of this request."""
        live = live_session_of(call)
        assert live is not None
        self._waiting.add(call)
        outcome = self._outcomes.setdefault(handle.name, SharedOutcome())
        room = self._rooms.setdefault(live, Room(self._body_budget, live.session.counted_as, self._most))
        read = functools.partial(_read, call, text, look, outcome, room)
        waiting = _Waiting(call, live, text, read, asked=self._asked.setdefault(live, _AskedQuestions()))
        self._tasks.spawn(waiting.run(self._bus, handle, self._table))


async def _read(call: Exchange, text: str, look: Look, outcome: SharedOutcome, room: Room) -> Task | None:
    """Return the task if it has not ended. If it has, answer the call with the outcome, and return None. Return None,
    too, if the call itself has ended. `text` is the handle as the client has sent it."""
    async with room.turn:
        if call.is_over:
            return None
        found = await outcome.look(text, look)
        if isinstance(found, Message):
            await room.finish(call, found)
            return None
        return found


class _AskedQuestions:
    """Records which questions were sent to a session's client, so that none is asked twice at a time. `names` has a
    pair for each: the name of its task and the question's key. `waiting` has an event of each waiting call. They are
    set when a call no longer waits and has withdrawn its questions: the other calls may then ask them."""

    def __init__(self) -> None:
        self.names: set[tuple[str, str]] = set()
        self.waiting: set[asyncio.Event] = set()

    def wake(self) -> None:
        for event in self.waiting:
            event.set()


class _Waiting:
    """Serves one `tasks/result` request of a client until its task has ended: asks the client the task's questions,
    then answers the request. `asked` has the questions that were sent to the session's client."""

    def __init__(self, call: Exchange, live: LiveSession, text: str, read: _Read, *, asked: _AskedQuestions) -> None:
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
            self._call.refuse(refused)
        except Exception as error:  # nothing else would answer the call
            logger.error("the result of a task could not be delivered", exc_info=error, extra=self._call.log_fields())
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
                if isinstance(running.exchange, RequestedExchange) and running.exchange.owned is not None:
                    if running.exchange.owned.stream is None:
                        running.exchange.owned.await_result(call)
                self._ask(running)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _LOOK_S)

    # -- questions

    def _ask(self, running: RunningTask) -> None:
        """Ask the client the task's open questions, except those that it was asked already or cannot answer."""
        questions = running.exchange.open_questions()
        if self._own and not self._own.keys() & questions.keys():
            self._withdraw()
        for key, raw in questions.items():
            name = (running.name, key)
            method, params = for_legacy_client(question_of(raw))
            params = {} if params is None else params
            if name in self._asked.names or not may_be_asked(declaration_of(self._live).capabilities, method, params):
                continue
            self._asked.names.add(name)
            self._own[key] = name
            answered = functools.partial(self._answered, running, key)
            self._live.questions.ask_from_result(self._call, method, with_related(params, self._text), answered)

    def _answered(self, running: RunningTask, key: str, message: Message) -> None:
        self._forget(key)
        if isinstance(message.result, msgspec.Raw):
            with contextlib.suppress(msgspec.MsgspecError):  # the server refuses a result that it cannot read
                result = without_related(msgspec.json.decode(message.result, type=Object))
                message = Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(result)))
        running.answer_one(key, message)

    def _forget(self, key: str) -> None:
        name = self._own.pop(key, None)
        if name is not None:
            self._asked.names.discard(name)

    def _withdraw(self) -> None:
        """Cancel the questions that this call has asked and that are still open. Other `tasks/result` calls may then
        ask them."""
        for key in [*self._own]:
            self._forget(key)
        self._live.withdraw_questions(self._call)
