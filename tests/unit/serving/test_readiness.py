"""What a probe asks of the store, and what it is told from memory."""

import pytest

from gateway.serving.readiness import KNOWN_S, Readiness
from session_store import StoreUnavailable
from session_store.testing import FakeClock
from tests.requirements import requirement

pytestmark = [pytest.mark.anyio, requirement("wall.ready")]


class Probed(Readiness):
    """The readiness of a process that runs, whose servers have answered, and whose store is there, until it is said."""

    runs = has_answered = True
    fails = False
    writes = 0

    def __init__(self, *, is_shared: bool = False) -> None:
        super().__init__(lambda: self.runs, self.write, lambda: self.has_answered, is_shared=is_shared)

    async def write(self) -> None:
        self.writes += 1
        if self.fails:
            raise StoreUnavailable("away")


async def test_one_write_tells_all_who_ask_at_once() -> None:
    process = Probed()
    assert all([await process.is_ready() for _ in range(100)]) and process.writes == 1
    process.runs = False
    assert not await process.is_ready(), "at once"


@pytest.mark.parametrize(
    ("fact", "value", "writes"), [("runs", False, 0), ("has_answered", False, 0), ("fails", True, 1)]
)
async def test_a_process_is_ready_once_nothing_is_missing(
    fact: str, value: bool, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, clock = Probed(), FakeClock()
    monkeypatch.setattr("gateway.serving.readiness.monotonic", clock)
    setattr(process, fact, value)
    assert not await process.is_ready() and process.writes == writes
    setattr(process, fact, not value)
    clock.pass_time(KNOWN_S)
    assert await process.is_ready()


@requirement("rep.store-down")
@pytest.mark.parametrize("is_shared", [True, False])
async def test_who_has_reached_a_shared_store_stays_ready_without_it(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, clock = Probed(is_shared=is_shared), FakeClock()
    monkeypatch.setattr("gateway.serving.readiness.monotonic", clock)
    for fails, is_ready, is_away in ((True, False, False), (False, True, False), (True, is_shared, True)):
        process.fails = fails
        assert (await process.is_ready(), process.store_is_away) == (is_ready, is_away)
        clock.pass_time(KNOWN_S)
    process.runs = False
    assert not await process.is_ready(), "it drains, or its peers do not find it"
