"""Store the audit trail in SQLite tables, which outlive the process."""

import sqlite3
from collections.abc import Sequence

import msgspec

from session_store.ports.audit import MAX_AUDIT_EVENTS, PARTS, AuditEvent, by_part, newest
from session_store.sqlite.database import Tables, audit_table, transaction


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
