"""Live sessions are compared with their owners in the store, and what is another's is ended."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.cluster.beats import BEAT_S
from gateway.cluster.ownership import Cluster
from gateway.sessions import reconciliation as module
from gateway.sessions.reconciliation import Reconciliation
from session_store import MemoryBackend, Session, StoreUnavailable
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from tests.unit.sessions.parts import Parts

pytestmark = [pytest.mark.anyio, requirement("rep.failover")]

ROUNDS = 3
"""Within a lease: a part of the sessions with each beat."""


def cluster_of(replica: Parts) -> Cluster:
    assert replica.cluster is not None
    return replica.cluster


class Pair:
    """A session that one replica has, and that another has taken over from it."""

    def __init__(self) -> None:
        self.backend = MemoryBackend(clock=FakeClock())
        self.last, self.first = (Parts(backend=self.backend, clustered=True) for _ in range(2))
        self.comparison, self.firsts = self.comparing(self.last), self.comparing(self.first)

    def comparing(self, replica: Parts) -> Reconciliation:
        return Reconciliation(cluster_of(replica), self.backend.directory, replica.live)

    async def taken(self) -> tuple[Session, Session]:
        """The record before the claim of `last`, and after it. `first` has not been told of it."""
        before = await self.backend.sessions.create(
            a_session(FakeClock(), owner=cluster_of(self.first).replica, epoch=1)
        )
        self.first.attacher.attach_new(before)
        after = await cluster_of(self.last).claim(before)
        assert after is not None and after.owner == cluster_of(self.last).replica
        self.last.attacher.take_over(after)
        return before, after

    async def told(self) -> None:
        """`first` renews its lease, and with that is told."""
        await cluster_of(self.first).beat()
        await self.first.lifecycle.settled()

    async def reached(self, before: Session) -> None:
        """A request reaches `first`, whose record says that it is the owner."""
        found: Any = await self.backend.sessions.resume(before.id, ALICE)
        await self.first.attacher._attach_again(found, None)

    async def forget(self, before: Session) -> None:
        """What a failover to a copy does that has not seen the claim."""
        await self.backend.sessions.change(before.id, lambda now: replace(now, owner=before.owner, epoch=before.epoch))

    async def compare(self, comparison: Reconciliation | None = None) -> None:
        for _ in range(ROUNDS):
            await (comparison or self.comparison).compare()
        await self.first.lifecycle.settled()
        await self.last.lifecycle.settled()


async def test_a_session_is_kept_whose_record_is_this_replicas() -> None:
    pair = Pair()
    _, after = await pair.taken()
    await pair.compare()
    assert pair.last.live.ids() == [after.id]


async def test_a_claim_that_a_failover_forgot_ends_the_session_within_a_lease_and_the_owner_is_told() -> None:
    pair = Pair()
    before, _ = await pair.taken()
    await pair.told()
    await pair.forget(before)
    await pair.compare()
    assert pair.last.live.ids() == []
    assert not await pair.backend.directory.acknowledged(before.owner, f"?{before.id}")


async def test_an_owner_that_was_not_told_of_a_forgotten_claim_ends_what_it_has_of_before_it() -> None:
    pair = Pair()
    before, _ = await pair.taken()
    pair.backend.directory._lost.clear()
    await pair.forget(before)
    await pair.compare()
    await pair.told()
    assert pair.first.live.ids() == []
    await pair.reached(before)
    await cluster_of(pair.last).tell_forgotten(before.owner, [before.id])
    await pair.told()
    assert pair.first.live.ids() == [before.id], "it has learned of it, and what it has now is new"


@pytest.mark.parametrize("learns", ["from the record", "with a beat"])
async def test_an_owner_that_has_learned_of_a_forgotten_claim_keeps_what_it_has_of_after_it(learns: str) -> None:
    pair = Pair()
    before, _ = await pair.taken()
    if learns == "with a beat":
        await pair.told()
    else:  # the failover is quicker than its next beat
        await pair.compare(pair.firsts)
        pair.backend.directory._lost.clear()
    assert pair.first.live.ids() == []
    await pair.forget(before)
    await pair.reached(before)
    await pair.compare()
    await pair.told()
    assert pair.first.live.ids() == [before.id] and pair.last.live.ids() == [], "the session has one process"


@pytest.mark.parametrize("fails", ["owners", "tell_lost"])
async def test_a_part_is_compared_again_at_once_if_the_store_did_not_answer(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would wait for another round, or the owner would never be told."""
    pair = Pair()
    before, _ = await pair.taken()
    await pair.told()
    await pair.forget(before)
    answers, failures = getattr(pair.backend.directory, fails), 0

    async def away(*arguments: Any) -> Any:
        nonlocal failures
        if arguments[-1] and failures < 2:  # it is about a session
            failures += 1
            raise StoreUnavailable("failing over")
        return await answers(*arguments)

    monkeypatch.setattr(pair.backend.directory, fails, away)
    for _ in range(ROUNDS + 2):
        with contextlib.suppress(StoreUnavailable):
            await pair.comparison.compare()
    await pair.last.lifecycle.settled()
    assert failures == 2 and pair.last.live.ids() == []
    assert not await pair.backend.directory.acknowledged(before.owner, f"?{before.id}")


async def test_a_slow_comparison_delays_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, now, began = Pair(), 100.0, []

    async def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def compare() -> None:
        began.append(now)
        await passes(0.9 * BEAT_S)
        if len(began) == 5:
            raise asyncio.CancelledError

    loop = SimpleNamespace(time=lambda: now)
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=passes, get_running_loop=lambda: loop))
    monkeypatch.setattr(pair.comparison, "compare", compare)
    with pytest.raises(asyncio.CancelledError):
        await pair.comparison.keep_comparing()
    assert began == pytest.approx([100.0 + BEAT_S * n for n in range(1, 6)]), "all parts within a lease"


async def test_a_later_owner_is_not_told_to_end_it() -> None:
    """The record is lost to a later claim, of which this replica was not told."""
    pair = Pair()
    _, after = await pair.taken()
    assert await pair.backend.directory.claim(after.id, "third", epoch=after.epoch) is not None
    await pair.compare()
    assert pair.last.live.ids() == []
    assert await pair.backend.directory.acknowledged("third", after.id)


async def test_a_session_that_has_ended_is_not_decided_here() -> None:
    pair = Pair()
    _, after = await pair.taken()
    await pair.backend.sessions.end(after.id)
    await pair.compare()
    assert pair.last.live.ids() == [after.id]


async def test_an_epoch_that_a_failover_forgot_is_not_given_again() -> None:
    pair = Pair()
    before, after = await pair.taken()
    await pair.forget(before)
    again = await pair.backend.directory.claim(before.id, "third", epoch=before.epoch)
    assert again not in (None, after.epoch, before.epoch)


async def test_the_owner_whom_a_failover_brings_back_tells_of_the_takeover() -> None:
    pair = Pair()
    before, _ = await pair.taken()
    await pair.told()
    await pair.forget(before)
    await pair.reached(before)
    live = pair.first.live.get(before.id)
    assert live is not None and live.new_process == "takeover"
