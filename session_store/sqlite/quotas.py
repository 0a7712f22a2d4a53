"""Store quotas and sealed values in SQLite tables, which outlive the process."""

import sqlite3
from collections.abc import Sequence

from session_store.sqlite.database import Tables, transaction


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
