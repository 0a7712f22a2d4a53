"""When a cut stream is opened again."""

import pytest

from tests.requirements import requirement
from transports.upstream.reconnection import LEAST_S, MOST_S, StreamPlace, pause_s


def place(retry_ms: int | None = None) -> StreamPlace:
    found = StreamPlace()
    found.retry(retry_ms)
    return found


@requirement("up.retry")
@pytest.mark.parametrize(("retry_ms", "pause"), [(1_500, 1.5), (0, LEAST_S), (10**9, MOST_S)])
def test_the_servers_time_is_kept_within_bounds(retry_ms: int, pause: float) -> None:
    assert pause_s(place(retry_ms), 0) == pause_s(place(retry_ms), 0, at_once=True) == pause


def test_without_one_a_second_passes_or_less_if_somebody_waits() -> None:
    assert pause_s(place(), 0) == 1.0 and pause_s(place(), 0, at_once=True) == LEAST_S


@requirement("up.retry")
def test_failures_double_the_time_and_never_shorten_that_of_the_server() -> None:
    assert [pause_s(place(), failures) for failures in (1, 2, 3, 99)] == [1.0, 2.0, 4.0, 60.0]
    assert pause_s(place(5_000), 1) == 5.0 and pause_s(place(1_000), 3) == 4.0


def test_the_last_id_stays_where_an_event_has_none() -> None:
    read = StreamPlace()
    read.read("7")
    read.read("")
    assert (read.last_id, read.events) == ("7", 2)


@requirement("up.retry")
@pytest.mark.parametrize("event_id", ["a\x01", "\x7f", "é\u2028x", " 7 ", "\ud800", "a" * 1025])
def test_an_id_that_no_header_can_hold_is_not_sent_and_no_older_one_in_its_place(event_id: str) -> None:
    read = StreamPlace()
    read.read("7")
    read.read(event_id)
    assert (read.last_id, read.events) == ("", 2)
    read.read("é 8")
    assert read.last_id == "é 8"
