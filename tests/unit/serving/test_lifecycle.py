"""What a gateway does second by second goes on after any failure, and what is told of a store that is away."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.serving import lifecycle
from gateway.serving.lifecycle import Lifecycle, StoreWatch
from session_store import MemoryBackend, StoreUnavailable
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


@requirement("task.durable")
async def test_no_failure_ends_the_upkeep_of_tasks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "_TASKS_EVERY_S", 0.001)
    done = asyncio.Event()
    calls = {"renew": 0, "sweep": 0}

    def count(what: str) -> None:
        calls[what] += 1
        if min(calls.values()) >= 3:
            done.set()
        raise msgspec.ValidationError(what)

    async def sweep() -> None:
        count("sweep")

    tasks = SimpleNamespace(table=SimpleNamespace(renew=lambda: count("renew")), recovery=SimpleNamespace(sweep=sweep))
    settings = SimpleNamespace(gateway=SimpleNamespace(shortest_ttl_s=60.0, store="memory://"))
    foundation = SimpleNamespace(settings=settings, backend=None)
    parts: Any = SimpleNamespace(http=SimpleNamespace(tasks=tasks), foundation=foundation)
    life = Lifecycle(parts)
    running = [asyncio.create_task(life._renew_tasks()), asyncio.create_task(life._sweep_tasks())]
    try:
        async with asyncio.timeout(10):
            await done.wait()
        assert not any(task.done() for task in running)
        assert len([record for record in caplog.records if "cannot be" in record.message]) == 2, "once each"
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Flaky(MemoryBackend):
    is_away = True

    async def ping(self) -> None:
        if self.is_away:
            raise StoreUnavailable("connection refused")


@requirement("first.store")
async def test_a_store_that_is_away_is_named_once_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    backend = Flaky()
    watch = StoreWatch(backend, "redis://me:secret@redis.example:6379/0")
    await watch.look()
    await watch.look()
    [said] = caplog.messages
    assert said.startswith("the session store redis://…@redis.example:6379/0 does not answer: connection refused;")
    assert "503" in said and watch.fault == "connection refused"
    backend.is_away = False
    await watch.look()
    assert caplog.messages[1:] == ["the session store redis://…@redis.example:6379/0 answers again"]
    assert not watch.fault
