"""Names of the event streams of a session."""

import json

import pytest

from gateway.calls.lost_answers import answer_lost
from gateway.calls.streams import STANDALONE, call_of_event, call_of_stream, event_name, id_in_log, stream_of_call
from session_store import MemoryEventLog
from session_store.testing import FakeClock, a_session
from transports.jsonrpc import RequestId

SESSION = a_session(FakeClock(), epoch=3)


@pytest.mark.parametrize("client_id", [1, "1", "a/b/c", ""])
def test_the_id_of_a_call_is_read_from_the_name_of_its_stream(client_id: RequestId) -> None:
    expected = b"1" if client_id == 1 else f'"{client_id}"'.encode()
    assert call_of_stream(stream_of_call(SESSION, 7, "server", client_id)) == expected


def test_streams_differ_by_epoch_and_number() -> None:
    later = a_session(FakeClock(), epoch=4)
    names = {stream_of_call(session, number, "server", 1) for session in (SESSION, later) for number in (1, 2)}
    assert len(names) == 4
    assert call_of_stream(STANDALONE) is None, "it belongs to no call"


@pytest.mark.parametrize("call", [1, -7, "a", "call/5 \u00fc", ""])
@pytest.mark.anyio
async def test_the_name_of_an_event_has_the_id_of_its_call(call: int | str) -> None:
    log, session = MemoryEventLog(), a_session(FakeClock())
    stream = await answer_lost(log, session, call)
    name = event_name("4be562ac-12", stream)
    assert name.isascii() and id_in_log(name) == "4be562ac-12" and call_of_event(name) == call
    again = await answer_lost(log, session, call)
    for name_of_stream in (stream, again):
        answers = [json.loads(event.frame) async for event in log.follow(session.id, name_of_stream, None)]
        assert [(answer["id"], answer["error"]["code"]) for answer in answers] == [(call, -32014)]


def test_what_a_client_has_made_up_names_no_call_and_a_long_id_is_left_out() -> None:
    for name in ("", "a-1", "a-1.", "a-1.!", "a-1.\u00fc", "a-1.bnVsbA", "a-1.W10", "a-1.x"):
        assert call_of_event(name) is None, name
    assert event_name("a-1", f'1/2/server/"{"x" * 300}"') == "a-1" and event_name("a-1", "standalone") == "a-1"
