"""Store tasks in a SQLite table, so that they outlive the process."""

import sqlite3
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from session_store.ports.tasks import Task, head_of, ids_of, joined, parts
from session_store.sqlite.database import Tables, transaction

_OLDEST: Final = "created_at, id"


class SqliteTasks(Tables):
    """Store tasks by session and id. Storing a new task also deletes expired ones."""

    @transaction
    def create(self, db: sqlite3.Connection, task: Task) -> None:
        db.execute("DELETE FROM tasks WHERE expires_at <= ?", (self.clock(),))
        row = (task.session_id, task.id, task.created_at, task.expires_at, task.version, *parts(task))
        columns = "session, id, created_at, expires_at, version, head, body"
        db.execute(f"INSERT INTO tasks ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    @transaction
    def get(self, db: sqlite3.Connection, session_id: str, task_id: str) -> Task | None:
        query = "SELECT head, body FROM tasks WHERE expires_at > ? AND session = ? AND id = ?"
        row = db.execute(query, (self.clock(), session_id, task_id)).fetchone()
        return None if row is None else joined(*row)

    @transaction
    def replace(self, db: sqlite3.Connection, task: Task) -> bool:
        after = replace(task, version=task.version + 1)
        values = (after.version, after.expires_at, *parts(after))
        where = (task.session_id, task.id, task.version, self.clock())
        statement = (
            "UPDATE tasks SET version = ?, expires_at = ?, head = ?, body = ? "
            "WHERE session = ? AND id = ? AND version = ? AND expires_at > ?"
        )
        return db.execute(statement, values + where).rowcount == 1

    async def of_session(
        self, session_id: str, *, after: tuple[float, str] = (0.0, ""), limit: int = 100
    ) -> list[Task]:
        return await self._heads("session = ? AND (created_at, id) > (?, ?)", (session_id, *after), _OLDEST, limit)

    async def heads(self, names: Sequence[str]) -> list[Task]:
        if not names:
            return []
        where = f"(session, id) IN (VALUES {', '.join(['(?, ?)'] * len(names))})"
        values = [part for name in names for part in ids_of(name)]
        found = {task.name: task for task in await self._heads(where, values, _OLDEST, len(names))}
        return [found[name] for name in names if name in found]

    async def page(self, *, before: Task | None = None, limit: int = 100) -> list[Task]:
        order = "created_at DESC, session DESC, id DESC"
        if before is None:
            return await self._heads("1", (), order, limit)
        place = (before.created_at, before.session_id, before.id)
        return await self._heads("(created_at, session, id) < (?, ?, ?)", place, order, limit)

    @transaction
    def drop_session(self, db: sqlite3.Connection, session_id: str) -> None:
        db.execute("DELETE FROM tasks WHERE session = ?", (session_id,))

    @transaction
    def _heads(
        self, db: sqlite3.Connection, where: str, values: Sequence[str | float], order: str, limit: int
    ) -> list[Task]:
        """Return at most `limit` tasks that match the SQL condition `where` and have not expired, as heads (without the
        large fields), in the order `order`. `values`: the parameters of `where`. `where` and `order` come from this
        module only."""
        query = f"SELECT head FROM tasks WHERE expires_at > ? AND {where} ORDER BY {order} LIMIT ?"
        return [head_of(row[0]) for row in db.execute(query, (self.clock(), *values, limit))]
