"""Live sessions are compared with their owners in the store, and what is another's is ended."""

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.cluster.ownership import Cluster
from gateway.sessions.reconciliation import Reconciliation
from session_store import MemoryBackend, Session
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from tests.unit.sessions.parts import Parts

pytestmark = [pytest.mark.anyio, requirement("rep.failover")]

ROUNDS = 3
"""Within a lease: a part of the sessions with each beat."""


class Pair:
    """A session that one replica has, and that another has taken over from it."""

    def __init__(self) -> None:
        self.backend = MemoryBackend(clock=FakeClock())
        self.ended: list[str] = []
        self.last, self.first = (Parts(backend=self.backend, clustered=True) for _ in range(2))
        assert self.last.cluster is not None and self.first.cluster is not None
        self.comparison = Reconciliation(self.last.cluster, self.backend.directory, self.last.live, self.ended.append)

    async def taken(self) -> tuple[Session, Session]:
        """The record before the claim of `last`, and after it."""
        assert self.last.cluster is not None and self.first.cluster is not None
        name = self.first.cluster.replica
        before = await self.backend.sessions.create(a_session(FakeClock(), owner=name, epoch=1))
        after = await self.last.cluster.claim(before)
        assert after is not None and after.owner == self.last.cluster.replica
        self.last.attacher.take_over(after)
        await self.first.cluster.beat()  # it is told of its loss
        return before, after

    async def forget(self, before: Session) -> None:
        """What a failover to a copy does that has not seen the claim."""
        await self.backend.sessions.change(before.id, lambda now: replace(now, owner=before.owner, epoch=before.epoch))

    async def compare(self) -> None:
        for _ in range(ROUNDS):
            await self.comparison.compare()


async def test_a_session_is_kept_whose_record_is_this_replicas() -> None:
    pair = Pair()
    await pair.taken()
    await pair.compare()
    assert pair.ended == []


async def test_a_claim_that_a_failover_forgot_ends_the_session_within_a_lease_and_the_owner_is_told() -> None:
    pair = Pair()
    before, _ = await pair.taken()
    await pair.forget(before)
    await pair.compare()
    assert pair.ended == [before.id]
    assert not await pair.backend.directory.acknowledged(before.owner, f"?{before.id}")


async def test_an_owner_ends_what_it_has_of_before_a_forgotten_claim_and_nothing_of_after_it() -> None:
    pair = Pair()
    told: list[str] = []
    untold = Cluster(pair.backend.directory, pair.backend.sessions, pair.backend.bus, taken_over=told.append)
    await untold.tell_forgotten(untold.replica, "some session")
    await untold.beat()
    assert told == ["some session"], "it never learned of the claim"
    await untold.tell_forgotten(untold.replica, "some session")
    await untold.beat()
    assert told == ["some session"], "it has learned of it, and what it has now is new"


async def test_a_later_owner_is_not_told_to_end_it() -> None:
    """The record is lost to a later claim, of which this replica was not told."""
    pair = Pair()
    _, after = await pair.taken()
    assert await pair.backend.directory.claim(after.id, "third", epoch=after.epoch) is not None
    await pair.compare()
    assert pair.ended == [after.id]
    assert await pair.backend.directory.acknowledged("third", after.id)


async def test_a_session_that_has_ended_is_not_decided_here() -> None:
    pair = Pair()
    _, after = await pair.taken()
    await pair.backend.sessions.end(after.id)
    await pair.compare()
    assert pair.ended == []


async def test_an_epoch_that_a_failover_forgot_is_not_given_again() -> None:
    pair = Pair()
    before, after = await pair.taken()
    await pair.forget(before)
    again = await pair.backend.directory.claim(before.id, "third", epoch=before.epoch)
    assert again not in (None, after.epoch, before.epoch)


async def test_the_owner_whom_a_failover_brings_back_tells_of_the_takeover() -> None:
    pair = Pair()
    before, _ = await pair.taken()
    await pair.forget(before)
    found: Any = await pair.backend.sessions.resume(before.id, ALICE)
    live = await pair.first.attacher._attach_again(found, None)
    assert live.new_process == "takeover"
