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


@pytest.mark.anyio
@requirement("wall.memory")
async def test_keys_that_nobody_adds_to_are_forgotten() -> None:
    clock = FakeClock()
    quotas = MemoryQuotas(clock)
    for number in range(1_000):
        assert await quotas.hold(f"k{number}", "n", 1, for_s=10.0) == []
    clock.pass_time(60.0)
    await quotas.hold("last", "n", 1, for_s=10.0)
    assert len(quotas._held) == 1


@pytest.mark.anyio
async def test_a_full_key_names_its_holders_until_one_is_given_back() -> None:
    quotas = MemoryQuotas(FakeClock())
    assert await quotas.hold("k", "b", 2, for_s=10.0) == await quotas.hold("k", "a", 2, for_s=10.0) == []
    assert await quotas.hold("k", "c", 2, for_s=10.0) == ["a", "b"]
    assert await quotas.hold("k", "a", 2, for_s=10.0) == [], "holding again is harmless"
    await quotas.give_back("k", ["a", "unknown"])
    assert await quotas.hold("k", "c", 2, for_s=10.0) == []


@pytest.mark.anyio
@requirement("wall.memory")
async def test_rows_of_keys_that_nobody_adds_to_are_deleted(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", FakeClock(time())
    for has_begun in (False, True):
        backend = SqliteBackend(path, clock=clock)
        await backend.open()
        try:
            with contextlib.closing(sqlite3.connect(path)) as db:
                if has_begun:  # what an earlier version has left, which knew no times
                    assert db.execute("SELECT count(*) FROM quota_times").fetchone() == (101,)
                    clock.pass_time(300_000.0)
                for number in range(100 - 99 * has_begun):
                    assert await backend.quotas.hold(f"k{number}", "n", 1, for_s=10.0) == []
                if has_begun:
                    for table in ("quotas", "quota_times"):
                        assert db.execute(f"SELECT key FROM {table}").fetchall() == [("k0",)]
                else:
                    with db:
                        db.execute("INSERT INTO quotas VALUES ('earlier', 'n')")
        finally:
            await backend.close()
