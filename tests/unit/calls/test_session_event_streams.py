"""The event streams of a session: their names, the standalone one, and what a process that died has left."""

import asyncio
import json
from typing import cast

import pytest

from gateway.calls import session_event_streams
from gateway.calls.session_event_streams import (
    MAX_MESSAGES,
    STANDALONE,
    UNKNOWN,
    LostStreams,
    Outbox,
    answer_lost,
    call_of_event,
    call_of_stream,
    event_name,
    id_in_log,
    stream_of_call,
)
from session_store import EventLog, MemoryEventLog, StoreUnavailable
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.unit.calls.parts import Events, until
from transports.jsonrpc import encode
from transports.reply_queue import MAX_QUEUED_BYTES

pytestmark = requirement("spec.stream-log")

SESSION = a_session(FakeClock(), epoch=3)


@pytest.mark.parametrize(
    ("stream", "call"),
    [
        *((stream_of_call(SESSION, 7, "server", call), encode(call)) for call in (1, "1", "a/b/c", "")),
        (STANDALONE, None),
    ],
)
def test_the_id_of_a_call_is_read_from_the_name_of_its_stream(stream: str, call: bytes | None) -> None:
    assert call_of_stream(stream) == call


@pytest.mark.parametrize("call", [1, -7, "a", "call/5 \u00fc", ""])
async def test_the_name_of_an_event_has_the_id_of_its_call(call: int | str) -> None:
    log, session = MemoryEventLog(), a_session(FakeClock())
    stream = await answer_lost(log, session, call)
    name = event_name("4be562ac-12", stream)
    assert name.isascii() and id_in_log(name) == "4be562ac-12" and call_of_event(name) == call
    again = await answer_lost(log, session, call)
    for name_of_stream in (stream, again):
        answers = [json.loads(event.frame) async for event in log.follow(session.id, name_of_stream, None)]
        assert [(answer["id"], answer["error"]["code"]) for answer in answers] == [(call, -32014)]


@pytest.mark.parametrize("name", ["", "a-1", "a-1.", "a-1.!", "a-1.\u00fc", "a-1.bnVsbA", "a-1.W10", "a-1.x"])
def test_what_a_client_has_made_up_names_no_call(name: str) -> None:
    assert call_of_event(name) is None


def test_streams_differ_by_epoch_and_number_and_a_long_id_of_a_call_is_left_out() -> None:
    later = a_session(FakeClock(), epoch=4)
    assert len({stream_of_call(session, number, "server", 1) for session in (SESSION, later) for number in (1, 2)}) == 4
    assert event_name("a-1", f'1/2/server/"{"x" * 300}"') == "a-1" and event_name("a-1", "standalone") == "a-1"


def test_a_lost_stream_goes_on_once_unless_it_waits_again_and_is_found_by_the_id_of_its_call() -> None:
    lost = LostStreams()
    for stream in ("1/2/files/7", '1/3/files/"7"', "2/2/files/7", "9/9/files/9", "9/10/files/9"):
        lost.mark_waiting(stream)
    assert (
        lost.mark_continued("2/2/files/7")
        and not lost.mark_continued("2/2/files/7")
        and not lost.mark_continued("1/3/files/8")
    )
    lost.mark_waiting("2/2/files/7")
    assert lost.mark_continued("2/2/files/7")
    assert (lost.newest_of(7), lost.newest_of("7"), lost.newest_of(8)) == ("2/2/files/7", '1/3/files/"7"', None)
    assert lost.newest_of(9) == "9/10/files/9", "numbers, not texts, are compared"


async def test_a_call_that_another_request_makes_again_is_not_made_for_its_streams() -> None:
    log, lost = MemoryEventLog(), LostStreams()
    for stream in ("1/2/files/7", "1/3/files/8", "1/4/files/7"):
        lost.mark_waiting(stream)
    assert lost.mark_continued("1/4/files/7")
    await lost.end(log, "s", 7)
    assert not lost.mark_continued("1/2/files/7") and lost.mark_continued("1/3/files/8")
    (ended,) = [event.frame async for event in log.follow("s", "1/2/files/7", None)]
    assert json.loads(ended)["error"] == {"code": -32014, "message": UNKNOWN, "data": {"reason": "outcome_unknown"}}
    assert await log.unfinished("s") == {}


@pytest.mark.parametrize("fails", [False, True])
async def test_who_asks_for_a_stream_waits_until_all_lost_ones_are_found_or_cannot_be(*, fails: bool) -> None:
    log, lost = Events(), LostStreams()
    await log.keep("s", "1/2/files/7")
    for stream in ("1/3/files/8", "standalone"):
        await log.append("s", stream, b"")
    log.fails = fails
    waiting = asyncio.create_task(lost.wait_until_looked())
    if fails:
        for failing in (lost.look(log, "s"), waiting):
            with pytest.raises(StoreUnavailable):
                await failing
        return
    assert await lost.look(log, "s")
    await waiting
    assert lost.mark_continued("1/2/files/7") and not lost.mark_continued("1/3/files/8")
    assert await log.unfinished("s") == {"1/2/files/7": True, "standalone": False}


class Appending:
    """A log whose appends wait until they may go on."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.begun = asyncio.Event()
        self.may_append = asyncio.Event()
        self.failures = 0
        self.box = Outbox("session", cast("EventLog", self))

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        assert (session_id, stream) == ("session", STANDALONE)
        self.begun.set()
        await self.may_append.wait()
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("it is gone")
        self.frames.append(frame)
        return str(len(self.frames))


async def test_messages_keep_their_order_also_when_the_store_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_event_streams, "_RETRY_S", 0.0)
    events = Appending()
    box, events.failures = events.box, 2
    assert all(box.put(b"%d" % number) for number in range(5))
    events.may_append.set()
    await until(lambda: len(events.frames) == 5)
    assert box.put(b"5")
    await until(lambda: len(events.frames) == 6)
    assert events.frames == [b"%d" % number for number in range(6)]
    await box.close()


async def test_no_more_waits_than_may() -> None:
    box, large = Appending().box, Appending().box
    assert all(box.put(b"") for _ in range(MAX_MESSAGES)) and not box.put(b"")
    assert large.put(bytes(MAX_QUEUED_BYTES + 1)) and not large.put(b"x")
    await box.close()
    await large.close()


async def test_a_close_lets_the_append_under_way_end_and_begins_no_other() -> None:
    events = Appending()
    box = events.box
    box.put(b"a")
    box.put(b"b")
    await events.begun.wait()
    box.stop()
    assert not box.put(b"c")
    events.may_append.set()
    await box.close()
    await box.close()
    assert events.frames == [b"a"]
