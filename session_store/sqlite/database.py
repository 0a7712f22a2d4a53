"""Run functions on one SQLite file, in one thread. Functions that are queued at the same time share one transaction."""

import asyncio
import contextlib
import fcntl
import functools
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from session_store.ports.audit import PARTS, Part
from session_store.ports.errors import StoreError, StoreUnavailable

TIMEOUT_S: Final = 2.5
"""Seconds in which a transaction has to end. A local disk that stalls for a second is slow, not away, and no other
replica could serve its sessions."""

LOCK_FILE_ENDING: Final = ".lock"
_MOST_AT_ONCE: Final = 256
_MOST_WAITING: Final = 4_096
"""The most functions that may wait, as for a blocked disk. Further ones are refused at once."""
_CLOSE_S: Final = 5.0

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, alias TEXT, expires_at REAL NOT NULL, record BLOB NOT NULL)
    WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sessions_by_deadline ON sessions (expires_at);
CREATE INDEX IF NOT EXISTS sessions_by_alias ON sessions (alias) WHERE alias IS NOT NULL;
CREATE TABLE IF NOT EXISTS state (session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE, key TEXT NOT NULL,
    value BLOB NOT NULL, PRIMARY KEY (session, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (session TEXT NOT NULL, number INTEGER NOT NULL, stream TEXT NOT NULL,
    frame BLOB NOT NULL, PRIMARY KEY (session, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logs (session TEXT PRIMARY KEY, nonce TEXT NOT NULL, last INTEGER NOT NULL DEFAULT 0,
    written_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS streams (session TEXT NOT NULL, stream TEXT NOT NULL, delivered INTEGER NOT NULL DEFAULT 0,
    finished INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (session, stream)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (session TEXT NOT NULL, stream TEXT NOT NULL, request BLOB NOT NULL,
    PRIMARY KEY (session, stream)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fates (session TEXT PRIMARY KEY, fate TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS quotas (key TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (key, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS quota_times (key TEXT PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS quota_times_by_deadline ON quota_times (until);
INSERT OR IGNORE INTO quota_times SELECT DISTINCT key, strftime('%s', 'now') + 259200 FROM quotas;
CREATE TABLE IF NOT EXISTS tasks (session TEXT NOT NULL, id TEXT NOT NULL, created_at REAL NOT NULL,
    expires_at REAL NOT NULL, version INTEGER NOT NULL, head BLOB NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (session, id));
CREATE INDEX IF NOT EXISTS tasks_by_age ON tasks (created_at, session, id);
CREATE INDEX IF NOT EXISTS tasks_by_deadline ON tasks (expires_at);
CREATE TABLE IF NOT EXISTS timelines (session TEXT PRIMARY KEY, written_at REAL NOT NULL, head BLOB NOT NULL,
    entries BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS timelines_by_age ON timelines (written_at);
CREATE TABLE IF NOT EXISTS history (step INTEGER NOT NULL, at INTEGER NOT NULL, replica TEXT NOT NULL,
    body BLOB NOT NULL, PRIMARY KEY (step, at, replica)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sealed (name TEXT PRIMARY KEY, until REAL NOT NULL, value BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sealed_by_deadline ON sealed (until);
"""
_AUDIT: Final = "CREATE TABLE IF NOT EXISTS {} (number INTEGER PRIMARY KEY AUTOINCREMENT, event BLOB NOT NULL);"


def audit_table(part: Part) -> str:
    """Return the name of the table for one part of the audit trail. That of `sessions` is the one that earlier versions
    used for the whole trail."""
    return "audit" if part == "sessions" else f"audit_{part}"


def no_folder(path: Path) -> StoreError:
    """Return the error for a file in a folder that does not exist."""
    return StoreError(f"{path}: there is no folder {path.parent}; make it, or name another file")


FORMAT: Final = 1

Result = TypeVar("Result")
Work = Callable[[sqlite3.Connection], Any]


@dataclass(eq=False, slots=True)
class _Queued:
    """A function that waits for its transaction, and the future of its result. The thread sets `has_begun` before it
    looks whether the future is cancelled. So a function that had not begun when it was cancelled is never called."""

    work: Work
    done: asyncio.Future[Any]
    has_begun: bool = False


class Database:
    """Run functions with the SQLite connection, one at a time.

    Functions share a transaction, so a function that raises must not have changed anything. An error of SQLite rolls
    the transaction back and fails all functions in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._work: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock_file: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self, *, exclusive: bool) -> None:
        """Open the file, or create it. `exclusive`: lock it, because only one gateway process may use a file.

        Raises:
            StoreError: the file cannot be opened, is another program's, has another format, or another gateway has
                locked it.
        """
        self._loop = asyncio.get_running_loop()
        check_is_ours(self.path)
        if exclusive:
            self._lock()
        try:
            connection = await asyncio.to_thread(self._connect)
        except (sqlite3.Error, OSError) as error:
            self._unlock()
            raise StoreError(f"{self.path}: cannot be used as a session store: {error}") from None
        except StoreError:
            self._unlock()
            raise
        self._thread = threading.Thread(target=self._serve, args=(connection,), name="sqlite", daemon=True)
        self._thread.start()

    def _lock(self) -> None:
        try:
            self._lock_file = os.open(f"{self.path}{LOCK_FILE_ENDING}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._unlock()
            raise StoreError(
                f"{self.path}: another gateway process uses it. SQLite supports one process; use redis:// for several"
            ) from None
        except FileNotFoundError:
            raise no_folder(self.path) from None
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}") from None

    def _unlock(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _connect(self) -> sqlite3.Connection:
        if not self.path.exists():
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            self.path, timeout=TIMEOUT_S / 2, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            _check_is_ours(connection, self.path)
        except StoreError:
            connection.close()
            raise
        # In WAL mode, NORMAL loses nothing when the process dies. A power failure can lose the last transactions.
        connection.executescript(
            f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON; {_SCHEMA}"
            f"{''.join(_AUDIT.format(audit_table(part)) for part in PARTS)}"
            f"PRAGMA user_version={FORMAT};"
        )
        return connection

    async def run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run `work` in a transaction, and return its result after the commit. Raises `StoreUnavailable`."""
        if self._thread is None or self._loop is None:
            raise StoreUnavailable(f"{self.path.name} is not open", may_have_taken_effect=False)
        if self._work.qsize() >= _MOST_WAITING:
            raise StoreUnavailable(f"{self.path.name} does not keep up", may_have_taken_effect=False)
        done: asyncio.Future[Result] = self._loop.create_future()
        queued = _Queued(work, done)
        self._work.put(queued)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await done
        except TimeoutError:
            text = f"{self.path.name} did not answer within {TIMEOUT_S:g} s"
            raise StoreUnavailable(text, may_have_taken_effect=queued.has_begun) from None

    def _serve(self, connection: sqlite3.Connection) -> None:
        with contextlib.closing(connection):
            while (first := self._work.get()) is not None:
                batch = [first]
                while len(batch) < _MOST_AT_ONCE and not self._work.empty():
                    following = self._work.get()
                    if following is None:
                        self._commit(connection, batch)
                        return
                    batch.append(following)
                self._commit(connection, batch)

    def _commit(self, connection: sqlite3.Connection, batch: list[_Queued]) -> None:
        outcomes: list[tuple[asyncio.Future[Any], Any, Exception | None]] = []
        is_committing = False
        try:
            connection.execute("BEGIN IMMEDIATE")
            for queued in batch:
                queued.has_begun = True
                if queued.done.cancelled():  # its caller was told that the store did not answer
                    continue
                try:
                    outcomes.append((queued.done, queued.work(connection), None))
                except sqlite3.Error:
                    raise
                except Exception as error:
                    outcomes.append((queued.done, None, error))
            is_committing = True
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            failure = StoreUnavailable(f"{self.path.name}: {error}", may_have_taken_effect=is_committing)
            outcomes = [(queued.done, None, failure) for queued in batch]
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits for the results
            self._loop.call_soon_threadsafe(_settle, outcomes)

    async def close(self) -> None:
        """Finish the queued work and close the file. If a blocked disk takes longer than `_CLOSE_S`, return anyway: the
        file then stays locked until the process ends."""
        if self._thread is not None:
            self._work.put(None)
            thread, self._thread = self._thread, None
            await asyncio.to_thread(thread.join, _CLOSE_S)
            if thread.is_alive():
                return
        self._unlock()


class Tables:
    """Base class of the parts of the backend that have tables of their own. `clock` returns seconds since the epoch."""

    def __init__(self, database: Database, clock: Callable[[], float] = time) -> None:
        self.database = database
        self.clock = clock


Given = ParamSpec("Given")
Owner = TypeVar("Owner", bound=Tables)


def transaction(
    work: Callable[Concatenate[Owner, sqlite3.Connection, Given], Result],
) -> Callable[Concatenate[Owner, Given], Coroutine[Any, Any, Result]]:
    """Return an asynchronous method made of `work`, a method that takes the connection. It runs `work` in a
    transaction, in the thread of the database (`Database.run`). `work` has to encode values before its first statement,
    because only an error of SQLite undoes statements."""

    @functools.wraps(work)
    async def method(part: Owner, /, *arguments: Given.args, **named: Given.kwargs) -> Result:
        return await part.database.run(lambda db: work(part, db, *arguments, **named))

    return method


def check_is_ours(path: Path) -> None:
    """Raise `StoreError` if the file belongs to another program or another version. Call this before files are made
    beside it. A missing file is no error."""
    if not path.is_file():
        return  # `Database.open` makes it, or says why it cannot
    try:
        # Without the journal, which would be a file beside it. If another process is writing, `Database.open` decides.
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as connection:
            _check_is_ours(connection, path)
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise StoreError(f"{path}: cannot be used as a session store: {error}") from None


def _check_is_ours(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `StoreError` unless the database is empty, or has the present format and the table that every version of
    the gateway creates first."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    columns = {row[1] for row in connection.execute("PRAGMA table_info(sessions)")}
    is_empty = connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    if not is_empty and not columns >= {"id", "alias", "expires_at", "record"}:
        raise StoreError(f"{path}: belongs to another program; name another file")
    if version not in (0, FORMAT):
        raise StoreError(f"{path}: was written by another version of the gateway (format {version})")


def _settle(outcomes: list[tuple[asyncio.Future[Any], Any, Exception | None]]) -> None:
    for done, result, error in outcomes:
        if done.done():
            continue
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
