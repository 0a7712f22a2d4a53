"""Expiring flags, quotas and rates of embedded stores."""

import contextlib
import sqlite3
from pathlib import Path
from time import time

from session_store.embedded.accounting import MemoryExpiringFlags, MemoryQuotas, MemoryRates
from session_store.sqlite import SqliteBackend
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.unit.store.parts import opened


async def test_of_too_many_marks_those_are_dropped_that_were_not_used_for_longest() -> None:
    flags = MemoryExpiringFlags(FakeClock())
    await flags.set("operator/olga", 1_000.0)
    for number in range(20_000):
        await flags.set(f"m{number}", 1_000.0)
        if number % 1_000 == 0:
            assert await flags.has("operator/olga"), "a flood of clients signs an operator out"
    assert [await flags.has(name) for name in ("operator/olga", "m10000", "m10001")] == [True, False, True]


@requirement("wall.memory")
async def test_keys_that_nobody_adds_to_are_forgotten() -> None:
    clock = FakeClock()
    quotas, rates = MemoryQuotas(clock), MemoryRates(clock)

    async def count(key: str) -> None:
        assert await quotas.hold(key, "n", 1, for_s=10.0) == [] and await rates.take(key, 10.0, 5) == 0.0

    for number in range(1_000):
        await count(f"k{number}")
    clock.pass_time(60.0)
    await count("last")
    assert len(quotas._held) == len(rates._due) == 1


@requirement("wall.memory")
async def test_rows_of_keys_that_nobody_adds_to_are_deleted(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", FakeClock(time())

    async def hold(*keys: str) -> None:
        for key in keys:
            assert await backend.quotas.hold(key, "n", 1, for_s=10.0) == []

    async with opened(SqliteBackend(path, clock=clock)) as backend:
        await hold(*(f"k{number}" for number in range(100)))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT INTO quotas VALUES ('earlier', 'n')")  # by an earlier version, which knew no times
        async with opened(SqliteBackend(path, clock=clock)) as backend:
            assert db.execute("SELECT count(*) FROM quota_times").fetchone() == (101,)
            clock.pass_time(300_000.0)
            await hold("k0")
            for table in ("quotas", "quota_times"):
                assert db.execute(f"SELECT key FROM {table}").fetchall() == [("k0",)]
