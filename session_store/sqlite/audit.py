"""The audit trail in SQLite tables, one for each of its parts."""

import sqlite3
from collections.abc import Sequence

import msgspec

from session_store.audit import MAX_AUDIT_EVENTS, PARTS, by_part, newest
from session_store.ports.audit import AuditEvent
from session_store.sqlite.database import Database, audit_table

__all__ = ["SqliteAuditTrail"]


class SqliteAuditTrail:
    """The newest events, in a table."""

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
