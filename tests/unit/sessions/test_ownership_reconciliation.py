"""Live sessions are compared with their owners in the store, and what is another's is ended."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.cluster.membership import BEAT_S
from gateway.cluster.ownership import Cluster
from gateway.sessions import ownership_reconciliation as module
from gateway.sessions.ownership_reconciliation import Reconciliation
from session_store import StoreUnavailable
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from tests.support.virtual_time import skip_waits
from tests.unit.sessions.parts import Parts, replicas

pytestmark = requirement("rep.failover")

ROUNDS = 3
"""Within a lease: a part of the sessions with each beat."""


def cluster_of(replica: Parts) -> Cluster:
    assert replica.cluster is not None
    return replica.cluster


class Pair:
    """A session that the replica `first` has, and that `last` has taken over from it, of which nobody has told it."""

    def __init__(self) -> None:
        self.last, self.first = replicas(clustered=True)
        self.backend = self.last.backend
        self.comparison, self.firsts = self.comparing(self.last), self.comparing(self.first)

    def comparing(self, replica: Parts) -> Reconciliation:
        return Reconciliation(cluster_of(replica), self.backend.directory, replica.live)

    async def taken(self) -> "Pair":
        record = a_session(FakeClock(), owner=cluster_of(self.first).replica, epoch=1)
        self.before = await self.backend.sessions.create(record)
        self.first.attacher.attach_new(self.before, None)
        after = await cluster_of(self.last).claim(self.before)
        assert after is not None and after.owner == cluster_of(self.last).replica
        self.last.attacher.take_over(after)
        self.after = after
        return self

    async def told(self) -> None:
        """`first` renews its lease, and with that is told."""
        await cluster_of(self.first).beat()
        await self.first.lifecycle.settled()

    async def reached(self) -> None:
        """A request reaches `first`, whose record says that it is the owner."""
        found: Any = await self.backend.sessions.resume(self.before.id, ALICE)
        await self.first.attacher._attach_again(found, None)

    async def forget(self) -> None:
        """What a failover to a copy does that has not seen the claim."""
        owner, epoch = self.before.owner, self.before.epoch
        await self.backend.sessions.change(self.before.id, lambda now: replace(now, owner=owner, epoch=epoch))

    async def compare(self, comparison: Reconciliation | None = None) -> None:
        for _ in range(ROUNDS):
            await (comparison or self.comparison).compare()
        await self.first.lifecycle.settled()
        await self.last.lifecycle.settled()

    async def has_ended_what_was_forgotten(self) -> bool:
        """Whether `last` has ended the session, and has told `first` that the claim was forgotten."""
        told = not await self.backend.directory.acknowledged(self.before.owner, f"?{self.before.id}")
        return told and self.last.live.ids() == []


@pytest.fixture
async def pair() -> Pair:
    return await Pair().taken()


async def test_a_session_is_kept_whose_record_is_this_replicas_also_once_it_has_ended(pair: Pair) -> None:
    await pair.compare()
    assert pair.last.live.ids() == [pair.after.id]
    await pair.backend.sessions.end(pair.after.id)
    await pair.compare()
    assert pair.last.live.ids() == [pair.after.id], "that it has ended is not decided here"


async def test_an_owner_that_was_not_told_of_a_forgotten_claim_ends_what_it_has_of_before_it(pair: Pair) -> None:
    pair.backend.directory._lost.clear()
    await pair.forget()
    await pair.compare()
    await pair.told()
    assert pair.first.live.ids() == []
    await pair.reached()
    await cluster_of(pair.last).tell_forgotten(pair.before.owner, [pair.before.id])
    await pair.told()
    assert pair.first.live.ids() == [pair.before.id], "it has learned of it, and what it has now is new"


@pytest.mark.parametrize("learns", ["from the record", "with a beat"])
async def test_an_owner_that_has_learned_of_a_forgotten_claim_keeps_what_it_has_of_after_it(
    pair: Pair, learns: str
) -> None:
    if learns == "with a beat":
        await pair.told()
    else:  # the failover is quicker than its next beat
        await pair.compare(pair.firsts)
        pair.backend.directory._lost.clear()
    assert pair.first.live.ids() == []
    await pair.forget()
    await pair.reached()
    live = pair.first.live.get(pair.before.id)
    assert live is not None and live.new_process == "takeover", "it tells the client of the takeover"
    await pair.compare()
    await pair.told()
    assert pair.first.live.ids() == [pair.before.id] and pair.last.live.ids() == [], "the session has one process"


@pytest.mark.parametrize("fails", ["owners", "tell_lost"])
async def test_a_part_is_compared_again_at_once_if_the_store_did_not_answer(
    pair: Pair, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would wait for another round, or the owner would never be told."""
    await pair.told()
    await pair.forget()
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
    assert failures == 2 and await pair.has_ended_what_was_forgotten()


