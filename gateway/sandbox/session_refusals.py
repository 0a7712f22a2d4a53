"""What sandboxes have refused to the servers of each session, for its page of the console: bounded everywhere."""

from collections.abc import Callable

import msgspec

from gateway.observability.visible import visible_line

__all__ = ["RefusedRow", "SessionRefusals"]

_MOST_SESSIONS = 2_000
_MOST_ROWS = 40
"""Of one server in one session. All others are one more."""


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
        self._of: dict[str, dict[str, dict[tuple[str, str], RefusedRow]]] = {}  # the oldest session first

    def add(self, session: str, row: RefusedRow) -> None:
        """Keep a refusal, and count it if it is there already. Its `at` is now."""
        if session not in self._of and len(self._of) >= _MOST_SESSIONS:
            del self._of[next(iter(self._of))]
        rows = self._of.setdefault(session, {}).setdefault(row.server, {})
        key = (row.kind, row.what)
        if key not in rows and len(rows) >= _MOST_ROWS:
            key = ("other", "")
            row = msgspec.structs.replace(row, kind="other", what="", why="more than is told apart", allows="")
        before = rows.pop(key, None)  # so that it becomes the newest
        rows[key] = msgspec.structs.replace(
            row,
            at=self._clock(),
            what=visible_line(row.what),
            allows=visible_line(row.allows),
            count=row.count + (0 if before is None else before.count),
        )

    def of(self, session: str) -> list[RefusedRow]:
        """What was refused to a session, the newest first."""
        rows = [row for of_server in self._of.get(session, {}).values() for row in of_server.values()]
        return sorted(rows, key=lambda row: -row.at)

    def forget(self, session: str) -> None:
        """The session has ended."""
        self._of.pop(session, None)
