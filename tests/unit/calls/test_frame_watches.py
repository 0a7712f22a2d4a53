"""Sessions that are watched: a few at a time, and each for a while."""

import asyncio

import pytest

from gateway.calls import frame_watches
from gateway.calls.frame_watches import MOST_WATCHED, FrameWatches
from gateway.calls.live_session import LiveSession, LiveSessions
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement

pytestmark = [pytest.mark.anyio, requirement("ops.frames")]


def sessions(count: int) -> list[LiveSession]:
    live = LiveSessions(MemoryBackend().events)
    return [live.of_new(a_session(FakeClock(), id=f"session-{number}")) for number in range(count)]


async def test_a_few_are_watched_and_one_that_has_ended_makes_room() -> None:
    watches, live = FrameWatches(), sessions(MOST_WATCHED + 1)
    assert [watches.start(one, "ann") for one in live] == [True] * MOST_WATCHED + [False]
    assert len(list(watches)) == MOST_WATCHED and live[-1].frames is None
    seen = live[0].frames
    assert watches.start(live[0], "bob") and live[0].frames is seen and seen is not None and seen.by == "bob"
    await live[1].close()
    assert watches.start(live[-1], "ann") and live[-1].frames is not None
    for one in live:
        watches.stop(one)
    assert list(watches) == [] and all(one.frames is None for one in live)


async def test_a_watch_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_watches, "WATCHED_S", 0.0)
    watches, [live] = FrameWatches(), sessions(1)
    assert watches.start(live, "ann") and live.frames is not None
    for _ in range(3):
        await asyncio.sleep(0)
    assert live.frames is None and list(watches) == []
