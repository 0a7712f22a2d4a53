"""Notifications and responses over HTTP, one after another, and requests that come by the thousand, a few at a time."""

import asyncio
import functools
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.requirements import requirement
from transports.background_tasks import Tasks
from transports.testing import RecordedEvents
from transports.upstream import http_send_queues
from transports.upstream.http_send_queues import AT_ONCE, OrderedMessages, PacedRequests

pytestmark = requirement("wall.structure")


class Receiver:
    """Takes no message before `takes` is set. Notes the messages in their order."""

    def __init__(self) -> None:
        self.takes, self.is_reached = asyncio.Event(), asyncio.Event()
        self.got: list[int] = []
        self.taken: list[int] = []
        tasks = Tasks("the link")
        self.messages = OrderedMessages("remote", lambda _, work: tasks.spawn(work))

    def send(self, *numbers: int, size: int = 10) -> None:
        for number in numbers:
            self.messages.add(size, functools.partial(self.take, number))

    async def take(self, number: int) -> None:
        self.got.append(number)
        self.is_reached.set()
        await self.takes.wait()
        self.taken.append(number)


async def test_messages_keep_their_order_and_a_request_waits_for_those_before_it() -> None:
    server = Receiver()
    server.send(*range(100))
    request = asyncio.ensure_future(server.messages.sent())
    await server.is_reached.wait()
    assert server.got == [0] and not request.done()
    server.takes.set()
    await request
    assert server.taken == [*range(100)]


async def test_a_server_that_holds_a_message_gets_none_of_those_that_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_send_queues, "SEND_S", 0.0)
    monkeypatch.setattr(http_send_queues, "BYTES_PER_S", 1e9)
    server = Receiver()
    server.send(*range(100))
    await server.messages.sent()
    assert server.got == [0] and "dropped: 99" in caplog.text
    server.takes.set()
    server.send(100)
    await server.messages.sent()
    assert server.taken == [100], "it goes on"


async def test_only_so_many_bytes_wait(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(http_send_queues, "MOST_WAITING_BYTES", 10_000)
    server = Receiver()
    server.send(0, 1, size=5_000)
    server.send(2, 3)
    assert caplog.text.count("are dropped while too many wait") == 1, "one line, however many a client sends"
    server.takes.set()
    await server.messages.sent()
    server.send(4, size=1_000_000)
    await server.messages.sent()
    assert server.taken == [0, 1, 4], "what they took is free again"


class Answerer:
    """Answers nothing before `answers` is set. Notes the requests in their order, and how many were open at once."""

    def __init__(self) -> None:
        self.answers, self.is_full = asyncio.Event(), asyncio.Event()
        self.asked: list[int] = []
        self.open = self.most = 0
        self.events = RecordedEvents()
        self.tasks = Tasks("the link")
        self.running: dict[object, asyncio.Task[None]] = {}
        self.paced = PacedRequests("remote", self.run, self.events)

    def run(self, key: object, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.running[key] = task = self.tasks.spawn(work)
        return task

    def send(self, *ids: int) -> None:
        for request_id in ids:
            self.paced.add(request_id, lambda request_id=request_id: self.answer(request_id))  # type: ignore[misc]

    async def answer(self, request_id: int) -> None:
        self.asked.append(request_id)
        self.open += 1
        self.most = max(self.most, self.open)
        if self.open == AT_ONCE:
            self.is_full.set()
        try:
            await self.answers.wait()
        finally:
            self.open -= 1

    async def settled(self) -> None:
        while works := [task for task in self.running.values() if not task.done()]:
            await asyncio.wait(works)


async def test_a_few_are_in_flight_and_all_are_sent_in_their_order() -> None:
    server = Answerer()
    server.send(*range(100))
    await server.is_full.wait()
    assert server.paced.drop(99) and not server.paced.drop(99) and not server.paced.drop(0)
    server.answers.set()
    await server.settled()
    assert server.asked == [*range(99)] and server.most == AT_ONCE and not server.events.failed
    server.send(100)
    await server.settled()
    assert server.asked[-1] == 100, "it goes on"


async def test_a_server_that_does_not_answer_gets_none_of_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_send_queues, "ANSWER_S", 0.0)
    server = Answerer()
    server.send(*range(100))
    await server.settled()
    assert sorted(server.events.failed, key=str) == sorted(range(100), key=str)
    assert len(server.asked) <= AT_ONCE and not server.open, "what is open is ended"


async def test_only_so_many_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_send_queues, "MOST_WAITING_REQUESTS", 3)
    server = Answerer()
    server.send(*range(5))
    assert server.events.failed == [3, 4]
    server.answers.set()
    await server.settled()
    assert server.asked == [0, 1, 2]
