"""Store quotas, audit trail, history and timelines in SQLite tables, so that they outlive the process."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from session_store.ports.accounting import MAX_AUDIT_EVENTS, PARTS, STEPS, AuditEvent, HistoryRecord, by_part, newest
from session_store.ports.timelines import (
    KEPT_S,
    MAX_SESSIONS,
    Timeline,
    TimelineHead,
    TimelinePart,
    joined,
    merged,
    timeline_of,
)
from session_store.sqlite.database import Database, audit_table


class SqliteQuotas:
    """Store the names that are held under each key, and when the key expires. Each `hold` deletes expired names."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        now = self._clock()

        def work(db: sqlite3.Connection) -> list[str]:
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

        return await self._database.run(work)

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        rows = [(key, name) for name in names]
        await self._database.run(lambda db: db.executemany("DELETE FROM quotas WHERE key = ? AND name = ?", rows))


class SqliteAuditTrail:
    """Store the newest audit events, in one table for each part of the trail."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, events: Sequence[AuditEvent]) -> None:
        rows = {part: [(msgspec.json.encode(event),) for event in found] for part, found in by_part(events).items()}

        def work(db: sqlite3.Connection) -> None:
            for part, found in rows.items():
                table = audit_table(part)
                db.executemany(f"INSERT INTO {table} (event) VALUES (?)", found)
                last = f"(SELECT MAX(number) FROM {table})"
                db.execute(f"DELETE FROM {table} WHERE number <= {last} - ?", (MAX_AUDIT_EVENTS,))

        await self._database.run(work)

    async def recent(self, limit: int = 100) -> list[AuditEvent]:
        def work(db: sqlite3.Connection) -> list[list[AuditEvent]]:
            queries = [f"SELECT event FROM {audit_table(part)} ORDER BY number DESC LIMIT ?" for part in PARTS]
            found = [db.execute(query, (limit,)).fetchall() for query in queries]
            return [[msgspec.json.decode(row[0], type=AuditEvent) for row in rows] for rows in found]

        return newest(await self._database.run(work), limit)


class SqliteHistory:
    """Store the history records of the last day."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, step_s: int, record: HistoryRecord) -> None:
        def work(db: sqlite3.Connection) -> None:
            row = (step_s, record.at, record.replica, record.body)
            db.execute("INSERT OR REPLACE INTO history (step, at, replica, body) VALUES (?, ?, ?, ?)", row)
            db.execute("DELETE FROM history WHERE step = ? AND at < ?", (step_s, record.at - STEPS[step_s]))

        await self._database.run(work)

    async def read(self, step_s: int, since: int, until: int) -> list[HistoryRecord]:
        query = "SELECT at, replica, body FROM history WHERE step = ? AND at >= ? AND at < ? ORDER BY at, replica"
        rows = await self._database.run(lambda db: db.execute(query, (step_s, since, until)).fetchall())
        return [HistoryRecord(*row) for row in rows]


_heads: Final = msgspec.json.Decoder(TimelineHead)
_READ: Final = "SELECT head, entries FROM timelines WHERE session = ?"
_WRITE: Final = "INSERT OR REPLACE INTO timelines (session, written_at, head, entries) VALUES (?, ?, ?, ?)"
_DROP: Final = (
    "DELETE FROM timelines WHERE written_at < ? OR session IN "
    "(SELECT session FROM timelines ORDER BY written_at DESC LIMIT -1 OFFSET ?)"
)


class SqliteTimelines:
    """Store the timelines of sessions, also of sessions that have ended."""

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
