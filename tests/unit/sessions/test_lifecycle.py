"""Sessions are created within their quota and with the metadata of the rules, kept alive, ended and handed over."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.admin.report_types import SessionPart, detached, row_of
from gateway.calls.live_session import LiveSession
from gateway.config.policy import PolicySettings
from gateway.observability.observed_call import Failure
from gateway.sessions.lifecycle import CHECKED_AT_ONCE, ENDED
from gateway.sessions.opening import metadata_of
from session_store import MemoryBackend, SessionStore, StoreUnavailable
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.unit.sessions.parts import Parts, Unreliable, refused, replicas
from transports.work_steps import SCANNED_AT_ONCE, SENT_AT_ONCE


async def test_a_session_is_created_once_for_its_alias_and_counted_once() -> None:
    parts = Parts(policy=PolicySettings(principal_sessions=1))
    first = await parts.create("alias")
    assert await parts.create("alias") is first, "also where the quota is used up"
    with refused(429):
        await parts.create()
    assert await parts.lifecycle.end(first.session.id, "test")
    assert await parts.create()


async def test_a_session_ends_with_those_within_it_and_for_one_caller() -> None:
    parts = Parts()
    child = await parts.create()
    parent = await parts.create(children=(child.session.id,))
    ids = [parent.session.id, child.session.id]
    async with parts.backend.bus.subscribed(ENDED, parts.lifecycle.ended_elsewhere):  # a replica hears itself, too
        assert [await parts.lifecycle.end(ids[0], "test") for _ in range(2)] == [True, False]
        await parts.lifecycle.settled()
    assert parent.ended and child.ended
    assert sorted(map(id, parts.closed)) == sorted(map(id, (parent, child))), "each is closed once"
    assert await parts.store.gone(ids) == ids


async def test_an_end_elsewhere_closes_what_is_held_here() -> None:
    here, there = replicas()
    one, other = [here.live.of((await there.create()).session) for _ in range(2)]
    async with here.backend.bus.subscribed(ENDED, here.lifecycle.ended_elsewhere):
        await there.lifecycle.end(one.session.id, "test")
        await here.lifecycle.settled()
    assert one.ended and not other.ended
    await there.lifecycle.end(other.session.id, "test")  # and nobody hears of it
    here.lifecycle.ended_elsewhere(None)
    await here.lifecycle.sweep()
    await here.lifecycle.settled()
    assert other.ended


@requirement("life.ttl")
async def test_sessions_in_use_are_kept_alive_also_after_an_outage() -> None:
    parts = Parts(store=Unreliable)
    live = await parts.create()
    live.open_use().release()
    parts.clock.pass_time(60.0)
    parts.store.is_off = True
    with pytest.raises(StoreUnavailable):
        await parts.lifecycle.keep_alive()
    parts.store.is_off = False
    await parts.lifecycle.keep_alive()
    found = await parts.store.peek(live.session.id)
    assert found.used_at == parts.clock()
    parts.clock.pass_time(60.0)
    await parts.lifecycle.keep_alive()
    assert await parts.store.peek(live.session.id) == found, "it was not used since"


async def test_a_replica_that_drains_releases_its_idle_sessions() -> None:
    parts = Parts(clustered=True)
    assert parts.cluster is not None
    live = await parts.create()
    assert live.session.owner == parts.cluster.replica
    stream, task = live.open_use(is_stream=True), live.open_use(is_movable=True)
    with live.open_use():  # by a handshake, for example
        assert not await parts.lifecycle.release_idle() and not live.ended
    assert await parts.lifecycle.release_idle(), "its stream and its task at a URL go on elsewhere"
    stream.release()
    task.release()
    await parts.lifecycle.settled()
    assert (await parts.store.peek(live.session.id)).owner == ""
    assert live.ended and parts.cluster.has_released(live.session.id)


async def test_nothing_is_released_while_the_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def beat() -> None:
        raise StoreUnavailable("away")

    parts = Parts(clustered=True)
    assert parts.cluster is not None
    live = await parts.create()
    with monkeypatch.context() as away:
        away.setattr(parts.cluster, "beat", beat)
        with pytest.raises(StoreUnavailable):
            await parts.lifecycle.release_idle()
    assert parts.live.get(live.session.id) is live and not parts.cluster.has_released(live.session.id)
    assert await parts.lifecycle.release_idle()


@requirement("rep.idle-kept")
async def test_a_hand_over_changes_nothing_that_is_counted() -> None:
    parts = Parts(clustered=True)
    live, unused = [await parts.create() for _ in range(2)]
    began = parts.clock()
    parts.clock.pass_time(60.0)
    failure = Failure(1.0, "notes", "write", "tool error", "full", "c" * 32)
    with live.open_use():
        live.count(None)
        live.count(failure)
    assert await parts.lifecycle.release_idle()
    used, idle = [await parts.store.peek(each.session.id) for each in (live, unused)]
    assert used.used_at == parts.clock(), "it was used since the last round"
    assert idle.used_at == began, "a deployment prolongs no session that nobody uses"
    row = row_of(used, None, parts.clock())
    assert (row.state, row.calls, row.failed, row.failures) == ("detached", 2, 1, [failure])
    assert detached(idle) == SessionPart(id=idle.id, state="detached")
    later = LiveSession(used, parts.live._events)
    later.count(None)
    assert (later.calls, later.failed, [*(later.failures or ())]) == (3, 1, [failure])
    assert LiveSession(replace(used, counted="of another version"), parts.live._events).calls == 0


async def test_a_session_that_was_taken_over_is_closed_and_stays_in_the_store() -> None:
    parts = Parts(clustered=True)
    live = await parts.create()
    parts.lifecycle.taken_over(live.session.id)
    await parts.lifecycle.settled()
    assert live.ended and live.is_elsewhere and parts.live.get(live.session.id) is None
    assert await parts.store.peek(live.session.id) is not None


class CrowdedStore:
    """A store that notes how many sessions are touched at once, and fails once `fails_after` have been."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self.fails_after = 10_000
        self.touched: list[str] = []
        self.at_once = self.most_at_once = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def touch(self, session_id: str) -> bool:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if len(self.touched) >= self.fails_after:
            raise StoreUnavailable("test")
        self.touched.append(session_id)
        return await self._store.touch(session_id)


