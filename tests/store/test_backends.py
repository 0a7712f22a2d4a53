"""Every backend keeps the one contract."""

import asyncio
import contextlib
import gc
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from session_store import (
    AuditEvent,
    Backend,
    EventLog,
    HistoryRecord,
    MemoryBackend,
    MemoryEventLog,
    StoreError,
    StoreUnavailable,
    TimelineEntry,
    TimelineHead,
    TimelinePart,
    UnknownEvent,
)
from session_store.ports.audit import MAX_AUDIT_EVENTS
from session_store.ports.errors import StoreMissing
from session_store.ports.events import Entry, id_of_event
from session_store.redis import RedisBackend, RedisEventLog, connection, keys
from session_store.sqlite import SqliteBackend, SqliteEventLog, database
from session_store.testing import BackendContract, EventLogContract, FakeClock, a_session
from tests.requirements import requirement
from tests.support.redis_server import RunningRedis

LIMITS = {"max_events": 16, "max_bytes": 1_000}


@requirement("life.ttl", "life.unconfirmed", "life.end", "id.bound", "ctx.state", "ctx.limits", "ctx.metadata")
class Contract(BackendContract):
    """What every backend of ours keeps. `most_events`: of each part of the audit trail."""

    most_events = MAX_AUDIT_EVENTS

    @requirement("wall.audit")
    async def test_strangers_flush_nothing_of_the_audit_trail_but_their_own(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (database, connection):  # the whole trail is more than a busy machine reads in a second
            monkeypatch.setattr(module, "TIMEOUT_S", 60.0)
        named = [
            AuditEvent(at=1.0, event="operated", reason="drained"),
            AuditEvent(at=2.0, event="created", principal="api-key:alice"),
            AuditEvent(at=3.0, event="refused", principal="api-key:alice"),
        ]
        await backend.audit.record(named)
        for start in range(0, MAX_AUDIT_EVENTS + 1_000, 1_000):
            many = [AuditEvent(at=4.0 + start, event="refused", client="192.0.2.1", count=7)] * 500
            await backend.audit.record(many + [AuditEvent(at=4.0, event="expired", principal="anonymous")] * 500)
        kept = await backend.audit.recent(2 * MAX_AUDIT_EVENTS)
        assert kept[-3:] == named[::-1]
        assert self.most_events <= len(kept) - 3 < self.most_events + 200  # Redis cuts in blocks
        assert kept[0].count == 7 and kept[0].client == "192.0.2.1"


class TestMemory(Contract):
    most_events = 2_000

    @pytest.fixture
    def backend(self, clock: FakeClock) -> Backend:
        return MemoryBackend(clock=clock)


class TestMemoryEvents(EventLogContract):
    @pytest.fixture
    def log(self) -> EventLog:
        return MemoryEventLog(**LIMITS)


class TestSqlite(Contract):
    @pytest.fixture
    async def backend(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Backend]:
        backend = SqliteBackend(tmp_path / "sessions.db", clock=clock)
        await backend.open()
        yield backend
        await backend.close()


class TestSqliteEvents(EventLogContract):
    @pytest.fixture
    async def log(self, tmp_path: Path) -> AsyncIterator[EventLog]:
        backend = SqliteBackend(tmp_path / "sessions.db")
        await backend.open()
        yield SqliteEventLog(backend._database, backend.bus, FakeClock(), **LIMITS)
        await backend.close()

    async def test_a_flood_takes_few_statements(self, log: SqliteEventLog) -> None:
        """Each waits for the interpreter's lock, which a busy loop gives away slowly."""
        reserved = await log.reserve("s", 512)
        assert reserved is not None
        entries = [Entry(reserved.first + n, "a", b"x" * 100, nonce=reserved.nonce) for n in range(512)]
        await log.write({"s": entries[:256]})
        statements: list[str] = []
        await log.database.run(lambda db: db.set_trace_callback(statements.append))
        await log.write({"s": entries[256:]})
        await log.database.run(lambda db: db.set_trace_callback(None))
        assert len([text for text in statements if text.startswith(("INSERT", "DELETE"))]) == 256 // 64 + 1
        assert len(statements) < 20
        kept = await log.kept("s", "a", id_of_event(reserved.nonce, reserved.first))
        assert [event.id for event in kept] == [id_of_event(reserved.nonce, one.number) for one in entries[-10:]]

    @given(sizes=st.lists(st.integers(0, 1_200), min_size=1, max_size=40), at_once=st.integers(1, 40))
    @settings(max_examples=30, deadline=None)
    def test_what_is_dropped_is_what_memory_drops(self, sizes: list[int], at_once: int) -> None:
        async def kept(log: EventLog) -> list[int]:
            reserved = await log.reserve("s", len(sizes) + 1)
            assert reserved is not None
            numbers = range(reserved.first, reserved.first + len(sizes))
            entries = [
                Entry(number, "a", b"x" * size, nonce=reserved.nonce)
                for number, size in zip(numbers, sizes, strict=True)
            ]
            for at in range(0, len(entries), at_once):
                await log.write({"s": entries[at : at + at_once]})
            found = await log.kept("s", "a", id_of_event(reserved.nonce, reserved.first - 1))
            return [len(event.frame) for event in found]

        async def both() -> tuple[list[int], list[int]]:
            with tempfile.TemporaryDirectory() as folder:
                backend = SqliteBackend(Path(folder, "sessions.db"))
                await backend.open()
                ours = await kept(SqliteEventLog(backend._database, backend.bus, FakeClock(), **LIMITS))
                await backend.close()
            return ours, await kept(MemoryEventLog(**LIMITS))

        ours, theirs = asyncio.run(both())
        assert ours == theirs


@pytest.mark.parametrize("table", ["users (id TEXT)", "sessions (id TEXT, cookie TEXT)"])
async def test_a_sqlite_file_of_another_program_is_refused_and_left_as_it_is(table: str, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript(f"CREATE TABLE {table}; PRAGMA user_version=1;")
    text = tmp_path / "notes.txt"
    text.write_text("A text of more than a hundred bytes, which no program has written as a database. " * 2)
    before = path.read_bytes(), text.read_bytes()
    for file, why in ((path, "belongs to another program"), (text, "file is not a database")):
        with pytest.raises(StoreError, match=why):
            await SqliteBackend(file).open()
        with pytest.raises(StoreError, match=why):
            SqliteBackend(file).own_keys()
    assert (path.read_bytes(), text.read_bytes()) == before
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "other.db"]


async def test_a_missing_sqlite_file_is_made_only_for_those_who_want_it(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing):
        await SqliteBackend(tmp_path / "sessions.db", create=False).open()
    with pytest.raises(StoreError, match="there is no folder"):
        await SqliteBackend(tmp_path / "none" / "sessions.db", create=False).open()
    assert os.listdir(tmp_path) == []
    for create in (True, False):
        backend = SqliteBackend(tmp_path / "sessions.db", create=create)
        await backend.open()
        await backend.close()


@requirement("rep.redis")
class TestRedis(Contract):
    @pytest.fixture
    async def backend(self, clock: FakeClock, redis_server: RunningRedis) -> AsyncIterator[Backend]:
        redis_server.client().flushall()
        backend = RedisBackend(redis_server.url, clock=clock)
        await backend.open()
        yield backend
        await backend.close()

    async def test_every_key_has_a_deadline(
        self, backend: RedisBackend, clock: FakeClock, redis_server: RunningRedis
    ) -> None:
        sessions = [await backend.sessions.create(a_session(clock), alias=f"alias-{n}") for n in range(5)]
        for session in sessions:
            await backend.state.set(session.id, "k", b"1")
            await backend.state.increment(session.id, "n", 1)
            await backend.events.append(session.id, "one", b"frame")
            await backend.events.delivered(session.id, "two", await backend.events.append(session.id, "two", b"f"))
            await backend.sessions.resume(session.id, session.principal)
        await backend.directory.renew_lease("r1", "here", 5.0)
        epoch = await backend.directory.claim(sessions[0].id, "r1", epoch=0)
        assert epoch is not None
        await backend.directory.claim(sessions[0].id, "r2", epoch=epoch)
        await backend.sessions.end(sessions[1].id)
        await backend.audit.record([])
        await backend.timelines.add(
            [TimelinePart(head=TimelineHead(session="abcd"), entries=[TimelineEntry(1.0, "call")])]
        )
        await backend.history.write(60, HistoryRecord(60, "r1", b"x"))
        client = redis_server.client()
        names = client.keys("*")
        assert len(names) > 25
        assert {name for name in names if client.ttl(name) < 0} == set()
        own = [n for n in names if sessions[2].id.encode() in n]
        assert {round(client.ttl(name) / 100) for name in own} == {1}, "all keys of a session go together, after 100 s"


class TestRedisEvents(EventLogContract):
    @pytest.fixture
    async def log(self, redis_server: RunningRedis) -> AsyncIterator[EventLog]:
        redis_server.client().flushall()
        backend = RedisBackend(redis_server.url)
        await backend.open()
        yield RedisEventLog(backend.commands, backend.bus, **LIMITS)
        await backend.close()

    async def test_ids_stay_valid_when_the_server_has_lost_the_log(
        self, log: EventLog, redis_server: RunningRedis
    ) -> None:
        for is_followed in (False, True):
            reserved = await log.reserve("s", 10, 1)
            assert reserved is not None
            redis_server.client().flushall()
            if is_followed:  # which creates the log again
                with pytest.raises(UnknownEvent):
                    await log.kept("s", "one", id_of_event(*reserved))
            await log.write({"s": [Entry(reserved.first, "one", b"a", nonce=reserved.nonce)]})
            assert await log.stream_of("s", id_of_event(*reserved)) == "one"

    async def test_numbers_are_not_given_again_after_a_failover_to_a_replica_that_lagged(
        self, log: EventLog, redis_server: RunningRedis
    ) -> None:
        reserved = await log.reserve("s", 10)
        assert reserved is not None
        redis_server.client().hset(keys.of_session("s")[3], "last", 0)
        await log.write({"s": [Entry(reserved.first + 5, "one", b"a", nonce=reserved.nonce)]})
        again = await log.reserve("s", 10)
        assert again is not None and again.first > reserved.first + 5

    async def test_a_follower_in_another_process_hears_too(self, log: EventLog, redis_server: RunningRedis) -> None:
        elsewhere = RedisBackend(redis_server.url)
        first = await log.append("s", "one", b"a")
        reading = asyncio.create_task(self._read(elsewhere.events, "s", "one", first))
        await log.append("s", "one", b"b")
        await log.finish("s", "one")
        assert await reading == [b"b"]
        await elsewhere.close()

    async def test_each_session_of_a_batch_has_its_own_outcome(self, log: EventLog, redis_server: RunningRedis) -> None:
        client = redis_server.client()
        entries = {}
        for session in ("s", "spoiled", "t"):
            reserved = await log.reserve(session, 2)
            assert reserved is not None
            entries[session] = [Entry(reserved.first, "one", b"a", nonce=reserved.nonce)]
        client.set(keys.of_session("spoiled")[2], "no stream")
        for _ in range(2):
            client.script_flush()  # as after a restart
            failures = await log.write(entries)
            assert failures.keys() == {"spoiled"} and "WRONGTYPE" in str(failures["spoiled"])
            assert not isinstance(failures["spoiled"], StoreUnavailable), "no further try would succeed"
        assert [*await log.unfinished("s"), *await log.unfinished("t")] == ["one", "one"]

    async def test_every_refusal_of_a_batch_is_heard(self, log: EventLog, redis_server: RunningRedis) -> None:
        entries = {f"s{n}": [Entry(1, "one", b"a")] for n in range(20)}
        unheard: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context["message"]))
        client = redis_server.client()
        client.config_set("maxmemory", 1)
        try:
            failures = await log.write(entries)
        finally:
            client.config_set("maxmemory", 0)
        assert failures.keys() == entries.keys()
        assert {type(failure) for failure in failures.values()} == {StoreUnavailable}, "there will be room again"
        gc.collect()
        await asyncio.sleep(0)
        assert unheard == []
