"""`transports.background_tasks`: background tasks of one owner."""

import asyncio
import logging
from contextlib import nullcontext

import pytest

from transports.background_tasks import Tasks, TasksClosed, first_of


class Work:
    """A run that waits for the test, and counts how often it was started."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.started = 0
        self.cancelled = 0
        self.error: Exception | None = None

    async def run(self) -> int:
        self.started += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return self.started


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_failure_that_nobody_awaits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tasks, work = Tasks("the test"), Work()
    work.error = ValueError("broken")
    work.may_end.set()
    tasks.spawn(work.run())
    tasks.start("key", work.run)
    with caplog.at_level(logging.ERROR):
        await tasks.settled()
        await turns()
    assert [record.getMessage() for record in caplog.records] == ["the test: task Work.run failed"] * 2
    assert all(record.exc_info and record.exc_info[1] is work.error for record in caplog.records)


async def test_concurrent_callers_share_one_run_and_one_that_is_cancelled_leaves_it_to_the_others() -> None:
    tasks, work = Tasks("test"), Work()
    impatient, *callers = [asyncio.create_task(tasks.share("key", work.run)) for _ in range(3)]
    await turns()
    assert tasks.running("key") is not None and tasks.running("other") is None
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    assert not work.cancelled
    work.may_end.set()
    assert await asyncio.gather(*callers) == [1, 1]
    assert tasks.running("key") is None
    assert await tasks.share("key", work.run) == 2


async def test_a_failed_run_reaches_its_callers_and_is_not_remembered(caplog: pytest.LogCaptureFixture) -> None:
    tasks, work = Tasks("test"), Work()
    work.error = ValueError("broken")
    work.may_end.set()
    outcomes = await asyncio.gather(*(tasks.share("key", work.run) for _ in range(2)), return_exceptions=True)
    assert outcomes == [work.error, work.error] and not caplog.records
    work.error = None
    assert await tasks.share("key", work.run) == 2


async def test_close_cancels_what_runs_and_what_comes_later_never_starts() -> None:
    tasks, work, late = Tasks("test"), Work(), Work()
    caller = asyncio.create_task(tasks.share("key", work.run))
    spawned = tasks.spawn(work.run())
    await turns()
    await tasks.close()
    with pytest.raises(TasksClosed):
        await caller
    assert work.cancelled == 2 and spawned.cancelled()
    task = tasks.spawn(late.run())
    with pytest.raises(TasksClosed):
        await tasks.share("key", late.run)
    assert task.cancelled() and late.started == 0


async def test_close_gives_tasks_time_to_end() -> None:
    tasks, quick, slow = Tasks("test"), Work(), Work()
    task = tasks.spawn(quick.run())
    tasks.spawn(slow.run())
    await turns()
    asyncio.get_running_loop().call_soon(quick.may_end.set)
    await tasks.close(wait_s=0.05)
    assert task.result() == 1 and slow.cancelled == 1
    tasks = Tasks("test")
    await asyncio.wait_for(tasks.spawn(tasks.close()), 1)  # a task may close its owner


async def test_a_task_that_ignores_its_cancellation_does_not_hold_close(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transports.background_tasks.CANCEL_S", 0.02)
    tasks, may_end = Tasks("test"), asyncio.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    task = tasks.spawn(stubborn())
    await turns()
    await tasks.close()
    assert "ignores its cancellation" in caplog.text
    may_end.set()
    await task


async def test_the_first_work_that_ends_or_fails_ends_the_others() -> None:
    for error, outcome in ((None, nullcontext()), (LookupError("no"), pytest.RaisesGroup(LookupError))):
        first, second = Work(), Work()
        first.may_end.set()
        first.error = error
        with outcome:
            await first_of(first.run(), second.run())
        assert second.started == second.cancelled == 1


async def test_a_cancelled_caller_ends_every_work() -> None:
    works = [Work(), Work()]
    caller = asyncio.ensure_future(first_of(*(work.run() for work in works)))
    await turns()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert caller.cancelled() and [work.cancelled for work in works] == [1, 1]
