"""The contract of a `Backend`: its session store, and every other part."""

import asyncio

import pytest

from session_store.ports.accounting import AuditEvent
from session_store.ports.backend import Backend
from session_store.ports.cluster import count_of
from session_store.ports.errors import SessionGone
from session_store.ports.state import MAX_INTEGER, MAX_KEY_BYTES, MAX_STATE_BYTES, MAX_VALUE_BYTES, InvalidState
from session_store.testing.samples import FakeClock, a_session
from session_store.testing.sessions import SessionStoreContract
from session_store.testing.tasks import TaskStoreContract
from session_store.testing.timelines import HistoryContract

__all__ = ["BackendContract"]


@pytest.mark.anyio
class BackendContract(SessionStoreContract, TaskStoreContract, HistoryContract):
    """The contract of a backend's parts other than the session store."""

    async def test_state_is_there_key_by_key(self, backend: Backend, clock: FakeClock) -> None:
        session, other = [await backend.sessions.create(a_session(clock)) for _ in range(2)]
        state = backend.state
        await state.set(session.id, "b", b'{"x":[1,null,"\xc3\xbc"]}')
        await state.set(session.id, "a", b"1")
        assert await state.get(session.id, "b") == b'{"x":[1,null,"\xc3\xbc"]}'
        assert await state.keys(session.id) == ["a", "b"] and await state.size(session.id) == 3 + 19
        assert await state.keys(other.id) == [] and await state.size(other.id) == 0
        assert await state.get(other.id, "a") is None
        assert [await state.delete(session.id, "a") for _ in range(2)] == [True, False]
        assert await state.get(session.id, "a") is None

    async def test_increments_are_exact_and_integers_only(self, backend: Backend, clock: FakeClock) -> None:
        session, state = await backend.sessions.create(a_session(clock)), backend.state
        sums = await asyncio.gather(*(state.increment(session.id, "n", 2) for _ in range(50)))
        assert sorted(sums) == list(range(2, 102, 2))
        assert await state.increment(session.id, "n", -100) == 0
        assert await state.get(session.id, "n") == b"0"
        for value in (b'"1"', b"1.0", b"null", b"[]"):
            await state.set(session.id, "t", value)
            with pytest.raises(InvalidState, match="integer"):
                await state.increment(session.id, "t", 1)
            assert await state.get(session.id, "t") == value
        assert await state.increment(session.id, "big", MAX_INTEGER) == MAX_INTEGER
        for by in (1, MAX_INTEGER, MAX_INTEGER * 4):
            with pytest.raises(InvalidState, match="64-bit"):
                await state.increment(session.id, "big", by)
        assert await state.get(session.id, "big") == str(MAX_INTEGER).encode()

    async def test_compare_and_set_has_one_winner(self, backend: Backend, clock: FakeClock) -> None:
        session, state = await backend.sessions.create(a_session(clock)), backend.state
        won = await asyncio.gather(*(state.compare_and_set(session.id, "k", None, b"%d" % n) for n in range(20)))
        assert sum(won) == 1
        value = await state.get(session.id, "k")
        assert value == b"%d" % won.index(True)
        assert not await state.compare_and_set(session.id, "k", b"no", b"1")
        assert await state.compare_and_set(session.id, "k", value, None)
        assert await state.keys(session.id) == []
        assert await state.compare_and_set(session.id, "k", None, None)

    async def test_state_has_limits_and_beyond_them_nothing_changes(self, backend: Backend, clock: FakeClock) -> None:
        session, state = await backend.sessions.create(a_session(clock)), backend.state
        full = b'"' + b"x" * (MAX_VALUE_BYTES - 2) + b'"'
        await state.set(session.id, "k", full)
        with pytest.raises(InvalidState, match=str(MAX_VALUE_BYTES)):
            await state.set(session.id, "k", full + b" ")
        for key in ("", "x" * (MAX_KEY_BYTES + 1), "\ud800"):
            with pytest.raises(InvalidState, match="key"):
                await state.set(session.id, key, b"1")
        fits = MAX_STATE_BYTES // (MAX_VALUE_BYTES + 3)
        for n in range(1, fits):
            await state.set(session.id, f"k{n:02}", full)
        with pytest.raises(InvalidState, match=str(MAX_STATE_BYTES)):
            await state.set(session.id, "one too many", full)
        with pytest.raises(InvalidState, match=str(MAX_STATE_BYTES)):
            await state.compare_and_set(session.id, "one too many", None, full)
        assert len(await state.keys(session.id)) == fits
        await state.set(session.id, "k01", b"1")
        await state.set(session.id, "one too many", full)

    async def test_a_full_state_takes_no_new_number(self, backend: Backend, clock: FakeClock) -> None:
        session, state = await backend.sessions.create(a_session(clock)), backend.state
        left = MAX_STATE_BYTES
        n = 0
        while left > 10:
            size = min(MAX_VALUE_BYTES, left - 3)
            await state.set(session.id, f"{n:03}", b"9" * size)
            left, n = left - 3 - size, n + 1
        with pytest.raises(InvalidState, match=str(MAX_STATE_BYTES)):
            await state.increment(session.id, "x" * 20, 1)
        assert "x" * 20 not in await state.keys(session.id)

    async def test_state_goes_with_its_session(self, backend: Backend, clock: FakeClock) -> None:
        ended, expired = [await backend.sessions.create(a_session(clock, idle_ttl_s=10.0)) for _ in range(2)]
        for session in (ended, expired):
            await backend.state.set(session.id, "k", b"1")
        await backend.sessions.end(ended.id)
        clock.pass_time(10)
        for session in (ended, expired):
            for operation in (
                backend.state.get(session.id, "k"),
                backend.state.set(session.id, "k", b"2"),
                backend.state.increment(session.id, "k", 1),
                backend.state.keys(session.id),
            ):
                with pytest.raises(SessionGone):
                    await operation

    async def test_the_bus_reaches_those_who_listen(self, backend: Backend) -> None:
        heard: list[bytes | None] = []
        both = asyncio.Event()

        def hear(data: bytes | None) -> None:
            heard.append(data)
            if len(heard) == 2:
                both.set()

        async with backend.bus.subscribed("topic", hear):
            await backend.bus.publish("topic", b"one")
            await backend.bus.publish("other", b"no")
            await backend.bus.publish("topic", b"two")
            async with asyncio.timeout(5):
                await both.wait()
        await backend.bus.publish("topic", b"late")
        assert {*heard} == {b"one", b"two"} and len(heard) == 2

    async def test_one_replica_at_a_time_claims_a_session(self, backend: Backend, clock: FakeClock) -> None:
        session, directory = await backend.sessions.create(a_session(clock)), backend.directory
        epochs = await asyncio.gather(*(directory.claim(session.id, f"r{n}", epoch=0) for n in range(5)))
        ((n, first),) = [(n, epoch) for n, epoch in enumerate(epochs) if epoch is not None]
        owner = f"r{n}"
        found = await backend.sessions.peek(session.id)
        assert found is not None and (found.owner, found.epoch) == (owner, first)
        second = await directory.claim(session.id, "taker", epoch=first)
        assert second is not None and (count_of(first), count_of(second)) == (1, 2)
        assert not await directory.release(session.id, owner, epoch=first)
        assert not await directory.acknowledged(owner, session.id)
        assert await directory.renew_lease(owner, "here", 5.0) == [session.id], "it is told what it lost"
        assert await directory.acknowledged(owner, session.id)
        assert await directory.renew_lease(owner, "here", 5.0) == []
        assert await directory.release(session.id, "taker", epoch=second)
        found = await backend.sessions.peek(session.id)
        assert found is not None and (found.owner, found.epoch) == ("", second)
        assert await directory.claim("nobody", "taker", epoch=0) is None

    async def test_no_epoch_is_given_twice(self, backend: Backend, clock: FakeClock) -> None:
        """Not even by a store that has forgotten the last claim: what two sessions with one record are given differs,
        is exact in every store, and fences the numbers of events as before."""
        directory, given = backend.directory, []
        for _ in range(2):
            session = await backend.sessions.create(a_session(clock, owner="old", epoch=7))  # of an older release
            epoch = await directory.claim(session.id, "r1", epoch=7)
            assert epoch is not None and count_of(epoch) == 8 and epoch < 1 << 53
            assert await directory.claim(session.id, "r2", epoch=7) is None
            assert (await directory.owners([session.id, "nobody"])) == [("r1", epoch), None]
            assert await backend.events.reserve(session.id, 10, epoch) is not None
            assert await backend.events.reserve(session.id, 10, 7) is None, "an owner that has lost it"
            later = await directory.claim(session.id, "r2", epoch=epoch)
            assert later is not None and await backend.events.reserve(session.id, 10, later) is not None
            assert await backend.events.reserve(session.id, 10, epoch) is None
            given += [epoch, later]
        assert len({*given}) == 4
        assert await directory.owners([]) == []
        assert await directory.copied(session.id), "a store without copies has nothing to wait for"

    async def test_a_replica_is_told_of_a_claim_that_the_store_forgot(self, backend: Backend) -> None:
        await backend.directory.tell_lost("r1", ["some session"])
        assert not await backend.directory.acknowledged("r1", "some session")
        assert await backend.directory.renew_lease("r1", "here", 5.0) == ["some session"]

    async def test_a_replica_lives_until_it_leaves(self, backend: Backend) -> None:
        directory = backend.directory
        await directory.renew_lease("one", "http://one", 5.0)
        await directory.renew_lease("two", "http://two", 5.0)
        assert await directory.replicas() == {"one": "http://one", "two": "http://two"}
        await directory.end_lease("one")
        assert await directory.address("one") is None and await directory.last_address("one") is None
        assert await directory.last_address("two") == "http://two"
        assert await directory.replicas() == {"two": "http://two"}

    async def test_a_rate_lets_so_many_through_at_once_and_then_one_by_one(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        assert [await backend.rates.take("one", 2.0, 3) for _ in range(3)] == [0.0] * 3
        assert await backend.rates.take("one", 2.0, 3) == pytest.approx(0.5, abs=0.01)
        assert await backend.rates.take("two", 2.0, 3) == 0.0, "nobody else pays"
        clock.pass_time(0.51)
        assert await backend.rates.take("one", 2.0, 3) == 0.0 < await backend.rates.take("one", 2.0, 3)
        assert [await backend.rates.take("two", 2.0, 3, 2) for _ in range(2)] == [0.0, pytest.approx(0.5, abs=0.02)]

    async def test_what_a_rate_lets_through_later_has_its_turn(self, backend: Backend, clock: FakeClock) -> None:
        async def take(times: int, within_s: float) -> float:
            return await backend.rates.take("turns", 2.0, 3, times, within_s)

        assert await take(3, 1.0) == 0.0
        assert [await take(1, 1.0) for _ in range(2)] == [pytest.approx(0.5, abs=0.02), pytest.approx(1.0, abs=0.02)]
        assert [await take(1, 1.0) for _ in range(2)] == [pytest.approx(1.5, abs=0.04)] * 2, "nothing is counted"
        clock.pass_time(1.1)
        assert 0.0 < await take(1, 0.0) < 0.5 and await take(1, 1.0) == pytest.approx(0.4, abs=0.05)
        assert await backend.rates.take("others", 2.0, 3, 3, 1.0) == 0.0, "nobody else waits"

    async def test_no_more_are_held_than_there_may_be(self, backend: Backend) -> None:
        async def hold(name: str) -> list[str]:
            return await backend.quotas.hold("some", name, 3, for_s=60)

        held = await asyncio.gather(*(hold(f"n{n}") for n in range(5)))
        assert held.count([]) == 3
        mine = next(names for names in held if names)
        assert len(mine) == 3 and await hold(mine[0]) == [], "what is held stays"
        await backend.quotas.give_back("some", [mine[0], "unknown"])
        assert await hold("another") == [] and await hold(mine[0]) == sorted(["another", *mine[1:]])
        assert await backend.quotas.hold("others", "n0", 1, for_s=60) == []

    async def test_names_are_held_as_long_as_any_call_has_asked(self, backend: Backend, clock: FakeClock) -> None:
        quotas = backend.quotas
        for key, times in (("long", (60.0, 0.1)), ("short", (0.1,)), ("again", (0.1, 60.0))):
            for for_s in times:
                assert await quotas.hold(key, "first", 1, for_s=for_s) == []
        clock.pass_time(0.3)
        await asyncio.sleep(0.3)  # some stores have clocks of their own
        assert await quotas.hold("long", "second", 1, for_s=0.1) == ["first"]
        assert await quotas.hold("again", "second", 1, for_s=0.1) == ["first"]
        assert await quotas.hold("short", "second", 1, for_s=0.1) == []

    async def test_the_audit_trail_gives_the_newest_first(self, backend: Backend) -> None:
        events = [AuditEvent(at=float(n), event="created", session=f"s{n}", reason="\u00fc") for n in range(5)]
        await backend.audit.record(events[:3])
        await backend.audit.record(events[3:])
        assert await backend.audit.recent(2) == [events[4], events[3]]
        assert len(await backend.audit.recent()) == 5
