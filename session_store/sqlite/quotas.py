"""Quotas in a table, so that they outlive the process."""

import sqlite3
from collections.abc import Sequence

from session_store.sqlite.database import Database

__all__ = ["SqliteQuotas"]


class SqliteQuotas:
    """The names that each key holds. Nothing expires by itself: a caller that finds a key full releases stale names."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        def work(db: sqlite3.Connection) -> list[str]:
            held = [row[0] for row in db.execute("SELECT name FROM quotas WHERE key = ? ORDER BY name", (key,))]
            if name not in held and len(held) >= most:
                return held
            db.execute("INSERT OR IGNORE INTO quotas (key, name) VALUES (?, ?)", (key, name))
            return []

        return await self._database.run(work)

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        rows = [(key, name) for name in names]
        await self._database.run(lambda db: db.executemany("DELETE FROM quotas WHERE key = ? AND name = ?", rows))
