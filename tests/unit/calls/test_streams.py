"""Names of the event streams of a session."""

import pytest

from gateway.calls.streams import STANDALONE, call_of_stream, stream_of_call
from session_store.testing import FakeClock, a_session
from transports.jsonrpc import RequestId

SESSION = a_session(FakeClock(), epoch=3)


@pytest.mark.parametrize("client_id", [1, "1", "a/b/c", ""])
def test_the_id_of_a_call_is_read_from_the_name_of_its_stream(client_id: RequestId) -> None:
    expected = b"1" if client_id == 1 else f'"{client_id}"'.encode()
    assert call_of_stream(stream_of_call(SESSION, 7, "server", client_id)) == expected


def test_the_standalone_stream_belongs_to_no_call() -> None:
    assert call_of_stream(STANDALONE) is None


def test_streams_differ_by_epoch_and_number() -> None:
    later = a_session(FakeClock(), epoch=4)
    names = {stream_of_call(session, number, "server", 1) for session in (SESSION, later) for number in (1, 2)}
    assert len(names) == 4
