"""Finds the session that an operator means by the beginning of its id."""

from collections.abc import Callable
from typing import Final

from gateway.admin.operators import SHORTEST_PREFIX, Ambiguous, NoSuch, TooShort
from gateway.admin.reports import row_of
from session_store import Session, SessionStore

__all__ = ["SessionFinder"]

_MOST_CANDIDATES: Final = 10


class SessionFinder:
    """Reads the records of a store."""

    def __init__(self, sessions: SessionStore, clock: Callable[[], float]) -> None:
        self._sessions = sessions
        self._clock = clock

    async def find(self, prefix: str) -> Session:
        """The one session that is meant. Never a guess. Raises `NoSuch`, `Ambiguous`, `TooShort`."""
        if prefix and len(prefix) < SHORTEST_PREFIX:
            raise TooShort("session")
        exact = await self._sessions.peek(prefix) if prefix else None
        if exact is not None:
            return exact
        page = await self._sessions.page(after=prefix, limit=_MOST_CANDIDATES + 1)
        found = [session for session in page if session.id.startswith(prefix)]
        if len(found) == 1:
            return found[0]
        if not found:
            why = f"no session begins with {prefix[:64]!r}: it has ended, or never was"
            raise NoSuch(why if prefix else "no session is live")
        what = f"begins with {prefix!r}" if prefix else "is live"
        now = self._clock()
        raise Ambiguous(
            f"more than one session {what}: give more characters of the id",
            tuple(row_of(session, None, now) for session in found),
        )
