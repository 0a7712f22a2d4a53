"""Follows the commands that a Redis server executes, and tells of each claim of a session."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final

from tests.proof.histories import Event

_RECORD: Final = re.compile(rb'^(?:\+)?([\d.]+) .*"HSET" "mcp:\{([^}]+)\}:session"')
_EPOCH: Final = re.compile(rb'"epoch" "(\d+)"')
_OWNER: Final = re.compile(rb'"owner" "\\"([^"\\]+)\\""')
_AGAIN_S: Final = 0.05


@contextlib.contextmanager
def watched_claims(port: int, history: list[Event]) -> Iterator[None]:
    """Add the claims of that server's sessions to the history, also after the server was started again."""
    watching, stopped = threading.Event(), threading.Event()
    since = time.time() - time.monotonic()

    def watch() -> None:
        while not stopped.wait(_AGAIN_S):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"MONITOR\r\n")
                for line in connection.makefile("rb"):
                    watching.set()
                    if (claim := claimed(line, since)) is not None:
                        history.append(claim)

    threading.Thread(target=watch, daemon=True).start()  # the end of the server ends it
    assert watching.wait(10), "Redis does not say what it executes"
    try:
        yield
    finally:
        stopped.set()


def claimed(line: bytes, since: float) -> Event | None:
    """Return the claim that a line of MONITOR shows; `since` is when the monotonic clock began. A write of the record
    that repeats its owner repeats its epoch, too."""
    record, epoch, owner = _RECORD.match(line), _EPOCH.search(line), _OWNER.search(line)
    if not (record and epoch and owner):
        return None
    at, session, by = float(record[1]) - since, record[2].decode(), owner[1].decode()
    return Event(at=at, what="claimed", session=session, by=by, value=int(epoch[1]))
