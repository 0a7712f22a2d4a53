"""Encode and decode server-sent events (WHATWG HTML §9.2). Pure: no I/O."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

COMMENT = b": keepalive\n\n"
"""A comment that is sent on a quiet event stream, so that proxies do not close it."""

_MOST_RETRY_DIGITS: Final = 9
_LONGEST_RETRY_MS: Final = 10**_MOST_RETRY_DIGITS

_LINE_END: Final = re.compile(rb"\r\n|\n|\r(?!\n|$)")


def encode_event(data: bytes, event_id: str | None = None, retry_ms: int | None = None) -> bytes:
    """Return one encoded event. `data` has no line break: it is a JSON-RPC message, or empty for a priming event.
    `retry_ms` tells the client after how many milliseconds to connect again; None: it does not."""
    head = b"" if event_id is None else b"id: " + event_id.encode() + b"\n"
    if retry_ms is not None:
        head += b"retry: %d\n" % retry_ms
    if data:
        head += b"event: message\n"
    return head + b"data: " + data + b"\n\n"


class Event(NamedTuple):
    """A received event: its data (empty if the event only sets an id), and the last id that the stream has set."""

    data: bytes
    id: str = ""


class TooLarge(ValueError):
    """An event or a body has more bytes than the limit."""


class EventDecoder:
    """Decode events from bytes, which may arrive in chunks of any size. `retry_ms` is the last reconnection time that
    the stream has named; None if it has named none."""

    def __init__(self, max_event_bytes: int) -> None:
        self.retry_ms: int | None = None
        self._most = max_event_bytes
        self._rest: list[bytes] = []
        self._data = bytearray()  # the lines of the event that has not ended, each with a line break
        self._size = 0
        self._id = ""

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that this chunk completes.

        Raises:
            TooLarge: an event has more than `max_event_bytes`.
        """
        self._size += len(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            self._rest.append(chunk)
            if self._size > self._most:
                raise TooLarge(f"an event of more than {self._most} bytes")
            return
        lines = _LINE_END.split(b"".join([*self._rest, chunk]))
        self._rest = [lines.pop()]
        for line in lines:
            event = self._line(line)
            if event is not None:
                yield event
        # Lines are not counted one by one: many in many chunks would take the square of their number.
        self._size = len(self._data) + len(self._rest[0])
        if self._size > self._most:
            raise TooLarge(f"an event of more than {self._most} bytes")

    def _line(self, line: bytes) -> Event | None:
        if not line:
            data, self._data = bytes(memoryview(self._data)[:-1]), bytearray()
            return Event(data, self._id) if data or self._id else None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data += value
            self._data += b"\n"
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit():
            self.retry_ms = int(value) if len(value) <= _MOST_RETRY_DIGITS else _LONGEST_RETRY_MS
        return None
