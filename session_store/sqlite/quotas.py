"""Quotas in tables, so that they outlive the process."""

import sqlite3
from collections.abc import Callable, Sequence

from session_store.sqlite.database import Database

__all__ = ["SqliteQuotas"]


class SqliteQuotas:
    """The names that each key holds, and until when. Each call that holds a name has the expired ones deleted."""

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
