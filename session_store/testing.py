"""The contract every backend must pass, as a pytest class to inherit from. Ships with the package.

A subclass gives `store` and `log` fixtures; the store must read its time from the `clock` it is given.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from session_store.base import EventLog, SessionStore, UnknownEvent
from session_store.session import ANONYMOUS, ClientFacts, Context, Principal, Session, new_session_id

__all__ = ["EventLogContract", "FakeClock", "SessionStoreContract", "a_session"]

ALICE = Principal(issuer="api-key", subject="alice")
BOB = Principal(issuer="api-key", subject="bob")


@dataclass
class FakeClock:
    """Time that passes when told to. Seconds."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


def a_session(clock: FakeClock, **fields: Any) -> Session:
    """A session opened now, with some of everything in it."""
    values: dict[str, Any] = {
        "id": new_session_id(),
        "principal": ALICE,
        "endpoint": "/mcp",
        "era": "legacy",
        "created_at": clock(),
        "used_at": clock(),
        "idle_ttl_s": 100.0,
        "max_age_s": 1_000.0,
        "client": ClientFacts(name="tests", version="1", protocol_version="2025-11-25", initialize_params=b"{}"),
        "context": Context(workspace="w", permissions=("read",)),
    }
    return Session(**(values | fields))


@pytest.mark.anyio
class SessionStoreContract:
    """What any `SessionStore` does."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def store(self, clock: FakeClock) -> SessionStore:
        raise NotImplementedError

    async def test_gives_back_what_it_was_given(self, store: SessionStore, clock: FakeClock) -> None:
        session = a_session(clock)
        assert await store.create(session) == session
        assert await store.peek(session.id) == session
        assert await store.resume(session.id, ALICE) == session

    async def test_an_unknown_id_is_none_everywhere(self, store: SessionStore) -> None:
        assert await store.peek("nobody") is None
        assert await store.resume("nobody", ALICE) is None
        assert await store.resume_alias("nobody") is None
        assert await store.update("nobody", log_level="info") is None
        assert not await store.touch("nobody")
        assert not await store.end("nobody")

    async def test_somebody_elses_session_is_none_and_left_untouched(
        self, store: SessionStore, clock: FakeClock
    ) -> None:
        session = await store.create(a_session(clock))
        clock.pass_time(60)
        assert await store.resume(session.id, BOB) is None
        assert await store.resume(session.id, ANONYMOUS) is None
        assert await store.peek(session.id) == session

    async def test_idle_time_slides_and_is_strict(self, store: SessionStore, clock: FakeClock) -> None:
        session = await store.create(a_session(clock, idle_ttl_s=100.0))
        clock.pass_time(99.9)
        assert await store.resume(session.id, ALICE) is not None
        clock.pass_time(99.9)
        assert await store.touch(session.id)
        clock.pass_time(100.0)
        assert await store.resume(session.id, ALICE) is None
        assert await store.peek(session.id) is None
        assert not await store.touch(session.id)

    async def test_looking_does_not_keep_a_session_alive(self, store: SessionStore, clock: FakeClock) -> None:
        session = await store.create(a_session(clock, idle_ttl_s=100.0))
        clock.pass_time(60)
        assert await store.peek(session.id) is not None
        clock.pass_time(40)
        assert await store.peek(session.id) is None

    async def test_age_ends_a_session_that_is_never_idle(self, store: SessionStore, clock: FakeClock) -> None:
        session = await store.create(a_session(clock, idle_ttl_s=100.0, max_age_s=250.0))
        for _ in range(4):
            clock.pass_time(60)
            assert await store.resume(session.id, ALICE) is not None
        clock.pass_time(10)
        assert await store.resume(session.id, ALICE) is None

    async def test_an_unconfirmed_session_goes_early_and_a_client_that_returns_confirms_it(
        self, store: SessionStore, clock: FakeClock
    ) -> None:
        lost, kept = [await store.create(a_session(clock, confirmed=False, unconfirmed_ttl_s=10.0)) for _ in range(2)]
        clock.pass_time(9.9)
        resumed = await store.resume(kept.id, ALICE)
        assert resumed is not None and resumed.confirmed
        clock.pass_time(0.1)
        assert await store.peek(lost.id) is None
        clock.pass_time(99.7)
        assert await store.peek(kept.id) is not None

    async def test_use_by_the_gateway_itself_confirms_nothing(self, store: SessionStore, clock: FakeClock) -> None:
        session = await store.create(a_session(clock, confirmed=False, unconfirmed_ttl_s=10.0))
        clock.pass_time(5)
        assert await store.touch(session.id)
        found = await store.peek(session.id)
        assert found is not None and not found.confirmed
        clock.pass_time(10)
        assert await store.peek(session.id) is None

    async def test_an_alias_names_one_session_however_many_create_at_once(
        self, store: SessionStore, clock: FakeClock
    ) -> None:
        made = await asyncio.gather(*(store.create(a_session(clock), alias="alice") for _ in range(20)))
        assert len({session.id for session in made}) == 1
        assert (await store.resume_alias("alice")) is not None
        assert await store.resume_alias("bob") is None

    async def test_an_alias_is_free_again_when_its_session_is_gone(self, store: SessionStore, clock: FakeClock) -> None:
        first = await store.create(a_session(clock), alias="alice")
        await store.end(first.id)
        assert await store.resume_alias("alice") is None
        second = await store.create(a_session(clock), alias="alice")
        assert second.id != first.id
        clock.pass_time(100)
        third = await store.create(a_session(clock), alias="alice")
        assert third.id != second.id
        await store.sweep()
        found = await store.resume_alias("alice")
        assert found is not None and found.id == third.id

    async def test_updates_of_different_fields_lose_nothing(self, store: SessionStore, clock: FakeClock) -> None:
        session = await store.create(a_session(clock))
        await asyncio.gather(
            store.update(session.id, log_level="debug"),
            store.update(session.id, initialized=True),
            store.update(session.id, subscriptions=("a://b",)),
        )
        found = await store.peek(session.id)
        assert found is not None
        assert (found.log_level, found.initialized, found.subscriptions) == ("debug", True, ("a://b",))

    async def test_ends_at_once_and_for_one_caller_only(self, store: SessionStore, clock: FakeClock) -> None:
        session = await store.create(a_session(clock))
        ended = await asyncio.gather(*(store.end(session.id) for _ in range(10)))
        assert sum(ended) == 1
        assert await store.resume(session.id, ALICE) is None

    async def test_what_ended_by_itself_is_swept_once(self, store: SessionStore, clock: FakeClock) -> None:
        sessions = [await store.create(a_session(clock, idle_ttl_s=10.0)) for _ in range(5)]
        alive = await store.create(a_session(clock))
        clock.pass_time(10)
        swept = await asyncio.gather(*(store.sweep() for _ in range(3)))
        gone = [g.session.id for part in swept for g in part]
        assert sorted(gone) == sorted(s.id for s in sessions)
        assert await store.sweep() == []
        assert await store.peek(alive.id) is not None

    async def test_pages_hold_live_sessions_in_order_of_id(self, store: SessionStore, clock: FakeClock) -> None:
        ids = sorted([(await store.create(a_session(clock))).id for _ in range(7)])
        await store.create(a_session(clock, idle_ttl_s=1.0))
        clock.pass_time(1)
        first = await store.page(limit=4)
        rest = await store.page(after=first[-1].id, limit=100)
        assert [s.id for s in (*first, *rest)] == ids


@pytest.mark.anyio
class EventLogContract:
    """What any `EventLog` does."""

    @pytest.fixture
    def log(self) -> EventLog:
        """A log of at most 16 events and 1,000 bytes per session."""
        raise NotImplementedError

    @staticmethod
    async def _read(log: EventLog, session: str, stream: str, after: str | None) -> list[bytes]:
        async with asyncio.timeout(5):
            return [event.frame async for event in log.follow(session, stream, after)]

    async def test_follows_a_stream_from_an_event_to_its_end(self, log: EventLog) -> None:
        ids = [await log.append("s", "one", frame) for frame in (b"a", b"b", b"c")]
        await log.append("s", "two", b"other")
        await log.finish("s", "one")
        assert await log.stream_of("s", ids[0]) == "one"
        assert await self._read(log, "s", "one", ids[0]) == [b"b", b"c"]

    async def test_a_follower_hears_what_comes_later(self, log: EventLog) -> None:
        first = await log.append("s", "one", b"a")
        reading = asyncio.create_task(self._read(log, "s", "one", first))
        for frame in (b"b", b"c"):
            await asyncio.sleep(0)
            await log.append("s", "one", frame)
        await log.finish("s", "one")
        assert await reading == [b"b", b"c"]

    async def test_another_sessions_event_is_unknown(self, log: EventLog) -> None:
        event = await log.append("mine", "one", b"a")
        await log.append("yours", "one", b"b")
        for session in ("yours", "nobody"):
            with pytest.raises(UnknownEvent):
                await log.stream_of(session, event)

    @pytest.mark.parametrize("event", ["", "1", "-1", "zz-1", "x" * 5_000, "1-\u0661"])
    async def test_nonsense_is_unknown(self, log: EventLog, event: str) -> None:
        await log.append("s", "one", b"a")
        with pytest.raises(UnknownEvent):
            await log.stream_of("s", event)

    async def test_the_oldest_events_go_first(self, log: EventLog) -> None:
        ids = [await log.append("s", "one", b"%d" % n) for n in range(20)]
        with pytest.raises(UnknownEvent):
            await log.stream_of("s", ids[0])
        await log.finish("s", "one")
        assert await self._read(log, "s", "one", ids[4]) == [b"%d" % n for n in range(5, 20)]
        big = await log.append("s", "two", b"x" * 995)
        with pytest.raises(UnknownEvent):
            await log.stream_of("s", ids[15])
        assert await log.stream_of("s", big) == "two"

    async def test_who_names_no_event_gets_what_nobody_was_given(self, log: EventLog) -> None:
        await log.append("s", "one", b"a")
        given = await log.append("s", "one", b"b")
        await log.delivered("s", "one", given)
        await log.append("s", "one", b"c")
        await log.finish("s", "one")
        assert await self._read(log, "s", "one", None) == [b"c"]

    async def test_dropping_ends_followers_and_forgets(self, log: EventLog) -> None:
        event = await log.append("s", "one", b"a")
        reading = asyncio.create_task(self._read(log, "s", "one", event))
        await asyncio.sleep(0)
        await log.drop("s")
        assert await reading == []
        with pytest.raises(UnknownEvent):
            await log.stream_of("s", event)
