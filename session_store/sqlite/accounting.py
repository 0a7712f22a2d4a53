"""Store quotas, sealed values, the audit trail, timelines and the history of metrics in SQLite tables, which outlive
the process."""

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from session_store.ports.audit import MAX_AUDIT_EVENTS, PARTS, AuditEvent, by_part, newest
from session_store.ports.timelines import (
    KEPT_S,
    MAX_SESSIONS,
    STEPS,
    HistoryRecord,
    Timeline,
    TimelineHead,
    TimelinePart,
    extended,
    head_of,
    timeline_of,
)
from session_store.sqlite.database import Tables, audit_table, transaction


class SqliteQuotas(Tables):
    """Limit how many names (of things in use) are held under each key, in SQLite tables. When a key expires, its names
    are released: each `hold` deletes expired keys."""

    @transaction
    def hold(self, db: sqlite3.Connection, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        now = self.clock()
        for (expired,) in db.execute("SELECT key FROM quota_times WHERE until < ?", (now,)).fetchall():
            db.execute("DELETE FROM quotas WHERE key = ?", (expired,))
            db.execute("DELETE FROM quota_times WHERE key = ?", (expired,))
        held = [row[0] for row in db.execute("SELECT name FROM quotas WHERE key = ? ORDER BY name", (key,))]
        if name not in held and len(held) >= most:
            return held
        db.execute("INSERT OR IGNORE INTO quotas (key, name) VALUES (?, ?)", (key, name))
        db.execute(
            "INSERT INTO quota_times (key, until) VALUES (?, ?) "
            "ON CONFLICT DO UPDATE SET until = max(until, excluded.until)",
            (key, now + for_s),
        )
        return []

    @transaction
    def give_back(self, db: sqlite3.Connection, key: str, names: Sequence[str]) -> None:
        db.executemany("DELETE FROM quotas WHERE key = ? AND name = ?", [(key, name) for name in names])


class SqliteSealedValues(Tables):
    """Store values that expire. Each change deletes expired ones."""

    @transaction
    def get(self, db: sqlite3.Connection, name: str) -> bytes | None:
        row = db.execute("SELECT value FROM sealed WHERE name = ? AND until > ?", (name, self.clock())).fetchone()
        return None if row is None else bytes(row[0])

    @transaction
    def replace(
        self, db: sqlite3.Connection, name: str, before: bytes | None, after: bytes | None, for_s: float = 0.0
    ) -> bool:
        now = self.clock()
        db.execute("DELETE FROM sealed WHERE until <= ?", (now,))
        row = db.execute("SELECT value FROM sealed WHERE name = ?", (name,)).fetchone()
        if (None if row is None else bytes(row[0])) != before:
            return False
        if after is None:
            db.execute("DELETE FROM sealed WHERE name = ?", (name,))
        else:
            row = (name, now + for_s, after)
            db.execute("INSERT OR REPLACE INTO sealed (name, until, value) VALUES (?, ?, ?)", row)
        return True

    @transaction
    def names(self, db: sqlite3.Connection) -> list[str]:
        return [row[0] for row in db.execute("SELECT name FROM sealed WHERE until > ?", (self.clock(),))]


class SqliteAuditTrail(Tables):
    """Store the newest audit events, in one table for each part of the trail."""

    @transaction
    def record(self, db: sqlite3.Connection, events: Sequence[AuditEvent]) -> None:
        rows = {part: [(msgspec.json.encode(event),) for event in found] for part, found in by_part(events).items()}
        for part, found in rows.items():
            table = audit_table(part)
            db.executemany(f"INSERT INTO {table} (event) VALUES (?)", found)
            last = f"(SELECT MAX(number) FROM {table})"
            db.execute(f"DELETE FROM {table} WHERE number <= {last} - ?", (MAX_AUDIT_EVENTS,))

    @transaction
    def recent(self, db: sqlite3.Connection, limit: int = 100) -> list[AuditEvent]:
        queries = [f"SELECT event FROM {audit_table(part)} ORDER BY number DESC LIMIT ?" for part in PARTS]
        found = [db.execute(query, (limit,)).fetchall() for query in queries]
        return newest([[msgspec.json.decode(row[0], type=AuditEvent) for row in rows] for rows in found], limit)


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
            head, entries = db.execute(_READ, (part.head.session,)).fetchone() or (b"", b"")
            db.execute(_WRITE, (part.head.session, now, *extended(head, entries, part, now)))
        if parts:
            db.execute(_DROP, (now - KEPT_S, MAX_SESSIONS))

    @transaction
    def read(self, db: sqlite3.Connection, session: str) -> Timeline | None:
        row = db.execute(f"{_READ} AND written_at > ?", (session, self.clock() - KEPT_S)).fetchone()
        return None if row is None else timeline_of(head_of(row[0]), row[1].split(b"\n"))

    @transaction
    def names(self, db: sqlite3.Connection, begins: str) -> list[str]:
        query = "SELECT session FROM timelines WHERE substr(session, 1, ?) = ? AND written_at > ? ORDER BY session"
        return [row[0] for row in db.execute(query, (len(begins), begins, self.clock() - KEPT_S))]

    @transaction
    def newest(self, db: sqlite3.Connection, limit: int, *, skip: int = 0) -> list[TimelineHead]:
        query = "SELECT head FROM timelines WHERE written_at > ? ORDER BY written_at DESC, rowid DESC LIMIT ? OFFSET ?"
        return [head_of(row[0]) for row in db.execute(query, (self.clock() - KEPT_S, limit, skip))]


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
