"""Timelines in a table, a row for each session."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from session_store.ports.timelines import KEPT_S, MAX_SESSIONS, Timeline, TimelineHead, TimelinePart
from session_store.sqlite.database import Database
from session_store.timelines import joined, merged, timeline_of

__all__ = ["SqliteTimelines"]

_heads: Final = msgspec.json.Decoder(TimelineHead)
_READ: Final = "SELECT head, entries FROM timelines WHERE session = ?"
_WRITE: Final = "INSERT OR REPLACE INTO timelines (session, written_at, head, entries) VALUES (?, ?, ?, ?)"
_DROP: Final = (
    "DELETE FROM timelines WHERE written_at < ? OR session IN "
    "(SELECT session FROM timelines ORDER BY written_at DESC LIMIT -1 OFFSET ?)"
)


class SqliteTimelines:
    """What happened in sessions, those that have ended included."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    async def add(self, parts: Sequence[TimelinePart]) -> None:
        now = self._clock()

        def work(db: sqlite3.Connection) -> None:
            for part in parts:
                row = db.execute(_READ, (part.head.session,)).fetchone()
                head, entries = (None, b"") if row is None else (_heads.decode(row[0]), row[1])
                written = msgspec.json.encode(merged(head, part, now))
                db.execute(_WRITE, (part.head.session, now, written, joined(entries, part.entries)))
            db.execute(_DROP, (now - KEPT_S, MAX_SESSIONS))

        if parts:
            await self._database.run(work)

    async def read(self, session: str) -> Timeline | None:
        oldest = self._clock() - KEPT_S
        row = await self._database.run(
            lambda db: db.execute(f"{_READ} AND written_at > ?", (session, oldest)).fetchone()
        )
        return None if row is None else timeline_of(_heads.decode(row[0]), row[1].split(b"\n"))

    async def names(self, begins: str) -> list[str]:
        query = "SELECT session FROM timelines WHERE substr(session, 1, ?) = ? AND written_at > ? ORDER BY session"
        given = (len(begins), begins, self._clock() - KEPT_S)
        return [row[0] for row in await self._database.run(lambda db: db.execute(query, given).fetchall())]

    async def newest(self, limit: int, *, skip: int = 0) -> list[TimelineHead]:
        query = "SELECT head FROM timelines WHERE written_at > ? ORDER BY written_at DESC, rowid DESC LIMIT ? OFFSET ?"
        given = (self._clock() - KEPT_S, limit, skip)
        return [
            _heads.decode(row[0]) for row in await self._database.run(lambda db: db.execute(query, given).fetchall())
        ]
