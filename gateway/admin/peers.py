"""Queries between the replicas of one store, over its bus. A replica that is paused or cut off does not answer."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from session_store import Bus, StoreUnavailable
from transports.tasks import Tasks

__all__ = ["ASK", "PeerQueries"]

logger = logging.getLogger(__name__)

ASK: Final = "mcp:ask"
_ANSWERS: Final = "mcp:answers:"
_AGAIN_S: Final = 1.0
PATIENCE_S: Final = 1.0
"""How long the sender of a query waits for the answers."""


class _Question(msgspec.Struct):
    number: str
    by: str
    to: list[str]
    what: str
    args: Any = None


class _Answer(msgspec.Struct):
    number: str
    by: str
    body: Any = None


Message = TypeVar("Message", _Question, _Answer)


class PeerQueries:
    """Sends queries to other replicas, and answers theirs by `answer(name of the query, arguments)`."""

    def __init__(self, bus: Bus, name: str, answer: Callable[[str, Any], Awaitable[Any]]) -> None:
        self._bus = bus
        self._name = name
        self._answer = answer
        self._waiting: dict[str, Callable[[str, Any], None]] = {}
        self._tasks = Tasks("peer queries")

    async def listen(self) -> None:
        """Receive queries and answers until cancelled."""
        while True:
            try:
                async with (
                    self._bus.subscribed(ASK, self._receive_query),
                    self._bus.subscribed(_ANSWERS + self._name, self._receive_answer),
                ):
                    await asyncio.Event().wait()
            except StoreUnavailable:
                await asyncio.sleep(_AGAIN_S)

    async def ask(self, what: str, args: Any, of: Iterable[str], *, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Send a query to the replicas `of`. Returns the answers that came in time, by replica."""
        others, answers = {name for name in of if name != self._name}, {}
        here = self._name in of
        number = secrets.token_hex(8)
        complete = asyncio.Event()

        def receive(by: str, body: Any) -> None:
            answers[by] = body
            if others <= answers.keys():
                complete.set()

        if others:
            self._waiting[number] = receive
            question = _Question(number, self._name, sorted(others), what, args)
        try:
            if others:
                with contextlib.suppress(StoreUnavailable):
                    await self._bus.publish(ASK, msgspec.json.encode(question))
            if here:
                answers[self._name] = await self._answer(what, args)
            if others:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience_s):
                        await complete.wait()
        finally:
            self._waiting.pop(number, None)
        return answers

    def _receive_query(self, data: bytes | None) -> None:
        question = _read(data, _Question)
        if question is not None and self._name in question.to:
            self._tasks.spawn(self._answer_query(question))

    async def _answer_query(self, question: _Question) -> None:
        try:
            body = await self._answer(question.what, question.args)
            answer = msgspec.json.encode(_Answer(question.number, self._name, body))
            await self._bus.publish(_ANSWERS + question.by, answer)
        except LookupError:
            logger.warning("a replica of another version sent an unknown query: %s", question.what)
        except StoreUnavailable:
            return  # the answer cannot be sent

    def _receive_answer(self, data: bytes | None) -> None:
        answer = _read(data, _Answer)
        if answer is not None and (waiting := self._waiting.get(answer.number)) is not None:
            waiting(answer.by, answer.body)


def _read(data: bytes | None, kind: type[Message]) -> Message | None:
    """A decoded message. None if messages were missed, or if another version has encoded it differently."""
    try:
        return None if data is None else msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError:
        logger.warning("a message of a replica could not be decoded; it probably runs another version")
        return None
