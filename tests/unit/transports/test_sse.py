"""Server-sent events, there and back (WHATWG HTML, 9.2)."""

from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirements import requirement
from transports.sse import COMMENT, Event, EventDecoder, TooLarge, encode_event

ONE_LINE = st.binary(min_size=1, max_size=200).filter(lambda data: b"\n" not in data and b"\r" not in data)


def decoded(*chunks: bytes, most: int = 1 << 20) -> list[Event]:
    decoder = EventDecoder(most)
    return [event for chunk in chunks for event in decoder.feed(chunk)]


@given(frames=st.lists(ONE_LINE, max_size=5), cuts=st.lists(st.integers(0, 2_000)))
def test_events_come_out_as_they_went_in_whatever_pieces_they_come_in(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(encode_event(frame, f"id-{n}") + COMMENT for n, frame in enumerate(frames))
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(places)]
    found = [event for event in decoded(*pieces) if event.data]
    assert [(event.data, event.id) for event in found] == [(frame, f"id-{n}") for n, frame in enumerate(frames)]


def test_lines_end_in_any_of_three_ways_and_the_two_bytes_of_one_may_come_in_two_pieces() -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        stream = end.join([b"id: 7", b"data: a", b"data: b", b"", b"data: c", b"", b"x"])
        assert [event.data for event in decoded(stream)] == [b"a\nb", b"c"]
    assert [event.data for event in decoded(b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n")] == [b"a", b"b"]


def test_a_priming_event_has_an_id_and_no_data() -> None:
    assert encode_event(b"", "p", retry_ms=500) == b"id: p\nretry: 500\ndata: \n\n"
    assert decoded(encode_event(b"", "p")) == [Event(b"", "p")]


def test_comments_and_fields_that_nobody_knows_are_passed_over() -> None:
    assert decoded(COMMENT, b": x\nmade-up: y\n\n") == []
    assert decoded(b"id: a\0b\ndata: x\n\n") == [Event(b"x")], "an id with NUL is ignored"


def test_an_event_that_grows_beyond_its_bound_is_an_error() -> None:
    for chunks in ([b"data: " + b"x" * 200], [b"data: x\n"] * 51, [b"data\n"] * 101, [b"x"] * 101):
        with pytest.raises(TooLarge, match="100 bytes"):
            decoded(*chunks, most=100)
    assert len(decoded(*[encode_event(b"x" * 50)] * 100, most=100)) == 100, "one after the other they fit"


@requirement("wall.structure")
def test_the_cost_of_an_event_follows_its_bytes_and_not_the_square_of_its_lines() -> None:
    began = process_time()
    [event] = decoded(*[b"data\n"] * 50_000, b"\n", most=100_000)
    assert event.data == b"\n" * 49_999
    assert process_time() - began < 5, "it took 26 s when each piece counted all lines again"
