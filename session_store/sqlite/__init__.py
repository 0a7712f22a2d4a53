"""Provide the backend for one machine: a SQLite file, which survives restarts. One gateway process at a time."""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import time
from typing import Final, cast

import msgspec

from session_store.embedded.backend import EmbeddedBackend
from session_store.embedded.records_port import Records, Result, Work
from session_store.ports.backend import Observation
from session_store.ports.errors import StoreError, StoreMissing
from session_store.ports.sessions import SessionStatus
from session_store.record import from_fields
from session_store.session import Session
from session_store.sqlite import accounting
from session_store.sqlite.database import FORMAT, Database, check_is_ours, no_folder
from session_store.sqlite.events import SqliteEventLog, drop_log
from session_store.sqlite.tasks import SqliteTasks
from session_store.token_signing import InvalidKeyRing, KeyRing, generate_key

__all__ = ["SqliteBackend", "SqliteEventLog", "keys_beside"]

KEY_FILE_ENDING: Final = ".keys"
STATUS_KEPT_S: Final = 3_600
_STATUSES_HELD: Final = 10_000

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class SqliteRecords(Records):
    """Read and write session records in tables, inside one transaction of the connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def read(self, session_id: str) -> Session | None:
        row = self._db.execute("SELECT record FROM sessions WHERE id = ?", (session_id,)).fetchone()
        return None if row is None else from_fields(_fields(row[0]))

    def write(self, session: Session) -> None:
        self._db.execute(
            "INSERT INTO sessions (id, expires_at, record) VALUES (?, ?, ?) "
            "ON CONFLICT DO UPDATE SET expires_at = excluded.expires_at, record = excluded.record",
            (session.id, session.expires_at, _encode(session)),
        )

    def remove(self, session_id: str) -> None:
        self._db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))  # ON DELETE CASCADE deletes its state
        drop_log(self._db, session_id)

    def scan(self, after: str = "") -> Iterator[Session]:
        rows = self._db.execute("SELECT record FROM sessions WHERE id > ? ORDER BY id", (after,))
        return (from_fields(_fields(row[0])) for row in rows)

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


class SqliteBackend(EmbeddedBackend):
    """Keep sessions and their data in a SQLite file: the backend of `sqlite:///path` URLs. Bus, leases, rates and flags
    are in memory, because one process uses the file."""

    is_durable = True
    needs_keys = False  # they are in a file beside the database

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time, exclusive: bool = True, create: bool = True
    ) -> None:
        super().__init__(clock=clock)
        self.path = path
        self._exclusive = exclusive
        self._create = create
        self._database = Database(path)
        self.events = SqliteEventLog(self._database, self.bus, clock)
        self.audit = accounting.SqliteAuditTrail(self._database)
        self.timelines = accounting.SqliteTimelines(self._database, clock)
        self.history = accounting.SqliteHistory(self._database)
        self.quotas = accounting.SqliteQuotas(self._database, clock)
        self.sealed = accounting.SqliteSealedValues(self._database, clock)
        self.tasks = SqliteTasks(self._database, clock)

    async def run(self, work: Work[Result]) -> Result:
        return await self._database.run(lambda db: work(SqliteRecords(db)))

    def own_keys(self) -> KeyRing:
        return keys_beside(self.path)

    async def inspect(self) -> Sequence[Observation]:
        return [Observation(subject="store", state="ok", text="the file can be opened")]

    async def open(self) -> None:
        if not self._create and not self.path.exists():
            if not self.path.parent.is_dir():
                raise no_folder(self.path)
            raise StoreMissing(f"{self.path}: there is no such file")
        await self._database.open(exclusive=self._exclusive)

    async def ping(self) -> None:
        await self._database.run(lambda db: db.execute("SELECT 1").fetchone())

    async def try_write(self) -> None:
        # Rewrites the first page with the same content.
        await self._database.run(lambda db: db.execute(f"PRAGMA user_version={FORMAT}").fetchone())

    async def close(self) -> None:
        await self._database.close()


def keys_beside(path: Path) -> KeyRing:
    """Return the signing keys from a file beside the database `path`. Only the owner of this file can read it. The keys
    are used if the operator configures none. The first call creates the file.

    Raises:
        StoreError: the file cannot be read or created, or other users can read it; the database is another program's.
    """
    check_is_ours(path)
    file = path.with_name(path.name + KEY_FILE_ENDING)
    try:
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as keys:
                keys.write(generate_key() + "\n")
        if file.stat().st_mode & 0o077:
            raise StoreError(f"{file}: other users can read the keys; run chmod 600 on it")
        return KeyRing.parse(file.read_text(encoding="ascii").replace("\n", ","))
    except FileNotFoundError:
        raise no_folder(path) from None
    except (OSError, UnicodeDecodeError, InvalidKeyRing) as error:
        raise StoreError(f"{file}: cannot be used as the key file: {error}") from None
