"""Outcomes of tasks on their way to the calls that wait for them (`tasks/result`).

Any number of calls may wait for one task, each with a right to an outcome of a megabyte, and all of them are woken in
the same moment. The outcome is read and encoded once for all of them, the calls of a session are answered only as its
client reads, and other work runs between two answers.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
from msgspec.structs import replace

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.tasks.legacy_answers import legacy_outcome
from session_store import Task
from transports.inbound.bodies import SMALL_BODY_BYTES, Bodies
from transports.jsonrpc import Message
from transports.turns import others_first

__all__ = ["Look", "Outcomes", "Room", "SharedOutcome"]

Look = Callable[[Task | None], Awaitable[Task]]
"""Reads a task, with the rights of the request that asks for its result. If it is over, its outcome is stored. It gets
the task if another request has just read that it is over: then it only decides whether this one may see it.

Raises:
    Refused: the task is unknown.
    StoreUnavailable: the store does not answer.
"""


class Outcomes:
    """The outcomes that calls wait for. `most` bytes of them wait for the client of one session to read them, and
    `bodies` counts those of all sessions."""

    def __init__(self, bodies: Bodies, most: int) -> None:
        self._bodies = bodies
        self._most = most
        self._shared: WeakValueDictionary[str, SharedOutcome] = WeakValueDictionary()
        self._rooms: WeakKeyDictionary[LiveSession, Room] = WeakKeyDictionary()

    def of(self, name: str) -> "SharedOutcome":
        """The outcome of the task of that name, for as long as somebody refers to it."""
        shared = self._shared.get(name)
        if shared is None:
            shared = self._shared[name] = SharedOutcome()
        return shared

    def room_of(self, live: LiveSession) -> "Room":
        """The room for what the client of that session has not read."""
        room = self._rooms.get(live)
        if room is None:
            counted_as = live.session.principal.counted_as(live.session.origin)
            room = self._rooms[live] = Room(self._bodies, counted_as, self._most)
        return room


class SharedOutcome:
    """The outcome of one task, encoded for the calls that wait for it."""

    __slots__ = ("__weakref__", "_message", "_over", "_text", "_turn")

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._over: Task | None = None  # without its result
        self._text = ""
        self._message: Message | None = None

    async def look(self, text: str, look: Look) -> Task | Message:
        """The task as it works, or what `tasks/result` with the handle `text` is answered with. Raises as `look`."""
        async with self._turn:
            await others_first()
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
    """The outcomes that the client of one session is sent and has not read.

    `turn` is held from the time when a task is looked at until its outcome has room, so that one outcome of a session
    at most waits for room.
    """

    def __init__(self, bodies: Bodies, counted_as: str, most: int) -> None:
        self.turn = asyncio.Lock()
        self._bodies = bodies
        self._counted_as = counted_as
        self._most = most
        self._taken = 0
        self._freed = asyncio.Event()

    async def settle(self, call: Exchange, message: Message) -> None:
        """Answer a call, once its client has read enough of the earlier answers.

        Raises:
            Refused: the clients of all sessions have too much to read.
        """
        size = sum(len(memoryview(part)) for part in (message.result, message.error) if isinstance(part, msgspec.Raw))
        while self._taken and self._taken + size > self._most and not call.is_over:
            self._freed.clear()
            await self._freed.wait()
        if call.is_over:
            return
        counted = size if size > SMALL_BODY_BYTES else 0
        self._bodies.take(self._counted_as, counted, 0)
        self._taken += size
        call.when_done(functools.partial(self._give_back, size, counted))
        call.settle(message)

    def _give_back(self, size: int, counted: int) -> None:
        self._bodies.give_back(self._counted_as, counted)
        self._taken -= size
        self._freed.set()
