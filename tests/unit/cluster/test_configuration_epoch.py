"""Which replica has the newest configuration, and what a replica with an older one may do."""

import pytest

from gateway.cluster.ownership import Cluster
from session_store import MemoryBackend, StoreUnavailable
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import OwnedByPeer

pytestmark = [pytest.mark.anyio, requirement("live.reload")]


def replicas(backend: MemoryBackend, *digests: str) -> list[Cluster]:
    """Replicas of one store, each with its configuration."""
    made = []
    for digest in digests:
        cluster = Cluster(backend.directory, backend.sessions, backend.bus, taken_over=lambda _: None)
        cluster.configuration.use(digest)
        made.append(cluster)
    return made


async def test_a_replica_with_an_older_configuration_says_so_and_claims_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    older, newer, newest = replicas(backend, "a", "a", "b")
    for one in (older, newer):
        one.advertise("127.0.0.1:1")
        await one.beat()
    assert not older.configuration.is_outdated
    owned = await older.own(
        await backend.sessions.create(a_session(clock, principal=ALICE, owner="", epoch=0)), ALICE, None
    )
    newest.advertise("127.0.0.1:2")
    await newest.beat()
    unowned = await backend.sessions.create(a_session(clock, principal=ALICE, owner="", epoch=0))
    with pytest.raises(OwnedByPeer):  # it has not renewed its lease since: it asks before it claims
        await older.own(unowned, ALICE, None)
    assert not await older.may_claim() and await newest.may_claim()
    assert await older.another() == (newest.replica, "127.0.0.1:2"), "not one with an older configuration"
    assert (await older.own(owned, ALICE, None)).owner == older.replica, "it goes on with its own sessions"
    assert (await newest.own(unowned, ALICE, None)).owner == newest.replica
    told = [text for text in caplog.messages if "is older than that of replica" in text]
    assert len(told) == 1 and newest.replica in told[0]
    older.configuration.use("b")
    assert await older.may_claim() and older.configuration.own == newest.configuration.own == 2


async def test_a_replica_that_drains_holds_no_other_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    older, newest = replicas(MemoryBackend(clock=FakeClock()), "a", "b")
    await older.beat()
    await newest.beat()
    assert not await older.may_claim() and await older.another() is None
    newest.start_leaving()
    await newest.beat()
    assert await older.may_claim()
    assert caplog.messages[-1] == "no replica has a newer configuration file than this one any more (epoch 1)"
    newest.stop_leaving()
    await newest.beat()
    assert not await older.may_claim(), "it is the newest again"
    await newest.leave()
    assert await older.may_claim()


async def test_a_replica_that_others_do_not_reach_holds_no_other_back() -> None:
    older, newest = replicas(MemoryBackend(clock=FakeClock()), "a", "b")
    await older.beat()
    newest.set_reachable(False)
    await newest.beat()
    assert await older.may_claim() and not await newest.may_claim()
    newest.set_reachable(True)
    await newest.beat()
    assert not await older.may_claim()


async def test_a_replica_that_drains_learns_of_newer_configurations() -> None:
    older, newer, newest = replicas(MemoryBackend(clock=FakeClock()), "a", "a", "b")
    for one in (older, newer):
        one.advertise("127.0.0.1:1")
        await one.beat()
    older.start_leaving()
    assert await older.another() == (newer.replica, "127.0.0.1:1")
    newest.advertise("127.0.0.1:2")
    await newest.beat()
    assert not await older.may_claim(), "nor the sessions of a dead owner"
    assert await older.another() == (newest.replica, "127.0.0.1:2")


async def test_an_edit_during_a_drain_gets_its_number_after_it() -> None:
    one, other = replicas(MemoryBackend(clock=FakeClock()), "a", "a")
    await one.beat()
    await other.beat()
    one.start_leaving()
    one.configuration.use("b")
    await one.beat()
    assert await other.may_claim() and one.configuration.own == 1
    one.stop_leaving()
    await one.beat()
    assert one.configuration.own == 2 and not await other.may_claim()


async def test_a_replica_without_a_file_takes_no_part() -> None:
    alone, other = replicas(MemoryBackend(clock=FakeClock()), "", "b")
    await other.beat()
    assert await alone.may_claim() and (alone.configuration.own, alone.configuration.newest) == (0, 0)
    await alone.leave()


async def test_an_edit_that_the_store_did_not_take_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = replicas(MemoryBackend(clock=FakeClock()), "a", "b")
    await one.beat()
    await other.beat()

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    other.configuration.use("a")
    with monkeypatch.context() as patch:
        patch.setattr(type(other._directory), "hold_configuration", away)
        with pytest.raises(StoreUnavailable):
            await other.renew_configuration()
    await other.renew_configuration()
    assert other.configuration.own == 3, "it is an edit still: back to the first file, which is the newest now"
    await one.renew_configuration()
    assert one.configuration.own == 3 and not one.configuration.is_outdated
