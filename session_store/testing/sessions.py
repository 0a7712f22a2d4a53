"""Test the contract of a `SessionStore` and of the state of its sessions, by a pytest class to inherit from."""

import asyncio

import pytest

from session_store.ports.backend import Backend
from session_store.ports.errors import SessionGone
from session_store.ports.sessions import SessionStore
from session_store.ports.tool_state import MAX_INTEGER, MAX_KEY_BYTES, MAX_STATE_BYTES, MAX_VALUE_BYTES, InvalidState
from session_store.session import ANONYMOUS, MAX_METADATA_BYTES, InvalidMetadata
from session_store.testing.samples import ALICE, BOB, FakeClock, a_session


@pytest.mark.anyio
class SessionStoreContract:
    """Test any `SessionStore` and its `StateStore`."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def backend(self, clock: FakeClock) -> Backend:
        raise NotImplementedError

    @pytest.fixture
    def store(self, backend: Backend) -> SessionStore:
        return backend.sessions

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
        assert await store.annotate("nobody", {"a": "b"}) is None
        assert not await store.touch("nobody")
        assert not await store.end("nobody")
        assert await store.gone(["nobody"]) == ["nobody"]
        assert await store.status("nobody") == "unknown"

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

    async def test_an_update_of_a_version_is_refused_after_another_write(
        self, store: SessionStore, clock: FakeClock
    ) -> None:
        session = await store.create(a_session(clock))
        racing = [store.update(session.id, if_version=session.version, log_level=f"l{n}") for n in range(5)]
        [written] = [updated for updated in await asyncio.gather(*racing) if updated is not None]
        assert written.version > session.version and written == await store.peek(session.id)
        await store.annotate(session.id, {"a": "b"})
        assert await store.update(session.id, if_version=written.version, log_level="late") is None
        found = await store.peek(session.id)
        assert found is not None and found.log_level == written.log_level
        found = await store.update(session.id, if_version=found.version, log_level="now")
        assert found is not None and found.log_level == "now"
        assert await store.update("nobody", if_version=0, log_level="now") is None

    async def test_sets_of_names_lose_nothing(self, store: SessionStore, clock: FakeClock) -> None:
        session = await store.create(a_session(clock, subscriptions=("old",)))
        await asyncio.gather(*(store.change_set(session.id, "subscriptions", add=f"a://{n}") for n in range(10)))
        await store.change_set(session.id, "subscriptions", add="a://1")
        found = await store.change_set(session.id, "subscriptions", remove="old")
        assert found is not None and found.subscriptions == tuple(f"a://{n}" for n in range(10))
        for n in range(10):
            found = await store.change_set(session.id, "subscriptions", remove=f"a://{n}")
        assert found is not None and found.subscriptions == ()

    async def test_metadata_changes_name_by_name(self, store: SessionStore, clock: FakeClock) -> None:
        session = await store.create(a_session(clock))
        await asyncio.gather(*(store.annotate(session.id, {f"n{n}": f'v{n} \u00fc"\\'}) for n in range(10)))
        await store.annotate(session.id, {"n3": None, "never": None})
        found = await store.peek(session.id)
        assert found is not None
        assert found.metadata == {f"n{n}": f'v{n} \u00fc"\\' for n in range(10) if n != 3}

    async def test_metadata_beyond_its_limit_changes_nothing(self, store: SessionStore, clock: FakeClock) -> None:
        session = await store.create(a_session(clock))
        await store.annotate(session.id, {"a": "x" * (MAX_METADATA_BYTES - 1)})
        with pytest.raises(InvalidMetadata, match=str(MAX_METADATA_BYTES + 1)):
            await store.annotate(session.id, {"b": ""})
        found = await store.annotate(session.id, {"a": "short"})
        assert found is not None and found.metadata == {"a": "short"}

    async def test_a_callers_copy_is_renewed_when_it_is_old(self, store: SessionStore, clock: FakeClock) -> None:
        session = await store.create(a_session(clock, confirmed=False))
        copy = await store.resume(session.id, ALICE, session)
        assert copy is not None and copy.confirmed
        clock.pass_time(10)
        copy = await store.resume(session.id, ALICE, copy)
        assert copy is not None and copy == await store.peek(session.id) and copy.used_at == clock()
        assert await store.resume(session.id, BOB, copy) is None
        changes = [
            store.update(session.id, log_level="debug"),
            store.change_set(session.id, "links", add="x"),
            store.annotate(session.id, {"a": "b"}),
        ]
        for change in changes:
            await change
            copy = await store.resume(session.id, ALICE, copy)
            assert copy is not None and copy == await store.peek(session.id)
        assert (copy.log_level, copy.links, copy.metadata) == ("debug", ("x",), {"a": "b"})

    async def test_ends_at_once_and_for_one_caller_only(self, store: SessionStore, clock: FakeClock) -> None:
        session = await store.create(a_session(clock))
        ended = await asyncio.gather(*(store.end(session.id) for _ in range(10)))
        assert sum(ended) == 1
        assert await store.resume(session.id, ALICE) is None
        assert await store.sweep() == []
        clock.pass_time(10_000)
        assert await store.sweep() == [], "what was ended did not expire"

    async def test_says_afterwards_what_became_of_a_session(self, store: SessionStore, clock: FakeClock) -> None:
        ended, expired, alive = [await store.create(a_session(clock, idle_ttl_s=t)) for t in (10.0, 10.0, 100.0)]
        await store.end(ended.id)
        clock.pass_time(10)
        assert await store.status(expired.id) == "expired"
        await store.sweep()
        assert [await store.status(s.id) for s in (ended, expired, alive)] == ["ended", "expired", "live"]
        assert sorted(await store.gone([ended.id, alive.id, expired.id])) == sorted([ended.id, expired.id])

    async def test_what_ended_by_itself_is_swept_once(self, store: SessionStore, clock: FakeClock) -> None:
        sessions = [await store.create(a_session(clock, idle_ttl_s=10.0)) for _ in range(5)]
        alive = await store.create(a_session(clock))
        clock.pass_time(10)
        swept = await asyncio.gather(*(store.sweep() for _ in range(3)))
        gone = [g.session_id for part in swept for g in part]
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

    # -- state

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
