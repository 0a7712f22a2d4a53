"""What operators find of the last day."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.admin.insights import Insights
from gateway.admin.operators import PastQuery
from gateway.admin.replicas import Replicas
from session_store import TimelineEntry, TimelineHead, TimelinePart
from session_store.ports.timelines import MAX_SESSIONS
from session_store.sqlite import SqliteBackend
from session_store.testing import FakeClock
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(tmp_path / "store.db", clock=FakeClock())
    await backend.open()
    yield backend
    await backend.close()


def used(session: str, client: str) -> TimelinePart:
    return TimelinePart(head=TimelineHead(session=session, client=client), entries=[TimelineEntry(1.0, "call")])


@requirement("ops.timeline")
async def test_a_session_behind_all_others_is_found(backend: SqliteBackend) -> None:
    insights = Insights(backend, Replicas(backend), FakeClock())
    await backend.timelines.add([used("past", "past-agent")])
    crowd = [used(f"c{number:07}", "crowd") for number in range(MAX_SESSIONS - 1)]
    for begin in range(0, len(crowd), 500):  # no write may take longer than the store waits for one
        await backend.timelines.add(crowd[begin : begin + 500])

    [found] = await insights.past_sessions(PastQuery(client="past-agent"))

    assert found.session == "past"
    assert await insights.past_sessions(PastQuery(client="nobody")) == []
    assert len(await insights.past_sessions(PastQuery(limit=7))) == 7
