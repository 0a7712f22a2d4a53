"""An app's own store of four methods, and what is made of it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from session_store import InvalidMetadata, InvalidState, SessionGone, StoreError, StoreUnavailable
from session_store.limits import MAX_VALUE_BYTES
from session_store.small_store import SmallBackend
from session_store.testing import ALICE, BOB, FakeClock, a_session
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


class Documents:
    """An app's store, as short as can be. Each method lets others run first, as a database would."""

    def __init__(self, compares: bool = True) -> None:
        self.kept: dict[str, bytes] = {}
        self.compares = compares
        self.ttl_s = 0.0

    async def get(self, session_id: str) -> bytes | None:
        await asyncio.sleep(0)
        return self.kept.get(session_id)

    async def create(self, session_id: str, document: bytes, ttl_s: float) -> None:
        await asyncio.sleep(0)
        self.kept[session_id], self.ttl_s = document, ttl_s

    async def save(self, session_id: str, document: bytes, ttl_s: float, replaces: bytes) -> bool:
        await asyncio.sleep(0)
        if session_id not in self.kept or (self.compares and self.kept[session_id] != replaces):
            return False
        self.kept[session_id], self.ttl_s = document, ttl_s
        return True

    async def delete(self, session_id: str) -> None:
        await asyncio.sleep(0)
        self.kept.pop(session_id, None)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@requirement("app.small-store")
async def test_sessions_and_state_are_what_they_are_in_other_stores(clock: FakeClock) -> None:
    documents = Documents()
    store = SmallBackend(documents, clock=clock)
    session = await store.sessions.create(a_session(clock))
    assert documents.ttl_s == 100.0
    assert await store.sessions.resume(session.id, BOB) is None
    clock.pass_time(50)
    resumed = await store.sessions.resume(session.id, ALICE)
    assert resumed is not None and resumed.used_at == clock() and documents.ttl_s == 100.0
    await store.state.set(session.id, "k", b'{"a":[1,"\xc3\xbc"]}')
    assert await store.state.get(session.id, "k") == b'{"a":[1,"\xc3\xbc"]}'
    assert await store.state.compare_and_set(session.id, "n", None, b"1")
    assert await store.state.increment(session.id, "n", 2) == 3
    assert await store.state.keys(session.id) == ["k", "n"] and await store.state.size(session.id) == 17
    assert await store.state.delete(session.id, "k") and not await store.state.delete(session.id, "k")
    annotated = await store.sessions.annotate(session.id, {"team": "red"})
    assert annotated is not None and annotated.metadata == {"team": "red"}
    with pytest.raises(InvalidState):
        await store.state.set(session.id, "large", b'"' + b"x" * MAX_VALUE_BYTES + b'"')
    with pytest.raises(InvalidMetadata):
        await store.sessions.annotate(session.id, {"large": "x" * 20_000})
    clock.pass_time(99)
    assert await store.sessions.touch(session.id) and documents.ttl_s == 100.0
    clock.pass_time(100)
    assert await store.sessions.peek(session.id) is None, "strict, whatever the app's store does"
    with pytest.raises(SessionGone):
        await store.state.get(session.id, "n")


@requirement("app.small-store")
async def test_a_session_that_ended_does_not_come_back(clock: FakeClock) -> None:
    class Slow(Documents):
        async def save(self, session_id: str, document: bytes, ttl_s: float, replaces: bytes) -> bool:
            saving.set()
            await ended.wait()
            return await super().save(session_id, document, ttl_s, replaces)

    saving, ended = asyncio.Event(), asyncio.Event()
    documents = Slow(compares=False)
    store, other = SmallBackend(documents, clock=clock), SmallBackend(documents, clock=clock)
    session = await store.sessions.create(a_session(clock))
    writing = asyncio.ensure_future(other.state.set(session.id, "k", b"1"))
    await saving.wait()
    assert await store.sessions.end(session.id) and documents.kept == {}
    ended.set()
    with pytest.raises(SessionGone):
        await writing
    assert documents.kept == {} and not await store.sessions.end(session.id)


async def _counted(stores: list[SmallBackend], clock: FakeClock) -> int:
    session = await stores[0].sessions.create(a_session(clock))
    await asyncio.gather(*(store.state.increment(session.id, "n", 1) for store in stores * 10))
    return int(await stores[0].state.get(session.id, "n") or b"0")


@requirement("app.small-store")
async def test_a_store_that_compares_loses_nothing_between_processes(clock: FakeClock) -> None:
    documents = Documents()
    assert await _counted([SmallBackend(documents, clock=clock) for _ in range(3)], clock) == 30


@requirement("app.small-store")
async def test_a_store_that_cannot_compare_loses_nothing_within_a_process(clock: FakeClock) -> None:
    documents = Documents(compares=False)
    assert await _counted([SmallBackend(documents, clock=clock)], clock) == 10
    documents = Documents(compares=False)
    assert await _counted([SmallBackend(documents, clock=clock) for _ in range(3)], clock) < 30, "as documented"


@requirement("app.small-store")
async def test_any_failure_of_the_store_is_an_outage(clock: FakeClock) -> None:
    class Broken(Documents):
        async def get(self, session_id: str) -> bytes | None:
            raise ConnectionResetError("the database went away")

    store = SmallBackend(Broken(), clock=clock)
    asked: list[Callable[[], Awaitable[object]]] = [
        lambda: store.state.get("x" * 24, "k"),
        lambda: store.sessions.resume("x" * 24, ALICE),
    ]
    for ask in asked:
        with pytest.raises(StoreUnavailable, match="ConnectionResetError"):
            await ask()


@requirement("app.small-store")
async def test_a_document_that_is_not_ours_is_said_to_be(clock: FakeClock) -> None:
    documents = Documents()
    documents.kept["x" * 24] = b"{}"
    with pytest.raises(StoreError, match="no session's"):
        await SmallBackend(documents, clock=clock).sessions.peek("x" * 24)
