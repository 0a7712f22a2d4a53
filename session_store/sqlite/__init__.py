"""Provide the backend for one machine: a SQLite file, which survives restarts. One gateway process at a time."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import time
from typing import Final

from session_store.embedded.backend import EmbeddedBackend
from session_store.embedded.records_port import Result, Work
from session_store.ports.backend import Observation
from session_store.ports.errors import StoreError, StoreMissing
from session_store.sqlite.accounting import SqliteAuditTrail, SqliteHistory, SqliteQuotas, SqliteTimelines
from session_store.sqlite.database import FORMAT, Database, check_is_ours, no_folder
from session_store.sqlite.events import SqliteEventLog
from session_store.sqlite.records import SqliteRecords
from session_store.sqlite.tasks import SqliteTasks
from session_store.tokens import InvalidKeyRing, KeyRing, generate_key

__all__ = ["SqliteBackend", "SqliteEventLog", "keys_beside"]

KEY_FILE_ENDING: Final = ".keys"


class SqliteBackend(EmbeddedBackend):
    """Serve `sqlite:///path` URLs. Bus, leases, rates and flags are in memory, because one process uses the file."""

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
        self.audit = SqliteAuditTrail(self._database)
        self.timelines = SqliteTimelines(self._database, clock)
        self.history = SqliteHistory(self._database)
        self.quotas = SqliteQuotas(self._database, clock)
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
    """Return the signing keys from a file beside the database, which only its owner can read. Used if the operator
    configures no keys. The first call creates the file.

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
