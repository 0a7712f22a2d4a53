"""Calls whose process died: their answers, and their streams."""

import asyncio
import json

import pytest

from gateway.calls.lost_calls import LostStreams, answer_lost
from gateway.calls.streams import call_of_event, event_name, id_in_log
from session_store import MemoryEventLog, StoreUnavailable
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.unit.calls.parts import Events

pytestmark = [pytest.mark.anyio, requirement("spec.stream-log")]


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


def test_a_long_id_of_a_call_is_left_out() -> None:
    assert event_name("a-1", f'1/2/server/"{"x" * 300}"') == "a-1" and event_name("a-1", "standalone") == "a-1"


def test_a_lost_stream_goes_on_once_unless_it_waits_again_and_is_found_by_the_id_of_its_call() -> None:
    lost = LostStreams()
    for stream in ("1/2/files/7", '1/3/files/"7"', "2/2/files/7", "9/9/files/9", "9/10/files/9"):
        lost.wait(stream)
    assert lost.go_on("2/2/files/7") and not lost.go_on("2/2/files/7") and not lost.go_on("1/3/files/8")
    lost.wait("2/2/files/7")
    assert lost.go_on("2/2/files/7")
    assert (lost.newest_of(7), lost.newest_of("7"), lost.newest_of(8)) == ("2/2/files/7", '1/3/files/"7"', None)
    assert lost.newest_of(9) == "9/10/files/9", "numbers, not texts, are compared"


async def test_a_call_that_another_request_makes_again_is_not_made_for_its_streams() -> None:
    log, lost = MemoryEventLog(), LostStreams()
    for stream in ("1/2/files/7", "1/3/files/8", "1/4/files/7"):
        lost.wait(stream)
    assert lost.go_on("1/4/files/7")
    await lost.end(log, "s", 7)
    assert not lost.go_on("1/2/files/7") and lost.go_on("1/3/files/8")
    (ended,) = [event.frame async for event in log.follow("s", "1/2/files/7", None)]
    assert json.loads(ended)["error"]["code"] == -32014 and await log.unfinished("s") == {}


async def test_who_asks_for_a_stream_waits_until_all_lost_ones_are_found() -> None:
    log, lost = Events(), LostStreams()
    await log.keep("s", "1/2/files/7")
    await log.append("s", "1/3/files/8", b"")
    await log.append("s", "standalone", b"")
    waiting = asyncio.create_task(lost.looked())
    assert await lost.look(log, "s")
    await waiting
    assert lost.go_on("1/2/files/7") and not lost.go_on("1/3/files/8")
    assert await log.unfinished("s") == {"1/2/files/7": True, "standalone": False}


async def test_who_asks_for_a_stream_is_told_that_the_lost_ones_could_not_be_found() -> None:
    log, lost = Events(), LostStreams()
    log.fails = True
    waiting = asyncio.create_task(lost.looked())
    for failing in (lost.look(log, "s"), waiting):
        with pytest.raises(StoreUnavailable):
            await failing