@requirement("ops.slices")
async def test_thousands_of_sessions_are_kept_alive_in_slices() -> None:
    parts = Parts(backend=MemoryBackend(clock=FakeClock(), max_sessions=3_000), store=CrowdedStore)
    store = parts.store
    lives = [parts.live.of(await store.create(a_session(parts.clock))) for _ in range(2_500)]
    used = lives[::5]

    def use() -> None:
        for live in used:
            live.open_use().release()

    async def turns_of(work: Coroutine[Any, Any, None]) -> int:
        turns, task = 0, asyncio.create_task(work)
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        await task
        return turns

    use()
    busy = await turns_of(parts.lifecycle.keep_alive())
    assert sorted(store.touched) == sorted(live.session.id for live in used)
    assert store.most_at_once == SENT_AT_ONCE and busy >= len(used) / SENT_AT_ONCE
    assert await turns_of(parts.lifecycle.keep_alive()) >= len(lives) / SCANNED_AT_ONCE
    assert len(store.touched) == len(used), "those that nobody uses are not written"
    use()
    store.fails_after = len(used) + 100
    with pytest.raises(StoreUnavailable):
        await parts.lifecycle.keep_alive()
    store.fails_after = 10_000
    await parts.lifecycle.keep_alive()
    assert {*store.touched[len(used) :]} == {live.session.id for live in used}, "each, in one round or the other"


@requirement("ops.slices")
async def test_ended_sessions_are_looked_up_in_slices() -> None:
    parts = Parts()
    lives = [parts.live.of(a_session(parts.clock)) for _ in range(CHECKED_AT_ONCE)]  # the store knows none of them
    asked: list[int] = []
    gone = parts.store.gone

    async def counted(session_ids: Sequence[str]) -> Any:
        asked.append(len(session_ids))
        return await gone(session_ids)

    parts.store.gone = counted
    await parts.lifecycle.sweep()
    await parts.lifecycle.settled()
    assert asked == [SENT_AT_ONCE] * (CHECKED_AT_ONCE // SENT_AT_ONCE) and all(live.ended for live in lives)


async def test_rules_name_what_is_known_of_a_session_in_its_metadata_which_has_a_limit() -> None:
    session = a_session(FakeClock())
    rules = {"who": "{principal}", "as": "{agent}/{workspace}/{trust}", "at": "{endpoint}", "plain": "text"}
    expected = {"who": "api-key:alice", "as": "tests/w/direct", "at": "/mcp", "plain": "text"}
    assert metadata_of(session, rules) == expected
    with refused(400):
        metadata_of(session, {f"name{n}": "x" * 900 for n in range(200)})
