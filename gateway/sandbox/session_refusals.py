"""What sandboxes have refused to the servers of each session, for its page of the console: bounded everywhere."""

from collections.abc import Callable
from typing import Final

import msgspec
from cachetools import TTLCache

from gateway.observability.visible import visible_line

__all__ = ["MOST_ROWS_OF_ALL", "RefusedRow", "SessionRefusals"]

_MOST_ROWS: Final = 40
"""Of one server in one session. All others are one more."""
MOST_ROWS_OF_ALL: Final = 10_000
"""Of all sessions. For a new row, the session that has been refused nothing for the longest time loses its rows."""
_LAST_WORDS_S: Final = 60.0
_MOST_ENDED: Final = 10_000


class RefusedRow(msgspec.Struct, frozen=True):
    """What a server was refused `count` times, the last time `at` (Unix time), and the setting that `allows` it: empty
    if none does. `what` is empty for what is not told apart."""

    at: float
    server: str
    kind: str
    what: str
    why: str
    allows: str
    count: int


class SessionRefusals:
    """Kept by how the id of a session begins, as logs show it. `clock` gives Unix time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: dict[str, dict[tuple[str, str, str], RefusedRow]] = {}  # the session refused last is the last one
        self._rows = 0
        # Processes of a session that has ended are refused things until they have ended, too.
        self._ended: TTLCache[str, bool] = TTLCache(_MOST_ENDED, _LAST_WORDS_S, clock)

    def add(self, session: str, row: RefusedRow) -> None:
        """Keep a refusal, and count it if it is there already. Its `at` is now."""
        if session in self._ended:
            return
        rows = self._of.pop(session, {})
        key = (row.server, row.kind, row.what)
        if key not in rows and sum(server == row.server for server, _, _ in rows) >= _MOST_ROWS:
            key = (row.server, "other", "")
            row = msgspec.structs.replace(row, kind="other", what="", why="more than is told apart", allows="")
        before = rows.pop(key, None)
        self._rows += before is None
        while self._rows > MOST_ROWS_OF_ALL and self._of:
            self._rows -= len(self._of.pop(next(iter(self._of))))
        self._of[session] = rows
        rows[key] = msgspec.structs.replace(
            row,
            at=self._clock(),
            what=visible_line(row.what),
            allows=visible_line(row.allows),
            count=row.count + (0 if before is None else before.count),
        )

    def of(self, session: str) -> list[RefusedRow]:
        """What was refused to a session, the newest first."""
        return sorted(self._of.get(session, {}).values(), key=lambda row: -row.at)

    def forget(self, session: str) -> None:
        """The session has ended, here at least. If it comes back within a minute, refusals are not kept."""
        self._rows -= len(self._of.pop(session, {}))
        self._ended[session] = True
