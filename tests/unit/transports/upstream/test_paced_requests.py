"""Requests that come by the thousand, a few at a time."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.requirements import requirement
from transports.background_tasks import Tasks
from transports.testing import RecordedEvents
from transports.upstream import paced_requests
from transports.upstream.paced_requests import AT_ONCE, PacedRequests

pytestmark = requirement("wall.structure")


class Server:
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
    server = Server()
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
    monkeypatch.setattr(paced_requests, "ANSWER_S", 0.0)
    server = Server()
    server.send(*range(100))
    await server.settled()
    assert sorted(server.events.failed, key=str) == sorted(range(100), key=str)
    assert len(server.asked) <= AT_ONCE and not server.open, "what is open is ended"


async def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_requests, "MOST_WAITING", 3)
    server = Server()
    server.send(*range(5))
    assert server.events.failed == [3, 4]
    server.answers.set()
    await server.settled()
    assert server.asked == [0, 1, 2]
