"""Counting and copying the bytes of a head."""

from transports.inbound.http_connection import HeadBytes


def test_a_head_that_begins_a_chunk_is_counted_and_copied() -> None:
    head = HeadBytes()
    for chunk in (b"GET / HT", b"TP/1.0\r\n"):
        head.arrive(len(chunk), between_messages=chunk.startswith(b"GET"))
        if chunk.startswith(b"GET"):
            head.begin()
        head.keep(chunk)
    head.arrive(2, between_messages=False)
    assert head.copy == bytearray(b"GET / HTTP/1.0\r\n") and head.size == 16 and head.at_most == 18
    head.end()
    assert head.copy is None


def test_a_head_behind_another_message_is_not_copied() -> None:
    head = HeadBytes()
    head.arrive(100, between_messages=True)
    head.begin()
    head.end()
    head.begin()
    head.keep(b"x" * 100)
    assert head.copy is None and head.size == 1
    head.arrive(50, between_messages=False)
    head.keep(b"x" * 50)
    assert head.copy is None and head.size == 51
