"""`gateway.admin.session_list` and lists that have them: sessions of gateways that have ended."""

import asyncio
from typing import Any

import pytest

from gateway.admin import session_list
from gateway.admin.operators import SessionFilter, SessionQuery
from gateway.admin.reports import SessionPart
from session_store import StoreUnavailable
from session_store.session import redact
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.unit.admin.test_operations import FakeReplicas, Parts

pytestmark = [pytest.mark.anyio, requirement("ops.session-list")]


@pytest.fixture
def durable(monkeypatch: pytest.MonkeyPatch) -> Parts:
    """A store that outlives gateways, and one gateway that serves one of its sessions. The first list waits."""
    monkeypatch.setattr(session_list, "_FIRST_S", 10.0)
    monkeypatch.setattr(session_list, "_REST", 0)
    replicas = FakeReplicas(SessionPart(id="held-session", state="busy", calls=2, in_flight=1))
    parts = Parts(replicas)
    parts.backend.is_durable = True
    return parts


async def names(parts: Parts, query: SessionQuery) -> list[tuple[str, str]]:
    return [(row.session, row.state) for row in (await parts.operations.sessions(query)).sessions]


async def test_what_no_replica_serves_is_listed_and_counted(durable: Parts) -> None:
    await durable.holding("held-session", "left-session")
    page = await durable.operations.sessions(SessionQuery(sort="calls"))
    assert [(row.session, row.state) for row in page.sessions] == [("held-ses", "busy"), ("left-ses", "detached")]
    assert page.totals is not None and page.totals.states == {"busy": 1, "detached": 1}
    only = SessionQuery(which=SessionFilter(state="detached"))
    assert await names(durable, only) == [("left-ses", "detached")]
    await durable.backend.sessions.end("left-session")
    assert await names(durable, only) == [], "one that has ended since is left out"


async def test_a_session_that_is_served_again_is_listed_once(durable: Parts) -> None:
    await durable.holding("left-session")
    query = SessionQuery(sort="created")
    assert await names(durable, query) == [("left-ses", "detached")]
    durable.replicas._parts = (SessionPart(id="left-session", calls=1),)
    assert await names(durable, query) == [("left-ses", "idle")]


async def test_of_many_the_last_used_are_known(durable: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_list, "_KEPT", 3)
    monkeypatch.setattr(session_list, "_DETACHED_AT_ONCE", 2)
    for n in range(8):
        await durable.store(a_session(FakeClock(), id=f"{n}-session", used_at=durable.clock() - n))
    listed = await names(durable, SessionQuery(sort="used"))
    assert [name for name, _ in listed] == [redact(f"{n}-session") for n in range(3)]


async def test_a_store_that_lives_as_long_as_its_gateway_is_not_read() -> None:
    parts = Parts(FakeReplicas())
    await parts.holding("left-session")
    assert await names(parts, SessionQuery(sort="used")) == []


async def test_replicas_that_do_not_answer_are_counted() -> None:
    replicas = FakeReplicas()
    replicas.unanswered = 1
    for query in (SessionQuery(sort="used"), SessionQuery()):
        assert (await Parts(replicas).operations.sessions(query)).unanswered == 1


@pytest.mark.parametrize("answer", [1, StoreUnavailable("gone")], ids=["a silent replica", "no store"])
async def test_what_may_be_served_elsewhere_is_not_listed_as_detached(
    durable: Parts, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serves(session_ids: list[str]) -> list[str]:
        if isinstance(answer, Exception):
            raise answer
        durable.replicas.unanswered = answer
        return []

    await durable.holding("left-session")
    monkeypatch.setattr(durable.replicas, "answer_serves", serves)
    page = await durable.operations.sessions(SessionQuery(sort="used"))
    assert (page.sessions, page.is_reading) == ([], True)


async def test_a_list_says_that_the_store_is_still_being_read_and_shows_what_was_found(
    durable: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_list, "_DETACHED_AT_ONCE", 1)
    await durable.holding("a-session", "b-session")
    serves, may_go_on = durable.replicas.answer_serves, asyncio.Event()

    async def slow(session_ids: list[str]) -> list[str]:
        if session_ids == ["b-session"]:
            await may_go_on.wait()
        found: list[str] = await serves(session_ids)
        return found

    monkeypatch.setattr(durable.replicas, "answer_serves", slow)
    monkeypatch.setattr(session_list, "_FIRST_S", 0)
    query = SessionQuery(sort="used")
    assert (await durable.operations.sessions(query)).is_reading
    for _ in range(20):
        await asyncio.sleep(0)
    page = await durable.operations.sessions(query)
    assert page.is_reading and [row.session for row in page.sessions] == [redact("a-session")]
    may_go_on.set()
    for _ in range(20):
        await asyncio.sleep(0)
    page = await durable.operations.sessions(query)
    assert not page.is_reading and len(page.sessions) == 2
