"""The messages of a batch, each with its own answer, and the response: an array of answers, or an event stream."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.requirements import requirement
from transports.era import Era
from transports.inbound import batch
from transports.inbound.batch import Batches, BatchResponse
from transports.inbound.post_parsing import LengthChecks
from transports.inbound.unauthenticated_limits import Limits
from transports.inbound_port import OwnedByPeer, Refused, Request

pytestmark = requirement("spec.batch")


@requirement("rep.no-retry")
@pytest.mark.parametrize("again", [False, True])
async def test_what_may_have_run_is_not_said_to_be_undone(again: bool) -> None:
    answers: list[Any] = []

    def call(request: Request) -> None:
        raise OwnedByPeer(None)

    def refused(headers: Mapping[str, str], refused: Refused, *, again: bool = False) -> Refused:
        return Refused(200, -32014, "unknown") if again else refused

    async def answer(number: int, answer: bytes) -> bool:
        answers.append(msgspec.json.decode(answer))
        return True

    limits, refusals = Limits(), Counter[Any]()
    handler: Any = SimpleNamespace(call=call, refused=refused)  # another process has the session of each request
    part = msgspec.Raw(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t"}}')
    request = Request(era=Era.LEGACY, endpoint="/mcp", headers={}, again=again)
    client: Any = SimpleNamespace(answer=answer)
    await Batches(handler, LengthChecks(limits, refusals), limits, refusals).handle(
        [part], request, client, NotImplemented
    )
    (error,) = (each["error"] for each in answers)
    assert ("Nothing was done" in error["message"]) is not again and (error["code"] == -32014) is again


async def test_a_batch_with_text_that_is_not_utf_8_is_refused_as_a_whole() -> None:
    limits, refusals = Limits(), Counter[Any]()

    async def negotiated(_: Request) -> str:
        return "2025-03-26"

    handler: Any = SimpleNamespace(negotiated=negotiated)
    batches = Batches(handler, LengthChecks(limits, refusals), limits, refusals)
    request = Request(era=Era.LEGACY, endpoint="/mcp", headers={})
    with pytest.raises(Refused, match="not a JSON-RPC batch") as refused:
        await batches.accepted(b'[{"jsonrpc": "2.0", "id": "\xff", "method": ""}]', request)
    assert refused.value.status == 400


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
    monkeypatch.setattr(batch, "KEEPALIVE_S", 0.01)
    client = Client()
    response = BatchResponse(client.send)
    await response.answer(0, b"1")
    async with asyncio.timeout(60):
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

    monkeypatch.setattr(batch, "ROOM_WITHIN_S", 0.02)
    client.reads.clear()
    waiting = [asyncio.create_task(response.answer(number, large)) for number in (3, 4)]
    await asyncio.sleep(0)
    assert not await response.answer(5, large), "there is no room for a third"
    last = asyncio.create_task(response.answer(5, small))
    client.reads.set()
    assert await asyncio.gather(*waiting, last) == [True] * 3, "a small answer is always taken"
    await response.end()
    assert len(client.data()) == 6
