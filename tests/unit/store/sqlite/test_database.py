"""What a failure of SQLite says of the transaction."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from session_store import StoreUnavailable
from session_store.sqlite import database
from session_store.sqlite.database import Database
from tests.requirements import requirement

pytestmark = requirement("app.outage")


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(tmp_path / "sessions.db")
    await opened.open(exclusive=False)
    yield opened
    await opened.close()


async def test_only_what_had_begun_in_time_may_have_taken_effect(
    file: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, called = threading.Event(), threading.Event(), list[str]()

    def slow(_: sqlite3.Connection) -> None:
        began.set()
        go_on.wait(60)
        called.append("first")

    monkeypatch.setattr(database, "TIMEOUT_S", 0.0)
    first = asyncio.create_task(file.run(slow))
    await asyncio.sleep(0)
    assert began.wait(60)  # the event loop stands still: the time is over when it goes on
    second = asyncio.create_task(file.run(lambda _: called.append("second")))
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert [getattr(error, "may_have_taken_effect", None) for error in outcomes] == [True, False]
    go_on.set()
    monkeypatch.setattr(database, "TIMEOUT_S", 60.0)
    await file.run(lambda _: called.append("third"))
    assert called == ["first", "third"]


async def test_what_was_rolled_back_has_no_effect_and_a_failed_commit_may_have(file: Database) -> None:
    def broken(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO quotas VALUES ('key', 'name')")
        db.execute("no SQL")

    def dangling(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA defer_foreign_keys = ON")
        db.execute("INSERT INTO state VALUES ('no session', 'key', '1')")

    for work, may in ((broken, False), (dangling, True)):
        with pytest.raises(StoreUnavailable) as failed:
            await file.run(work)
        assert failed.value.may_have_taken_effect is may
    assert await file.run(lambda db: db.execute("SELECT * FROM quotas").fetchall()) == []


async def test_a_file_that_is_closed_or_does_not_keep_up_changes_nothing(
    file: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(database, "_MOST_WAITING", 0)
    for refusing in (file, Database(tmp_path / "other.db")):
        with pytest.raises(StoreUnavailable) as refused:
            await refusing.run(lambda _: None)
        assert not refused.value.may_have_taken_effect
