"""What a gateway does for tasks second by second goes on after any failure."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.serving import lifecycle
from gateway.serving.lifecycle import Lifecycle
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
