"""Work that concurrent callers share."""

import asyncio

from session_store.redis.connection import SharedRun


async def test_concurrent_callers_share_a_run_and_a_cancelled_one_does_not_end_it() -> None:
    runs, go = 0, asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        await go.wait()

    shared = SharedRun(work)
    callers = [asyncio.ensure_future(shared.done()) for _ in range(3)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*callers[1:])
    assert runs == 1 and callers[0].cancelled()
    await shared.done()
    assert runs == 2, "what comes later gets a run of its own"


async def test_every_caller_gets_the_failure() -> None:
    async def work() -> None:
        raise LookupError("no")

    shared = SharedRun(work)
    outcomes = await asyncio.gather(shared.done(), shared.done(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LookupError, LookupError]
