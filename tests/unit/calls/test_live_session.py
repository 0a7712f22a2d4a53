"""The life of a session on one replica."""

from typing import cast

import pytest

from gateway.calls.lifecycles import GONE, LiveState
from gateway.calls.live_session import LiveSessions
from gateway.errors import CANCELLED
from session_store import EventLog, StoreUnavailable
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.fake_upstream import a_call, a_live
from tests.unit.calls.parts import Events

pytestmark = pytest.mark.anyio


async def test_streams_of_an_earlier_process_are_ended_once_the_store_answers() -> None:
    events = Events()
    live, events.fails = a_live(events), True
    await events.append(live.session.id, "1/7/files/3", b"")
    await events.keep(live.session.id, "1/8/files/4")
    with pytest.raises(StoreUnavailable):
        await live.recover()
    assert not live.recovered
    events.fails = False
    await live.recover()
    assert live.recovered and await events.unfinished(live.session.id) == {"1/8/files/4": True}
    assert live.lost is not None, "one call can be made again"
    events.fails = True
    await live.recover()
    assert live.recovered, "the store is not asked again"


def test_a_session_without_earlier_streams_is_live_at_once() -> None:
    assert a_live(Events(), era="modern").state is LiveState.LIVE
    assert LiveSessions(cast("EventLog", Events())).of_new(a_session(FakeClock())).state is LiveState.LIVE


async def test_a_drained_session_ends_its_streams_and_takes_calls() -> None:
    live = a_live(Events(), era="modern")
    waiting = live.draining
    live.drain()
    live.drain()
    assert waiting.is_set() and live.draining.is_set() and not live.ended


@pytest.mark.parametrize(("over", "state"), [(True, LiveState.ENDED), (False, LiveState.ELSEWHERE)])
async def test_a_closed_session_has_ended_or_lives_elsewhere(over: bool, state: LiveState) -> None:
    live = a_live(Events())
    await live.close(over=over)
    await live.close(over=over)
    assert live.state is state and live.state in GONE and live.ended and live.is_elsewhere is not over
    assert not live.send_to_client(b"{}")


@requirement("spec.cold-listen")
async def test_a_stream_that_no_single_server_has_ends_with_its_session() -> None:
    live = a_live(Events(), era="modern")
    stream = a_call(live, "subscriptions/listen")
    live.exchange_begins(stream)
    await live.close()
    frame = await stream.replies.next()
    assert frame is not None and frame.final and frame.error_code == CANCELLED
