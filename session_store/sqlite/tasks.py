"""Tasks in a table, so that they outlive the process."""

import sqlite3
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from session_store.ports.tasks import Task
from session_store.sqlite.database import Database

__all__ = ["SqliteTasks"]


class SqliteTasks:
    """Tasks by session and id. Each new task has the expired ones deleted."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    async def create(self, task: Task) -> None:
        now = self._clock()

        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM tasks WHERE expires_at <= ?", (now,))
            row = (
                task.session_id,
                task.id,
                task.created_at,
                task.expires_at,
                task.version,
                msgspec.msgpack.encode(task),
            )
            db.execute(
                "INSERT INTO tasks (session, id, created_at, expires_at, version, record) VALUES (?,?,?,?,?,?)", row
            )

        await self._database.run(work)

    async def get(self, session_id: str, task_id: str) -> Task | None:
        found = await self._found("session = ? AND id = ?", (session_id, task_id))
        return found[0] if found else None

    async def replace(self, task: Task) -> bool:
        after = replace(task, version=task.version + 1)
        now = self._clock()

        def work(db: sqlite3.Connection) -> bool:
            values = (after.version, after.expires_at, msgspec.msgpack.encode(after))
            where = (task.session_id, task.id, task.version, now)
            statement = (
                "UPDATE tasks SET version = ?, expires_at = ?, record = ? "
                "WHERE session = ? AND id = ? AND version = ? AND expires_at > ?"
            )
            return db.execute(statement, values + where).rowcount == 1

        return await self._database.run(work)

    async def of_session(self, session_id: str) -> list[Task]:
        return await self._found("session = ?", (session_id,), order="created_at, id")

    async def page(self, *, before: str = "", limit: int = 100) -> list[Task]:
        order = "created_at DESC, session DESC, id DESC"
        if not before:
            return await self._found("1", (), order=order, limit=limit)
        session_id, _, task_id = before.partition("/")
        older = "(created_at, session, id) < (SELECT created_at, session, id FROM tasks WHERE session = ? AND id = ?)"
        return await self._found(older, (session_id, task_id), order=order, limit=limit)

    async def drop_session(self, session_id: str) -> None:
        await self._database.run(lambda db: db.execute("DELETE FROM tasks WHERE session = ?", (session_id,)).rowcount)

    async def _found(self, where: str, values: tuple[str, ...], *, order: str = "id", limit: int = -1) -> list[Task]:
        """The tasks that have not expired and match the condition. `where` and `order` are constants of this module."""
        query = f"SELECT record FROM tasks WHERE expires_at > ? AND {where} ORDER BY {order} LIMIT ?"
        now = self._clock()
        rows = await self._database.run(lambda db: db.execute(query, (now, *values, limit)).fetchall())
        return [msgspec.msgpack.decode(row[0], type=Task) for row in rows]
