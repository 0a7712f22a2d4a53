"""Quotas of embedded stores."""

import contextlib
import sqlite3
from pathlib import Path
from time import time

import pytest

from session_store.embedded.quotas import MemoryQuotas
from session_store.sqlite import SqliteBackend
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.unit.store.parts import opened

pytestmark = pytest.mark.anyio


@requirement("wall.memory")
async def test_keys_that_nobody_adds_to_are_forgotten() -> None:
    clock = FakeClock()
    quotas = MemoryQuotas(clock)
    for number in range(1_000):
        assert await quotas.hold(f"k{number}", "n", 1, for_s=10.0) == []
    clock.pass_time(60.0)
    await quotas.hold("last", "n", 1, for_s=10.0)
    assert len(quotas._held) == 1


async def test_a_full_key_names_its_holders_until_one_is_given_back() -> None:
    quotas = MemoryQuotas(FakeClock())
    assert await quotas.hold("k", "b", 2, for_s=10.0) == await quotas.hold("k", "a", 2, for_s=10.0) == []
    assert await quotas.hold("k", "c", 2, for_s=10.0) == ["a", "b"]
    assert await quotas.hold("k", "a", 2, for_s=10.0) == [], "holding again is harmless"
    await quotas.give_back("k", ["a", "unknown"])
    assert await quotas.hold("k", "c", 2, for_s=10.0) == []


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
