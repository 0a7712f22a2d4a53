"""An app's own store of four methods, and what is made of it."""

import asyncio

import pytest

from session_store import InvalidMetadata, InvalidState, SessionGone, StoreError, StoreUnavailable
from session_store.app_store import DocumentBackend
from session_store.ports.tool_state import MAX_VALUE_BYTES
from session_store.testing import ALICE, BOB, FakeClock, a_session
from tests.requirements import requirement

pytestmark = requirement("app.small-store")


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


async def test_sessions_and_state_are_what_they_are_in_other_stores(clock: FakeClock) -> None:
    documents = Documents()
    store = DocumentBackend(documents, clock=clock)
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


async def test_a_session_that_ended_does_not_come_back(clock: FakeClock) -> None:
    class Slow(Documents):
        async def save(self, session_id: str, document: bytes, ttl_s: float, replaces: bytes) -> bool:
            saving.set()
            await ended.wait()
            return await super().save(session_id, document, ttl_s, replaces)

    saving, ended = asyncio.Event(), asyncio.Event()
    documents = Slow(compares=False)
    store, other = DocumentBackend(documents, clock=clock), DocumentBackend(documents, clock=clock)
    session = await store.sessions.create(a_session(clock))
    writing = asyncio.ensure_future(other.state.set(session.id, "k", b"1"))
    await saving.wait()
    assert await store.sessions.end(session.id) and documents.kept == {}
    ended.set()
    with pytest.raises(SessionGone):
        await writing
    assert documents.kept == {} and not await store.sessions.end(session.id)


async def test_increments_are_lost_only_between_processes_whose_store_cannot_compare(clock: FakeClock) -> None:
    async def counted(processes: int, *, compares: bool) -> int:
        documents = Documents(compares)
        stores = [DocumentBackend(documents, clock=clock) for _ in range(processes)]
        session = await stores[0].sessions.create(a_session(clock))
        await asyncio.gather(*(store.state.increment(session.id, "n", 1) for store in stores * 10))
        return int(await stores[0].state.get(session.id, "n") or b"0")

    assert await counted(3, compares=True) == 30
    assert await counted(1, compares=False) == 10
    assert await counted(3, compares=False) < 30, "as documented"


async def test_any_failure_of_the_store_is_an_outage(clock: FakeClock) -> None:
    class Broken(Documents):
        async def get(self, session_id: str) -> bytes | None:
            raise ConnectionResetError("the database went away")

    store, session = DocumentBackend(Broken(), clock=clock), "x" * 24
    for asked in (store.state.get(session, "k"), store.sessions.resume(session, ALICE)):
        with pytest.raises(StoreUnavailable, match="ConnectionResetError"):
            await asked


async def test_a_failure_before_a_change_is_stored_has_changed_nothing(clock: FakeClock) -> None:
    class Broken(Documents):
        reads_fail = False
        error: Exception

        async def get(self, session_id: str) -> bytes | None:
            if self.reads_fail:
                raise self.error
            return await super().get(session_id)

        async def save(self, session_id: str, document: bytes, ttl_s: float, replaces: bytes) -> bool:
            raise self.error

    documents = Broken()
    store = DocumentBackend(documents, clock=clock)
    session = await store.sessions.create(a_session(clock))
    unsent = StoreUnavailable("not sent", may_have_taken_effect=False)
    for documents.error, documents.reads_fail, may in (
        (OSError("lost"), False, True),
        (OSError("lost"), True, False),
        (StoreUnavailable("lost"), False, True),
        (StoreUnavailable("lost"), True, False),
        (unsent, False, False),
    ):
        with pytest.raises(StoreUnavailable) as failed:
            await store.state.increment(session.id, "n", 1)
        assert failed.value.may_have_taken_effect is may
    documents.reads_fail, documents.kept[session.id] = False, b"{}"
    with pytest.raises(StoreError) as unreadable:
        await store.state.increment(session.id, "n", 1)
    assert not unreadable.value.may_have_taken_effect


async def test_a_document_that_is_not_ours_is_said_to_be(clock: FakeClock) -> None:
    documents = Documents()
    documents.kept["x" * 24] = b"{}"
    with pytest.raises(StoreError, match="not a session's"):
        await DocumentBackend(documents, clock=clock).sessions.peek("x" * 24)


async def test_what_concerns_several_sessions_is_refused(clock: FakeClock) -> None:
    sessions = DocumentBackend(Documents(), clock=clock).sessions
    for asked in (sessions.page(), sessions.named("alice")):
        with pytest.raises(StoreError, match="no list of its sessions"):
            await asked
    assert await sessions.sweep() == []
