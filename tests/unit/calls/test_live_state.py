"""The life of a session on one replica."""

from itertools import product
from typing import cast

import pytest

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.calls.live_state import GONE, LIVE, LiveEvent, LiveState
from gateway.calls.state_table import IllegalStep, step
from gateway.errors import CANCELLED
from session_store import EventLog, StoreUnavailable
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.reply_queue import ReplyQueue

pytestmark = pytest.mark.anyio


class Events:
    """Has a stream that an earlier process left open. `fails`: the store does not answer."""

    def __init__(self) -> None:
        self.fails = False
        self.finished: list[str] = []

    async def unfinished(self, session_id: str) -> dict[str, bool]:
        if self.fails:
            raise StoreUnavailable
        return {"1/7/files/3": False, "1/8/files/4": True}

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        return "1"

    async def finish(self, session_id: str, stream: str) -> None:
        self.finished.append(stream)

    async def drop(self, session_id: str) -> None: ...

    async def release(self, session_id: str) -> None: ...


def live_session(events: Events, era: str = "legacy") -> LiveSession:
    return LiveSession(a_session(FakeClock(), era=era), cast("EventLog", events))


@pytest.mark.parametrize(("state", "event"), list(product(LiveState, LiveEvent)))
def test_a_step_is_in_the_table_or_an_error(state: LiveState, event: LiveEvent) -> None:
    if event in LIVE[state]:
        assert step(LIVE, state, event) is LIVE[state][event]
    else:
        with pytest.raises(IllegalStep):
            step(LIVE, state, event)


def test_a_session_that_has_ended_lives_nowhere_else() -> None:
    for state in LiveState:
        assert step(LIVE, state, LiveEvent.END) is LiveState.ENDED
    assert set(LIVE[LiveState.ENDED].values()) == {LiveState.ENDED}


async def test_streams_of_an_earlier_process_are_ended_once() -> None:
    events = Events()
    live = live_session(events)
    assert not live.recovered
    await live.recover()
    await live.recover()
    assert live.recovered and events.finished == ["1/7/files/3"]


async def test_a_recovery_that_the_store_has_failed_is_tried_again() -> None:
    events = Events()
    live, events.fails = live_session(events), True
    with pytest.raises(StoreUnavailable):
        await live.recover()
    assert not live.recovered
    events.fails = False
    await live.recover()
    assert live.recovered


def test_a_session_without_earlier_streams_is_live_at_once() -> None:
    assert live_session(Events(), "modern").state is LiveState.LIVE
    assert LiveSessions(cast("EventLog", Events())).of_new(a_session(FakeClock())).state is LiveState.LIVE


async def test_a_drained_session_ends_its_streams_and_takes_calls() -> None:
    live = live_session(Events(), "modern")
    waiting = live.draining
    live.drain()
    live.drain()
    assert waiting.is_set() and live.draining.is_set() and not live.ended


@pytest.mark.parametrize(("over", "state"), [(True, LiveState.ENDED), (False, LiveState.ELSEWHERE)])
async def test_a_closed_session_has_ended_or_lives_elsewhere(over: bool, state: LiveState) -> None:
    live = live_session(Events())
    await live.close(over=over)
    await live.close(over=over)
    assert live.state is state and live.state in GONE and live.ended and live.is_elsewhere is not over
    assert not live.send_to_client(b"{}")


@requirement("spec.cold-listen")
async def test_a_stream_that_no_single_server_has_ends_with_its_session() -> None:
    live = live_session(Events(), "modern")
    stream = Exchange(method="subscriptions/listen", client_id=8, live=live, replies=ReplyQueue())
    live.exchange_begins(stream)
    await live.close()
    frame = await stream.replies.next()
    assert frame is not None and frame.final and frame.error_code == CANCELLED
