"""Sessions and their state in SQLite tables."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec
from msgspec.structs import replace

from session_store.limits import check_key, check_total, check_value, incremented
from session_store.metadata import merged_metadata
from session_store.ports.errors import SessionGone
from session_store.ports.sessions import Fate, Gone
from session_store.session import Principal, Session
from session_store.sqlite.database import Database

__all__ = ["SqliteSessionStore", "SqliteStateStore"]

FATE_KEPT_S: Final = 3_600
_FATES_HELD: Final = 10_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Session).decode


class SqliteSessionStore:
    """One row for each session."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    async def create(self, session: Session, *, alias: str | None = None) -> Session:
        def work(db: sqlite3.Connection) -> Session:
            if alias is not None:
                if (existing := self._named(db, alias)) is not None:
                    return self._use(db, existing)
                db.execute("UPDATE sessions SET alias = NULL WHERE alias = ?", (alias,))
            db.execute(
                "INSERT INTO sessions (id, alias, expires_at, record) VALUES (?, ?, ?, ?)",
                (session.id, alias, session.expires_at, _encode(session)),
            )
            return session

        return await self._database.run(work)

    async def resume(self, session_id: str, principal: Principal, known: Session | None = None) -> Session | None:
        def work(db: sqlite3.Connection) -> Session | None:
            session = self.live(db, session_id)
            return None if session is None or session.principal != principal else self._use(db, session)

        return await self._database.run(work)

    async def resume_alias(self, alias: str) -> Session | None:
        def work(db: sqlite3.Connection) -> Session | None:
            session = self._named(db, alias)
            return None if session is None else self._use(db, session)

        return await self._database.run(work)

    async def named(self, alias: str) -> Session | None:
        return await self._database.run(lambda db: self._named(db, alias))

    async def peek(self, session_id: str) -> Session | None:
        return await self._database.run(lambda db: self.live(db, session_id))

    async def touch(self, session_id: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            session = self.live(db, session_id)
            if session is not None:
                _put(db, session.used(self._clock()))
            return session is not None

        return await self._database.run(work)

    async def update(self, session_id: str, **fields: object) -> Session | None:
        return await self.change(session_id, lambda session: replace(session, **fields))

    async def change_set(
        self,
        session_id: str,
        field: Literal["children", "links", "remote", "subscriptions"],
        *,
        add: str = "",
        remove: str = "",
    ) -> Session | None:
        return await self.change(session_id, lambda session: session.with_set(field, add=add, remove=remove))

    async def annotate(self, session_id: str, changes: Mapping[str, str | None]) -> Session | None:
        return await self.change(session_id, lambda s: replace(s, metadata=merged_metadata(s.metadata, changes)))

    async def change(self, session_id: str, changed: Callable[[Session], Session | None]) -> Session | None:
        """The live session as `changed` makes it; None, and unchanged, when there is none or `changed` says so."""

        def work(db: sqlite3.Connection) -> Session | None:
            session = self.live(db, session_id)
            session = None if session is None else changed(session)
            if session is not None:
                _put(db, session)
            return session

        return await self._database.run(work)

    async def end(self, session_id: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            is_live = self.live(db, session_id) is not None
            if is_live:
                self._forget(db, session_id, "ended")
            return is_live

        return await self._database.run(work)

    async def page(self, *, after: str = "", limit: int = 100) -> list[Session]:
        query = "SELECT record FROM sessions WHERE id > ? AND expires_at > ? ORDER BY id LIMIT ?"
        return await self._database.run(
            lambda db: [_decode(row[0]) for row in db.execute(query, (after, self._clock(), limit))]
        )

    async def gone(self, session_ids: Sequence[str]) -> list[str]:
        return await self._database.run(lambda db: [i for i in session_ids if self.live(db, i) is None])

    async def fate(self, session_id: str) -> Fate:
        def work(db: sqlite3.Connection) -> Fate:
            row = db.execute("SELECT expires_at FROM sessions WHERE id = ?", (session_id,)).fetchone()
            if row is not None:
                return "live" if self._clock() < row[0] else "expired"
            row = db.execute("SELECT fate FROM fates WHERE session = ?", (session_id,)).fetchone()
            return "unknown" if row is None else cast("Fate", row[0])

        return await self._database.run(work)

    async def sweep(self) -> list[Gone]:
        def work(db: sqlite3.Connection) -> list[Gone]:
            now = self._clock()
            ids = [row[0] for row in db.execute("SELECT id FROM sessions WHERE expires_at <= ?", (now,))]
            for session_id in ids:
                self._forget(db, session_id, "expired")
            db.execute("DELETE FROM fates WHERE at < ?", (now - FATE_KEPT_S,))
            newest = "SELECT session FROM fates ORDER BY at DESC LIMIT ?"
            if db.execute("SELECT COUNT(*) FROM fates").fetchone()[0] > _FATES_HELD:
                db.execute(f"DELETE FROM fates WHERE session NOT IN ({newest})", (_FATES_HELD,))
            return [Gone(session_id=session_id, reason="expired") for session_id in ids]

        return await self._database.run(work)

    # -- inside a transaction

    def live(self, db: sqlite3.Connection, session_id: str) -> Session | None:
        """The session, if it is one."""
        row = db.execute(
            "SELECT record FROM sessions WHERE id = ? AND expires_at > ?", (session_id, self._clock())
        ).fetchone()
        return None if row is None else _decode(row[0])

    def _named(self, db: sqlite3.Connection, alias: str) -> Session | None:
        row = db.execute(
            "SELECT record FROM sessions WHERE alias = ? AND expires_at > ?", (alias, self._clock())
        ).fetchone()
        return None if row is None else _decode(row[0])

    def _use(self, db: sqlite3.Connection, session: Session) -> Session:
        session = session.used(self._clock(), confirm=True)
        _put(db, session)
        return session

    def _forget(self, db: sqlite3.Connection, session_id: str, fate: Fate) -> None:
        db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
        for table in ("events", "streams", "logs"):
            db.execute(f"DELETE FROM {table} WHERE session = ?", (session_id,))
        db.execute("INSERT OR REPLACE INTO fates VALUES (?, ?, ?)", (session_id, fate, self._clock()))


def _put(db: sqlite3.Connection, session: Session) -> None:
    db.execute(
        "UPDATE sessions SET expires_at = ?, record = ? WHERE id = ?",
        (session.expires_at, _encode(session), session.id),
    )


class SqliteStateStore:
    """State rows, which go with their session's."""

    def __init__(self, database: Database, sessions: SqliteSessionStore) -> None:
        self._database = database
        self._sessions = sessions

    async def _run(self, session_id: str, key: str, work: Callable[[sqlite3.Connection], Any]) -> Any:
        check_key(key)

        def checked(db: sqlite3.Connection) -> Any:
            if self._sessions.live(db, session_id) is None:
                raise SessionGone(session_id)
            return work(db)

        return await self._database.run(checked)

    async def get(self, session_id: str, key: str) -> bytes | None:
        return cast("bytes | None", await self._run(session_id, key, lambda db: _value(db, session_id, key)))

    async def set(self, session_id: str, key: str, value: bytes) -> None:
        await self._run(session_id, key, lambda db: _set(db, session_id, key, value))

    async def delete(self, session_id: str, key: str) -> bool:
        return bool(await self._run(session_id, key, lambda db: _delete(db, session_id, key)))

    async def increment(self, session_id: str, key: str, by: int) -> int:
        def work(db: sqlite3.Connection) -> int:
            number = incremented(key, _value(db, session_id, key), by)
            _set(db, session_id, key, b"%d" % number)
            return number

        return int(await self._run(session_id, key, work))

    async def compare_and_set(self, session_id: str, key: str, expected: bytes | None, value: bytes | None) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            if _value(db, session_id, key) != expected:
                return False
            if value is None:
                _delete(db, session_id, key)
            else:
                _set(db, session_id, key, value)
            return True

        return bool(await self._run(session_id, key, work))

    async def keys(self, session_id: str) -> list[str]:
        query = "SELECT key FROM state WHERE session = ? ORDER BY key"
        return cast(
            "list[str]", await self._run(session_id, "any", lambda db: [r[0] for r in db.execute(query, (session_id,))])
        )

    async def size(self, session_id: str) -> int:
        query = "SELECT COALESCE(SUM(LENGTH(CAST(key AS BLOB)) + LENGTH(value)), 0) FROM state WHERE session = ?"
        return cast(
            "int", await self._run(session_id, "any", lambda db: db.execute(query, (session_id,)).fetchone()[0])
        )


def _value(db: sqlite3.Connection, session_id: str, key: str) -> bytes | None:
    row = db.execute("SELECT value FROM state WHERE session = ? AND key = ?", (session_id, key)).fetchone()
    return None if row is None else bytes(row[0])


def _set(db: sqlite3.Connection, session_id: str, key: str, value: bytes) -> None:
    check_value(key, value)
    query = (
        "SELECT COALESCE(SUM(LENGTH(CAST(key AS BLOB)) + LENGTH(value)), 0) FROM state WHERE session = ? AND key != ?"
    )
    others = db.execute(query, (session_id, key)).fetchone()[0]
    check_total(key, others + len(key.encode()) + len(value))
    db.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (session_id, key, value))


def _delete(db: sqlite3.Connection, session_id: str, key: str) -> bool:
    return db.execute("DELETE FROM state WHERE session = ? AND key = ?", (session_id, key)).rowcount > 0
