"""Reading the HTTP responses of a server."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from itertools import pairwise

import httpx2
import pytest

from tests.requirements import requirement
from transports.jsonrpc import Message, encode_request, parse
from transports.sse import TooLarge
from transports.testing import RecordedEvents
from transports.upstream.http_replies import LEAST_S, MOST_S, ReplyReader, StreamPlace, pause_s, skim
from transports.upstream.invalid_output_lines import LineBudget

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


@pytest.mark.parametrize(
    ("status", "body", "is_answer"),
    [
        *((200, body, True) for body in (ANSWER, b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}')),
        *((200, body, False) for body in (b"no json", b'{"jsonrpc":"2.0"}')),
        *((202, b"", False), (500, b"no", False)),
    ],
)
async def test_a_json_body_is_the_answer_and_what_is_none_fails_the_request(
    status: int, body: bytes, is_answer: bool
) -> None:
    read, delivered, events = reader()
    assert await read.read(httpx2.Response(status, content=body), REQUEST, StreamPlace())
    assert ([message.id for message in delivered], events.failed) == (([7], []) if is_answer else ([], [7]))


async def test_of_a_stream_without_the_answer_the_place_is_known() -> None:
    read, delivered, events = reader()
    body = b'id: 4\nretry: 250\ndata:\n\nid: 5\ndata: {"jsonrpc":"2.0","method":"notifications/x"}\n\n'
    place = StreamPlace()
    assert not await read.read(httpx2.Response(200, headers=STREAM, content=body), REQUEST, place)
    assert (place.last_id, place.retry_s, place.events) == ("5", 0.25, 2)
    assert len(delivered) == 1 and not events.failed


class ManyParts(httpx2.AsyncByteStream):
    """A body in many parts, all of which have come. `read` counts the bytes that were read."""

    def __init__(self, part: bytes, parts: int) -> None:
        self.part, self.parts, self.read = part, parts, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self.parts):
            self.read += len(self.part)
            yield self.part


EVENT = b'data: {"jsonrpc":"2.0","method":"notifications/x"}\n\n'


@pytest.mark.parametrize(
    ("headers", "part", "parts", "most"),
    [
        (STREAM, EVENT, 1_000, 128 * len(EVENT)),
        (STREAM, b":", 1_000, 128),
        ({}, b" ", 1_000, 128),
    ],
)
async def test_a_body_of_many_small_parts_is_read_a_few_in_each_turn(
    headers: dict[str, str], part: bytes, parts: int, most: int
) -> None:
    """Thousands may have come at once, and would hold up all other sessions."""
    body, (read, _, _) = ManyParts(part, parts), reader()
    response = httpx2.Response(200, headers=headers, stream=body)
    reading = asyncio.ensure_future(read.read(response, REQUEST, StreamPlace()))
    counts = []
    while not reading.done():
        counts.append(body.read)
        await asyncio.sleep(0)
    assert body.read == len(part) * parts
    assert max(after - before for before, after in pairwise([*counts, body.read])) <= most


async def test_a_body_that_nobody_needs_is_skimmed_in_turns() -> None:
    body = ManyParts(b" ", 1_000)
    skimming = asyncio.ensure_future(skim(httpx2.Response(202, stream=body)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert body.read < 500
    await skimming


@pytest.mark.parametrize("lines", [EVENT, b"id: 1\n\n", b"\r"])
async def test_a_chunk_of_many_short_lines_is_decoded_over_several_turns(lines: bytes) -> None:
    """A chunk may have tens of thousands, which would hold up all other sessions."""
    read, _, _ = reader()
    body = lines * (60_000 // len(lines))
    reading = asyncio.ensure_future(
        read.read(httpx2.Response(200, headers=STREAM, content=body), REQUEST, StreamPlace())
    )
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 10


async def test_a_body_beyond_the_bound_is_not_read() -> None:
    read, _, _ = reader(max_bytes=10)
    with pytest.raises(TooLarge):
        await read.read(httpx2.Response(200, content=ANSWER), REQUEST, StreamPlace())


class Sent(httpx2.AsyncByteStream):
    """A body that is decoded only by whoever reads it."""

    def __init__(self, content: bytes) -> None:
        self.content, self.parts = content, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.parts += 1
        yield self.content


@requirement("wall.structure")
async def test_a_compressed_body_is_not_decoded() -> None:
    """A few kilobytes of gzip in gzip can be hours of work in one turn of the gateway's loop."""
    read, delivered, events = reader()
    coded = {"content-encoding": "gzip, gzip"}
    with pytest.raises(httpx2.DecodingError, match="Content-Encoding that was not asked for"):
        await read.read(httpx2.Response(200, headers=coded, stream=Sent(gzip.compress(ANSWER))), REQUEST, StreamPlace())
    refusal = Sent(gzip.compress(ANSWER))
    assert await read.read(httpx2.Response(503, headers=coded, stream=refusal), REQUEST, StreamPlace())
    assert not delivered and events.failed == [7] and not refusal.parts, "the status says enough"
    await skim(httpx2.Response(202, headers=coded, stream=refusal))
    assert not refusal.parts


def place(retry_ms: int | None = None) -> StreamPlace:
    found = StreamPlace()
    found.retry_s = None if retry_ms is None else retry_ms / 1_000
    return found


@requirement("up.retry")
@pytest.mark.parametrize(("retry_ms", "pause"), [(1_500, 1.5), (0, LEAST_S), (10**9, MOST_S)])
def test_the_servers_time_is_kept_within_bounds(retry_ms: int, pause: float) -> None:
    assert pause_s(place(retry_ms), 0) == pause_s(place(retry_ms), 0, at_once=True) == pause


@requirement("up.retry")
def test_failures_double_the_time_and_never_shorten_that_of_the_server() -> None:
    assert [pause_s(place(), failures) for failures in (0, 1, 2, 3, 99)] == [1.0, 1.0, 2.0, 4.0, 60.0]
    assert pause_s(place(), 0, at_once=True) == LEAST_S, "somebody waits"
    assert pause_s(place(5_000), 1) == 5.0 and pause_s(place(1_000), 3) == 4.0


@requirement("up.retry")
@pytest.mark.parametrize("event_id", ["a\x01", "\x7f", "é\u2028x", " 7 ", "\ud800", "a" * 1025])
def test_an_id_that_no_header_can_hold_is_not_sent_and_no_older_one_in_its_place(event_id: str) -> None:
    read = StreamPlace()
    read.read("7")
    read.read("")
    assert read.last_id == "7", "an event without one changes nothing"
    read.read(event_id)
    assert (read.last_id, read.events) == ("", 3)
    read.read("é 8")
    assert read.last_id == "é 8"
