"""Store event streams in SQLite tables. Followers learn of new events over the bus of this process."""

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from typing import Final

from session_store.embedded.events import REQUESTS_PART, sequence_of
from session_store.ports.errors import UnknownEvent, UnwrittenEvent
from session_store.ports.events import MAX_LOG_BYTES, MAX_LOG_EVENTS, Entry, Event, Reserved, id_of_event, last_after
from session_store.ports.replica_directory import Bus
from session_store.sqlite.database import Database, Tables, transaction

_AFTER: Final = "SELECT number, frame FROM events WHERE session = ? AND stream = ? AND number > ? ORDER BY number"
_ROWS_AT_ONCE: Final = (64, 8, 1)


class SqliteEventLog(Tables):
    """Store event streams in SQLite. `max_events` and `max_bytes` limit the log of each session."""

    def __init__(
        self,
        database: Database,
        bus: Bus,
        clock: Callable[[], float],
        *,
        max_events: int = MAX_LOG_EVENTS,
        max_bytes: int = MAX_LOG_BYTES,
    ) -> None:
        super().__init__(database, clock)
        self._bus = bus
        self._max_events = max_events
        self._max_bytes = max_bytes

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        appended = await self._append(session_id, stream, frame)
        await self._bus.publish(_topic(session_id), b"n")
        return appended

    @transaction
    def _append(self, db: sqlite3.Connection, session_id: str, stream: str, frame: bytes) -> str:
        nonce = self._nonce(db, session_id)
        number = self._last(db, session_id) + 1
        self._set_last(db, session_id, number)
        db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (session_id, number, stream, frame))
        self._trim(db, session_id)
        return id_of_event(nonce, number)

    @transaction
    def reserve(self, db: sqlite3.Connection, session_id: str, count: int, epoch: int = 0) -> Reserved | None:
        nonce = self._nonce(db, session_id)
        last = last_after(self._last(db, session_id), count, epoch)
        if last is None:
            return None
        self._set_last(db, session_id, last)
        return Reserved(nonce, last - count + 1)

    @staticmethod
    def _last(db: sqlite3.Connection, session_id: str) -> int:
        return int(db.execute("SELECT last FROM logs WHERE session = ?", (session_id,)).fetchone()[0])

    def _set_last(self, db: sqlite3.Connection, session_id: str, last: int) -> None:
        db.execute("UPDATE logs SET last = ?, written_at = ? WHERE session = ?", (last, self.clock(), session_id))

    async def write(self, entries: Mapping[str, Sequence[Entry]]) -> Mapping[str, Exception]:
        def work(db: sqlite3.Connection) -> None:
            for session_id, events in entries.items():
                self._write(db, session_id, events)

        await self.database.run(work)
        for session_id in entries:
            await self._bus.publish(_topic(session_id), b"n")
        return {}

    def part_of(self, session_id: str) -> Hashable:
        return None

    def _write(self, db: sqlite3.Connection, session_id: str, entries: Sequence[Entry]) -> None:
        self._nonce(db, session_id)
        found = db.execute("SELECT MAX(number) FROM events WHERE session = ?", (session_id,)).fetchone()[0]
        new = [entry for entry in entries if entry.number > (found or 0)]
        rows = [(session_id, number, stream, frame) for number, stream, frame, ends, _, _ in new if frame or not ends]
        # With few statements: at its end, each waits for Python's interpreter lock, and many would slow the store
        # while the event loop is busy.
        at = 0
        for size in _ROWS_AT_ONCE:
            statement = f"INSERT INTO events VALUES {', '.join(['(?, ?, ?, ?)'] * size)}"
            while len(rows) - at >= size:
                db.execute(statement, [value for row in rows[at : at + size] for value in row])
                at += size
        db.execute("UPDATE logs SET written_at = ? WHERE session = ?", (self.clock(), session_id))
        self._trim(db, session_id)
        for entry in new:
            if entry.request:
                self._keep(db, session_id, entry.stream, entry.request)
            if entry.ends:
                self._finish(db, session_id, entry.stream)

    def _keep(self, db: sqlite3.Connection, session_id: str, stream: str, request: bytes) -> None:
        db.execute(
            "INSERT OR IGNORE INTO requests SELECT :session, :stream, :request WHERE :room >= "
            "(SELECT COALESCE(SUM(LENGTH(request)), 0) FROM requests WHERE session = :session)",
            {
                "session": session_id,
                "stream": stream,
                "request": request,
                "room": self._max_bytes // REQUESTS_PART - len(request),
            },
        )

    def _trim(self, db: sqlite3.Connection, session_id: str) -> None:
        where = "FROM events WHERE session = ?"
        count, size = db.execute(f"SELECT COUNT(*), COALESCE(SUM(LENGTH(frame)), 0) {where}", (session_id,)).fetchone()
        if count > self._max_events or (size > self._max_bytes and count > 1):
            # The newest stays, however large it is. SUM and ROW_NUMBER count from the newest.
            db.execute(
                "DELETE FROM events WHERE session = :session AND number <= (SELECT MAX(number) FROM (SELECT number, "
                "ROW_NUMBER() OVER newest AS place, SUM(LENGTH(frame)) OVER newest AS size "
                "FROM events WHERE session = :session WINDOW newest AS (ORDER BY number DESC)) "
                "WHERE place > :events OR (size > :bytes AND place > 1))",
                {"session": session_id, "events": self._max_events, "bytes": self._max_bytes},
            )

    async def finish(self, session_id: str, stream: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            self._nonce(db, session_id)
            self._finish(db, session_id, stream)

        await self.database.run(work)
        await self._bus.publish(_topic(session_id), b"n")

    @staticmethod
    def _finish(db: sqlite3.Connection, session_id: str, stream: str) -> None:
        db.execute(
            "INSERT INTO streams (session, stream, finished) VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET finished = 1",
            (session_id, stream),
        )
        db.execute("DELETE FROM requests WHERE session = ? AND stream = ?", (session_id, stream))
        # A finished stream whose events have all been trimmed needs no row.
        db.execute(
            "DELETE FROM streams WHERE session = ? AND finished AND stream != ? AND NOT EXISTS "
            "(SELECT 1 FROM events e WHERE e.session = streams.session AND e.stream = streams.stream)",
            (session_id, stream),
        )

    async def follow(self, session_id: str, stream: str, after: str | None) -> AsyncGenerator[Event, None]:
        news = asyncio.Event()
        dropped = False

        def receive(data: bytes | None) -> None:
            nonlocal dropped
            dropped = dropped or data == b"d"
            news.set()

        async with self._bus.subscribed(_topic(session_id), receive):
            nonce, position = await self._begin(session_id, stream)
            try:
                position = position if after is None else sequence_of(nonce, after)
            except UnknownEvent:
                return  # the log was dropped after the caller got that id
            while True:
                news.clear()
                rows, finished = await self._read(session_id, stream, position)
                for position, frame in rows:
                    yield Event(id=id_of_event(nonce, position), frame=frame)
                if dropped or (finished and not news.is_set()):
                    return
                await news.wait()

    @transaction
    def _begin(self, db: sqlite3.Connection, session_id: str, stream: str) -> tuple[str, int]:
        """Return the nonce of the session's log, and the number of the stream's last delivered event (0: none). Create
        the log if it is missing."""
        query = "SELECT delivered FROM streams WHERE session = ? AND stream = ?"
        row = db.execute(query, (session_id, stream)).fetchone()
        return self._nonce(db, session_id), 0 if row is None else row[0]

    @transaction
    def _read(
        self, db: sqlite3.Connection, session_id: str, stream: str, position: int
    ) -> tuple[list[tuple[int, bytes]], bool]:
        """Return the number and frame of each event of the stream after the number `position`. Return as well whether
        the stream is finished."""
        query = "SELECT 1 FROM streams WHERE session = ? AND stream = ? AND finished"
        finished = db.execute(query, (session_id, stream)).fetchone() is not None
        return db.execute(_AFTER, (session_id, stream, position)).fetchall(), finished

    @transaction
    def kept(self, db: sqlite3.Connection, session_id: str, stream: str, after: str) -> list[Event]:
        nonce = self._nonce(db, session_id)
        rows = db.execute(_AFTER, (session_id, stream, sequence_of(nonce, after)))
        return [Event(id=id_of_event(nonce, number), frame=frame) for number, frame in rows]

    @transaction
    def stream_of(self, db: sqlite3.Connection, session_id: str, event_id: str) -> str:
        log = db.execute("SELECT nonce, last FROM logs WHERE session = ?", (session_id,)).fetchone()
        if log is None:
            raise UnknownEvent(event_id)
        number = sequence_of(log[0], event_id)
        query = "SELECT stream FROM events WHERE session = ? AND number = ?"
        row = db.execute(query, (session_id, number)).fetchone()
        if row is not None:
            return str(row[0])
        first = db.execute("SELECT MIN(number) FROM events WHERE session = ?", (session_id,)).fetchone()[0]
        if (first or 0) < number <= log[1]:
            raise UnwrittenEvent(event_id)
        raise UnknownEvent(event_id)

    @transaction
    def unfinished(self, db: sqlite3.Connection, session_id: str) -> Mapping[str, bool]:
        rows = db.execute(
            "SELECT DISTINCT stream, stream IN (SELECT stream FROM requests WHERE session = :session) FROM events "
            "WHERE session = :session AND stream NOT IN "
            "(SELECT stream FROM streams WHERE session = :session AND finished) ORDER BY stream",
            {"session": session_id},
        )
        return {stream: bool(is_kept) for stream, is_kept in rows}

    @transaction
    def take_request(self, db: sqlite3.Connection, session_id: str, stream: str) -> bytes:
        where = "FROM requests WHERE session = ? AND stream = ?"
        row = db.execute(f"SELECT request {where}", (session_id, stream)).fetchone()
        db.execute(f"DELETE {where}", (session_id, stream))
        return b"" if row is None else bytes(row[0])

    @transaction
    def delivered(self, db: sqlite3.Connection, session_id: str, stream: str, event_id: str) -> None:
        number = sequence_of(self._nonce(db, session_id), event_id)
        db.execute(
            "INSERT INTO streams (session, stream, delivered) VALUES (?, ?, ?) "
            "ON CONFLICT DO UPDATE SET delivered = MAX(delivered, excluded.delivered)",
            (session_id, stream, number),
        )

    async def drop(self, session_id: str) -> None:
        await self.database.run(lambda db: drop_log(db, session_id))
        await self._bus.publish(_topic(session_id), b"d")

    async def release(self, session_id: str) -> None:
        """Do nothing: events are stored at once, not buffered."""

    def _nonce(self, db: sqlite3.Connection, session_id: str) -> str:
        """Return the nonce of the session's log. If the session has no log, create one."""
        row = db.execute("SELECT nonce FROM logs WHERE session = ?", (session_id,)).fetchone()
        if row is not None:
            return str(row[0])
        nonce = secrets.token_hex(4)
        db.execute("INSERT INTO logs (session, nonce, written_at) VALUES (?, ?, ?)", (session_id, nonce, self.clock()))
        return nonce


def drop_log(db: sqlite3.Connection, session_id: str) -> None:
    """Delete a session's events, and all that is known of its streams."""
    for table in ("events", "streams", "requests", "logs"):
        db.execute(f"DELETE FROM {table} WHERE session = ?", (session_id,))


def _topic(session_id: str) -> str:
    return f"{session_id}/news"
