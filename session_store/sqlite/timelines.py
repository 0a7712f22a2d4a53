"""Store timelines, and the history of metrics, in SQLite tables, which outlive the process."""

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from session_store.ports.timelines import (
    KEPT_S,
    MAX_SESSIONS,
    STEPS,
    HistoryRecord,
    Timeline,
    TimelineHead,
    TimelinePart,
    joined,
    merged,
    timeline_of,
)
from session_store.sqlite.database import Tables, transaction


class SqliteHistory(Tables):
    """Store the history of metrics in SQLite. Each write drops the records that are older than `STEPS` says."""

    @transaction
    def write(self, db: sqlite3.Connection, step_s: int, record: HistoryRecord) -> None:
        row = (step_s, record.at, record.replica, record.body)
        db.execute("INSERT OR REPLACE INTO history (step, at, replica, body) VALUES (?, ?, ?, ?)", row)
        db.execute("DELETE FROM history WHERE step = ? AND at < ?", (step_s, record.at - STEPS[step_s]))

    @transaction
    def read(self, db: sqlite3.Connection, step_s: int, since: int, until: int) -> list[HistoryRecord]:
        query = "SELECT at, replica, body FROM history WHERE step = ? AND at >= ? AND at < ? ORDER BY at, replica"
        return [HistoryRecord(*row) for row in db.execute(query, (step_s, since, until))]


_heads: Final = msgspec.json.Decoder(TimelineHead)
_READ: Final = "SELECT head, entries FROM timelines WHERE session = ?"
_WRITE: Final = "INSERT OR REPLACE INTO timelines (session, written_at, head, entries) VALUES (?, ?, ?, ?)"
_DROP: Final = (
    "DELETE FROM timelines WHERE written_at < ? OR session IN "
    "(SELECT session FROM timelines ORDER BY written_at DESC LIMIT -1 OFFSET ?)"
)


class SqliteTimelines(Tables):
    """Store the timelines of sessions, also of sessions that have ended."""

    @transaction
    def add(self, db: sqlite3.Connection, parts: Sequence[TimelinePart]) -> None:
        now = self.clock()
        for part in parts:
            row = db.execute(_READ, (part.head.session,)).fetchone()
            head, entries = (None, b"") if row is None else (_heads.decode(row[0]), row[1])
            written = msgspec.json.encode(merged(head, part, now))
            db.execute(_WRITE, (part.head.session, now, written, joined(entries, part.entries)))
        if parts:
            db.execute(_DROP, (now - KEPT_S, MAX_SESSIONS))

    @transaction
    def read(self, db: sqlite3.Connection, session: str) -> Timeline | None:
        row = db.execute(f"{_READ} AND written_at > ?", (session, self.clock() - KEPT_S)).fetchone()
        return None if row is None else timeline_of(_heads.decode(row[0]), row[1].split(b"\n"))

    @transaction
    def names(self, db: sqlite3.Connection, begins: str) -> list[str]:
        query = "SELECT session FROM timelines WHERE substr(session, 1, ?) = ? AND written_at > ? ORDER BY session"
        return [row[0] for row in db.execute(query, (len(begins), begins, self.clock() - KEPT_S))]

    @transaction
    def newest(self, db: sqlite3.Connection, limit: int, *, skip: int = 0) -> list[TimelineHead]:
        query = "SELECT head FROM timelines WHERE written_at > ? ORDER BY written_at DESC, rowid DESC LIMIT ? OFFSET ?"
        return [_heads.decode(row[0]) for row in db.execute(query, (self.clock() - KEPT_S, limit, skip))]
