"""The history of the figures in a table."""

import sqlite3

from session_store.ports.history import STEPS, HistoryRecord
from session_store.sqlite.database import Database

__all__ = ["SqliteHistory"]


class SqliteHistory:
    """The records of the last day."""

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
