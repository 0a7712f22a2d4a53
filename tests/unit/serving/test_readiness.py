"""What a probe asks of the store, and what it is told from memory."""

import pytest

from gateway.serving.readiness import KNOWN_S, Readiness
from session_store import StoreUnavailable
from session_store.testing import FakeClock
from tests.requirements import requirement


@requirement("wall.ready")
@pytest.mark.anyio
async def test_one_write_tells_all_who_ask_at_once_and_a_process_that_does_not_run_asks_nobody() -> None:
    runs, asked, fails = False, 0, False

    async def try_write() -> None:
        nonlocal asked
        asked += 1
        if fails:
            raise StoreUnavailable("full")

    assert not await Readiness(lambda: runs, try_write).is_ready()
    assert asked == 0
    runs = True
    readiness = Readiness(lambda: runs, try_write)
    assert all([await readiness.is_ready() for _ in range(100)]) and asked == 1
    runs = False
    assert not await readiness.is_ready(), "at once"
    answered = False
    runs = True
    readiness = Readiness(lambda: runs, try_write, lambda: answered)
    asked = 0
    assert not await readiness.is_ready() and asked == 0, "no server has answered yet"
    answered = True
    assert await readiness.is_ready()
    runs = fails = True
    assert not await Readiness(lambda: runs, try_write).is_ready()


@requirement("wall.ready", "rep.store-down")
@pytest.mark.anyio
@pytest.mark.parametrize("is_shared", [True, False])
async def test_who_has_reached_a_shared_store_stays_ready_without_it(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("gateway.serving.readiness.monotonic", clock)
    fails = True

    async def try_write() -> None:
        if fails:
            raise StoreUnavailable("away")

    runs = True
    readiness = Readiness(lambda: runs, try_write, is_shared=is_shared)
    assert not await readiness.is_ready() and not readiness.store_is_away, "another replica may reach it"
    fails = False
    clock.pass_time(KNOWN_S)
    assert await readiness.is_ready() and not readiness.store_is_away
    fails = True
    clock.pass_time(KNOWN_S)
    assert await readiness.is_ready() is is_shared and readiness.store_is_away
    runs = False
    assert not await readiness.is_ready(), "it drains, or its peers do not find it"
