"""The response to a batch: one array while nothing but answers comes, else an event stream."""

import asyncio
import json
from typing import Any

import pytest

from tests.requirements import requirement
from transports.inbound import batch_response
from transports.inbound.batch_response import BatchResponse

pytestmark = [pytest.mark.anyio, requirement("spec.batch")]


class Client:
    """What the client gets. It reads only while `reads` is set."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self._more = asyncio.Event()

    async def send(self, event: Any) -> None:
        await self.reads.wait()
        self.events.append(event)
        self._more.set()

    async def came(self, text: str) -> None:
        while text not in self.text:
            self._more.clear()
            await self._more.wait()

    @property
    def head(self) -> dict[bytes, bytes]:
        return dict(self.events[0]["headers"])

    @property
    def text(self) -> str:
        return b"".join(event.get("body", b"") for event in self.events).decode()

    def data(self) -> list[Any]:
        return [json.loads(line[6:]) for line in self.text.splitlines() if line.startswith("data: ")]


async def test_answers_alone_are_one_array_in_the_order_of_their_messages() -> None:
    client = Client()
    response = BatchResponse(client.send)
    assert await response.answer(1, b"2") and await response.answer(0, b"1")
    assert not client.events
    await response.end()
    assert client.text == "[1,2]" and client.head[b"content-type"] == b"application/json"
    nothing = Client()
    await BatchResponse(nothing.send).end()
    assert nothing.events[0]["status"] == 202


async def test_another_message_begins_a_stream_with_the_answers_so_far() -> None:
    client = Client()
    response = BatchResponse(client.send)
    await response.answer(0, b'"first"')
    await response.emit(b'"progress"')
    assert client.data() == ["first", "progress"], "they are sent at once"
    await response.answer(1, b'"second"')
    await response.end()
    assert client.data() == ["first", "progress", "second"] and "id:" not in client.text
    assert client.head[b"content-type"] == b"text/event-stream" and client.events[-1]["more_body"] is False


async def test_a_client_that_waits_for_long_gets_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_response, "KEEPALIVE_S", 0.01)
    client = Client()
    response = BatchResponse(client.send)
    await response.answer(0, b"1")
    async with asyncio.timeout(5):
        await response.during(client.came(": keepalive"))
    assert client.data() == [1]


@requirement("wall.before-auth")
async def test_answers_that_nobody_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchResponse, "MOST", 20_000)
    large, small, client = b'"' + b"x" * 8_000 + b'"', b'"small"', Client()
    response = BatchResponse(client.send)
    assert await response.answer(0, large) and await response.answer(1, large) and not client.events
    assert await response.answer(2, large), "the others are sent, which makes room"
    assert len(client.data()) == 3

    monkeypatch.setattr(batch_response, "ROOM_WITHIN_S", 0.02)
    client.reads.clear()
    waiting = [asyncio.create_task(response.answer(number, large)) for number in (3, 4)]
    await asyncio.sleep(0)
    assert not await response.answer(5, large), "there is no room for a third"
    last = asyncio.create_task(response.answer(5, small))
    client.reads.set()
    assert await asyncio.gather(*waiting, last) == [True] * 3, "a small answer is always taken"
    await response.end()
    assert len(client.data()) == 6
