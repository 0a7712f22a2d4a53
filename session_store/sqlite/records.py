"""Read and write session records in SQLite tables."""

import functools
import sqlite3
from collections.abc import Iterator
from typing import Final, cast

import msgspec
from msgspec.structs import replace

from session_store.embedded.records_port import Records
from session_store.ports.sessions import SessionStatus
from session_store.session import Session

STATUS_KEPT_S: Final = 3_600
_STATUSES_HELD: Final = 10_000

_encode = msgspec.json.Encoder().encode
_MAX_SHARED_BYTES: Final = 512
"""The most bytes of a client-chosen value that sessions share in memory. Longer ones are seldom equal, and would
outlive their sessions."""
_decoded = msgspec.json.Decoder(Session).decode
_same = functools.lru_cache(maxsize=1_024)(lambda value: value)


def _decode(record: bytes) -> Session:
    """Decode a record. Sessions share equal values, because each session may stay in memory for a long time."""
    session = _decoded(record)
    client = session.client
    return replace(
        session,
        principal=_same(session.principal),
        client=_same(client) if len(client.initialize_params) <= _MAX_SHARED_BYTES else client,
        context=_same(session.context) if len(session.context.workspace) <= _MAX_SHARED_BYTES else session.context,
        links=_same(session.links),
    )


class SqliteRecords(Records):
    """Read and write session records in tables, inside one transaction of the connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def read(self, session_id: str) -> Session | None:
        row = self._db.execute("SELECT record FROM sessions WHERE id = ?", (session_id,)).fetchone()
        return None if row is None else _decode(row[0])

    def write(self, session: Session) -> None:
        self._db.execute(
            "INSERT INTO sessions (id, expires_at, record) VALUES (?, ?, ?) "
            "ON CONFLICT DO UPDATE SET expires_at = excluded.expires_at, record = excluded.record",
            (session.id, session.expires_at, _encode(session)),
        )

    def remove(self, session_id: str) -> None:
        self._db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))  # ON DELETE CASCADE deletes its state
        for table in ("events", "streams", "requests", "logs"):
            self._db.execute(f"DELETE FROM {table} WHERE session = ?", (session_id,))

    def scan(self, after: str = "") -> Iterator[Session]:
        rows = self._db.execute("SELECT record FROM sessions WHERE id > ? ORDER BY id", (after,))
        return (_decode(row[0]) for row in rows)

    def expired(self, now: float) -> list[str]:
        return [row[0] for row in self._db.execute("SELECT id FROM sessions WHERE expires_at <= ?", (now,))]

    def named(self, alias: str) -> str | None:
        row = self._db.execute("SELECT id FROM sessions WHERE alias = ?", (alias,)).fetchone()
        return None if row is None else str(row[0])

    def set_alias(self, alias: str, session_id: str) -> None:
        self._db.execute("UPDATE sessions SET alias = NULL WHERE alias = ?", (alias,))
        self._db.execute("UPDATE sessions SET alias = ? WHERE id = ?", (alias, session_id))

    def value(self, session_id: str, key: str) -> bytes | None:
        query = "SELECT value FROM state WHERE session = ? AND key = ?"
        row = self._db.execute(query, (session_id, key)).fetchone()
        return None if row is None else bytes(row[0])

    def set_value(self, session_id: str, key: str, value: bytes | None) -> None:
        if value is None:
            self._db.execute("DELETE FROM state WHERE session = ? AND key = ?", (session_id, key))
        else:
            self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (session_id, key, value))

    def keys(self, session_id: str) -> list[str]:
        query = "SELECT key FROM state WHERE session = ? ORDER BY key"
        return [row[0] for row in self._db.execute(query, (session_id,))]

    def size(self, session_id: str, *, without: str = "") -> int:
        query = (
            "SELECT COALESCE(SUM(LENGTH(CAST(key AS BLOB)) + LENGTH(value)), 0) FROM state "
            "WHERE session = ? AND key != ?"
        )
        return int(self._db.execute(query, (session_id, without)).fetchone()[0])

    def record_status(self, session_id: str, status: SessionStatus, at: float) -> None:
        self._db.execute("INSERT OR REPLACE INTO fates VALUES (?, ?, ?)", (session_id, status, at))

    def status(self, session_id: str) -> SessionStatus:
        row = self._db.execute("SELECT fate FROM fates WHERE session = ?", (session_id,)).fetchone()
        return "unknown" if row is None else cast("SessionStatus", row[0])

    def prune(self, now: float) -> None:
        self._db.execute("DELETE FROM fates WHERE at < ?", (now - STATUS_KEPT_S,))
        newest = "SELECT session FROM fates ORDER BY at DESC LIMIT ?"
        if self._db.execute("SELECT COUNT(*) FROM fates").fetchone()[0] > _STATUSES_HELD:
            self._db.execute(f"DELETE FROM fates WHERE session NOT IN ({newest})", (_STATUSES_HELD,))
