"""Reading the HTTP responses of a server."""

import httpx2
import pytest

from transports.jsonrpc import Message, encode_request, parse
from transports.sse import TooLarge
from transports.testing import RecordedEvents
from transports.upstream.http_replies import ReplyReader
from transports.upstream.line_budget import LineBudget
from transports.upstream.reconnection import StreamPlace

pytestmark = pytest.mark.anyio

REQUEST = parse(encode_request(7, "ping", b"{}"))
ANSWER = b'{"jsonrpc":"2.0","id":7,"result":{}}'
STREAM = {"content-type": "text/event-stream"}


def reader(max_bytes: int = 1_000) -> tuple[ReplyReader, list[Message], RecordedEvents]:
    delivered: list[Message] = []
    events = RecordedEvents()

    def deliver(message: Message, stream: int | str) -> None:
        assert stream == 7, "of the request that is answered"
        delivered.append(message)

    read = ReplyReader("remote", max_bytes, deliver=deliver, events=events, budget=LineBudget())
    return read, delivered, events


@pytest.mark.parametrize("body", [ANSWER, b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}'])
async def test_a_json_body_is_the_answer(body: bytes) -> None:
    read, delivered, events = reader()
    assert await read.read(httpx2.Response(200, content=body), REQUEST, StreamPlace())
    assert [message.id for message in delivered] == [7] and not events.failed


async def test_a_stream_is_read_up_to_the_answer() -> None:
    read, delivered, _ = reader()
    body = b'id: 1\ndata: {"jsonrpc":"2.0","method":"notifications/x"}\n\nid: 2\ndata: ' + ANSWER + b"\n\n"
    assert await read.read(httpx2.Response(200, headers=STREAM, content=body), REQUEST, StreamPlace())
    assert [message.is_response for message in delivered] == [False, True]


async def test_of_a_stream_without_the_answer_the_place_is_known() -> None:
    read, delivered, events = reader()
    body = b'id: 4\nretry: 250\ndata:\n\nid: 5\ndata: {"jsonrpc":"2.0","method":"notifications/x"}\n\n'
    place = StreamPlace()
    assert not await read.read(httpx2.Response(200, headers=STREAM, content=body), REQUEST, place)
    assert (place.last_id, place.retry_s, place.events) == ("5", 0.25, 2)
    assert len(delivered) == 1 and not events.failed


@pytest.mark.parametrize(("status", "body"), [(200, b"no json"), (202, b""), (500, b"no"), (200, b'{"jsonrpc":"2.0"}')])
async def test_what_is_no_answer_fails_the_request(status: int, body: bytes) -> None:
    read, delivered, events = reader()
    assert await read.read(httpx2.Response(status, content=body), REQUEST, StreamPlace())
    assert events.failed == [7] and not delivered


async def test_a_body_beyond_the_bound_is_not_read() -> None:
    read, _, _ = reader(max_bytes=10)
    with pytest.raises(TooLarge):
        await read.read(httpx2.Response(200, content=ANSWER), REQUEST, StreamPlace())
