"""Where an event stream of a server was cut, and when it is opened again. Pure: the link opens it.

MCP 2025-11-25, Transports §Sending Messages to the Server (the client MUST respect `retry`), SEP-1699.
"""

from typing import Final

__all__ = ["LEAST_S", "MOST_S", "StreamPlace", "pause_s"]

LEAST_S: Final = 0.1
"""The shortest time until a stream is opened again, so that `retry: 0` does not make the gateway spin."""

MOST_S: Final = 600.0
"""The longest time, so that a server cannot make the gateway wait for hours."""

_MOST_ID_CHARS: Final = 1024
"""A longer id of an event would make a header that few servers take."""

_FIRST_S: Final = 1.0
_MOST_BACKOFF_S: Final = 60.0


class StreamPlace:
    """How far the stream of one request, or of the server's own messages, has been read, over all its connections.

    `last_id` is the id of the last event, empty if no event had one. `retry_s` is the last reconnection time that the
    server has named, None if it has named none. `events` counts events, those without data included.
    """

    __slots__ = ("events", "last_id", "retry_s")

    def __init__(self) -> None:
        self.last_id = ""
        self.retry_s: float | None = None
        self.events = 0

    def read(self, event_id: str) -> None:
        """An event was read; `event_id` is empty if it has none. After an id that no header can hold, the stream is
        opened without one: after an older id, events would come twice."""
        self.events += 1
        if event_id:
            self.last_id = event_id if _is_sendable(event_id) else ""

    def retry(self, retry_ms: int | None) -> None:
        """The server has named a reconnection time; None: it has not."""
        if retry_ms is not None:
            self.retry_s = retry_ms / 1000


def pause_s(place: StreamPlace, failures: int, *, at_once: bool = False) -> float:
    """The time until the stream is opened again: what the server has named, within `LEAST_S` and `MOST_S`, or a second.

    After `failures` attempts in a row that have brought nothing the time doubles each time, up to a minute. `at_once`:
    somebody waits for the stream, and it has just been cut.
    """
    named_s = None if place.retry_s is None else min(max(place.retry_s, LEAST_S), MOST_S)
    backoff_s = min(_MOST_BACKOFF_S, _FIRST_S * 2.0 ** min(failures - 1, 16)) if failures else 0.0
    if named_s is None:
        named_s = LEAST_S if at_once else _FIRST_S
    return max(named_s, backoff_s)


def _is_sendable(event_id: str) -> bool:
    """Whether an id can stand in a header, as UTF-8 (HTML, Server-sent events; RFC 9110 §5.5)."""
    is_short = len(event_id) <= _MOST_ID_CHARS
    return is_short and event_id.isprintable() and event_id == event_id.strip()
