"""Notifications and responses over HTTP, one after another."""

import asyncio
import functools

import pytest

from tests.requirements import requirement
from transports.background_tasks import Tasks
from transports.upstream import ordered_sending
from transports.upstream.ordered_sending import OrderedMessages

pytestmark = requirement("wall.structure")


class Server:
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
    server = Server()
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
    monkeypatch.setattr(ordered_sending, "SEND_S", 0.0)
    monkeypatch.setattr(ordered_sending, "BYTES_PER_S", 1e9)
    server = Server()
    server.send(*range(100))
    await server.messages.sent()
    assert server.got == [0] and "dropped: 99" in caplog.text
    server.takes.set()
    server.send(100)
    await server.messages.sent()
    assert server.taken == [100], "it goes on"


async def test_only_so_many_bytes_wait(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(ordered_sending, "MOST_WAITING_BYTES", 10_000)
    server = Server()
    server.send(0, 1, size=5_000)
    server.send(2, 3)
    assert caplog.text.count("are dropped while too many wait") == 1, "one line, however many a client sends"
    server.takes.set()
    await server.messages.sent()
    server.send(4, size=1_000_000)
    await server.messages.sent()
    assert server.taken == [0, 1, 4], "what they took is free again"