async def test_behind_a_new_connection_all_is_compared_at_once_and_nothing_is_trusted_before(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_of(pair.last)
    await cluster.beat()
    await pair.forget()
    cluster.lease.store_connected()
    cluster.store_connected.set()
    assert cluster.may_have_lost(pair.after.id)
    compare_all, is_compared = pair.comparison.compare_all, asyncio.Event()

    async def compare() -> None:
        await compare_all()
        is_compared.set()

    monkeypatch.setattr(pair.comparison, "compare_all", compare)
    comparing = asyncio.ensure_future(pair.comparison.keep_comparing())
    await is_compared.wait()
    comparing.cancel()
    await pair.last.lifecycle.settled()
    assert await pair.has_ended_what_was_forgotten() and cluster.lease.is_fresh


async def test_a_store_that_came_back_without_its_data_is_logged(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    await pair.comparison.compare_all()
    assert "does not know" not in caplog.text
    await pair.backend.sessions.end(pair.after.id)
    await pair.comparison.compare_all()
    assert "the store does not know 1 of the 1 sessions of this replica" in caplog.text


async def test_while_the_store_fails_or_is_connected_again_nothing_is_trusted(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, directory = cluster_of(pair.last), pair.backend.directory
    await cluster.beat()
    owners, outcomes = directory.owners, iter([StoreUnavailable("failing over"), "again"])

    async def unsteady(session_ids: Sequence[str]) -> Any:
        match next(outcomes, None):
            case StoreUnavailable() as failure:
                raise failure
            case "again":
                cluster.lease.store_connected()
                cluster.store_connected.set()
        return await owners(session_ids)

    monkeypatch.setattr(directory, "owners", unsteady)
    cluster.lease.store_connected()
    with pytest.raises(StoreUnavailable):
        await pair.comparison.compare_all()
    assert not cluster.lease.is_fresh
    await pair.comparison.compare_all()
    assert not cluster.lease.is_fresh, "the first part was compared with another server"
    await pair.comparison.compare_all()
    assert cluster.lease.is_fresh


async def test_connections_in_a_row_do_not_put_off_the_next_comparison_and_are_not_compared_without_a_pause(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that refuses writes has a new connection with each of them."""
    clock, cluster, began, is_over = skip_waits(monkeypatch), cluster_of(pair.last), list[float](), asyncio.Event()

    async def compare_all() -> None:
        began.append(clock())
        cluster.store_connected.clear()
        if len(began) <= 20:
            cluster.store_connected.set()
        elif len(began) == 22:
            is_over.set()
        raise StoreUnavailable("it loads its data")

    monkeypatch.setattr(pair.comparison, "compare_all", compare_all)
    cluster.lease.store_connected()
    cluster.store_connected.set()
    comparing = asyncio.ensure_future(pair.comparison.keep_comparing())
    await is_over.wait()
    comparing.cancel()
    pauses = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert min(pauses[:20]) > BEAT_S / 4 and pauses[20] <= BEAT_S


async def test_a_slow_comparison_delays_no_later_one(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    now, began = 100.0, list[float]()

    async def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def compare() -> None:
        began.append(now)
        await passes(0.9 * BEAT_S)
        if len(began) == 5:
            raise asyncio.CancelledError

    @contextlib.asynccontextmanager
    async def timeout_at(due: float) -> AsyncIterator[None]:
        await passes(max(0.0, due - now))
        raise TimeoutError
        yield

    loop = SimpleNamespace(time=lambda: now)
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(timeout_at=timeout_at, get_running_loop=lambda: loop))
    monkeypatch.setattr(pair.comparison, "compare", compare)
    with pytest.raises(asyncio.CancelledError):
        await pair.comparison.keep_comparing()
    assert began == pytest.approx([100.0 + BEAT_S * n for n in range(1, 6)]), "all parts within a lease"


async def test_a_later_owner_is_not_told_to_end_it(pair: Pair) -> None:
    """The record is lost to a later claim, of which this replica was not told."""
    assert await pair.backend.directory.claim(pair.after.id, "third", epoch=pair.after.epoch) is not None
    await pair.compare()
    assert pair.last.live.ids() == []
    assert await pair.backend.directory.acknowledged("third", pair.after.id)
