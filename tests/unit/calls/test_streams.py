"""Names of the event streams of a session."""

import pytest

from gateway.calls.streams import STANDALONE, call_of_stream, stream_of_call
from session_store.testing import FakeClock, a_session
from transports.jsonrpc import encode

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


def test_streams_differ_by_epoch_and_number() -> None:
    later = a_session(FakeClock(), epoch=4)
    names = {stream_of_call(session, number, "server", 1) for session in (SESSION, later) for number in (1, 2)}
    assert len(names) == 4
