"""Where a gateway listens for others, how it renews its lease, and that others hold while the store is away."""

import asyncio
from collections.abc import Callable, Mapping
from time import time
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cluster import membership
from gateway.cluster.membership import LeaseRenewal, Membership
from gateway.cluster.ownership import BEAT, Cluster
from gateway.config.settings import ConfigurationError
from session_store import MemoryBackend, StoreUnavailable
from session_store.embedded.backend import MemoryBus
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.virtual_time import skip_waits

anywhere, quick = requirement("rep.any"), requirement("rep.quick", "rep.store-down")


class Bound(Exception):
    """The listener was asked to listen."""


class Listener:
    def listening(self, host: str, port: int) -> Any:
        raise Bound(f"{host}:{port}")


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Joins the others from the address that reaches the store."""

    async def joined(found: str, listen: str = "127.0.0.1:0", advertise: str = "") -> None:
        async def reached_from(_: str) -> str:
            return found

        monkeypatch.setattr(membership, "own_address_towards", reached_from)
        nothing: Any = None
        parts: dict[str, Any] = {"listener": Listener(), "peers": SimpleNamespace(close=lambda: None)}
        parts |= {"lease_renewal": nothing, "reachability": nothing, "listen": listen, "advertise": advertise}
        await Membership(nothing, **parts, store="redis://10.0.0.9").joined().__aenter__()

    return joined


@anywhere
async def test_it_is_the_address_that_reaches_the_store(join: Callable[..., Any]) -> None:
    for found, bound in (("10.0.0.7", "10.0.0.7:0"), ("", "127.0.0.1:0"), ("fd00::7", "fd00::7:0")):
        with pytest.raises(Bound, match=f"^{bound}$"):
            await join(found)


@anywhere
@pytest.mark.parametrize("found", ["8.8.4.4", "2a00:1450:4001::1"])
async def test_no_gateway_listens_in_the_internet_unasked(join: Callable[..., Any], found: str) -> None:
    with pytest.raises(ConfigurationError, match=r"gateway\.advertise"):
        await join(found)
    with pytest.raises(Bound, match="9000"):
        await join(found, f"{found}:9000", f"{found}:9000")


# -- the lease


class Case:
    """One replica, another one, and a store that may be away, or not answer."""

    def __init__(self) -> None:
        self.backend = MemoryBackend()
        self.away = self.stuck = False
        self.renewed = asyncio.Event()
        self.asked: list[Mapping[str, str]] = []
        self.agree = True
        directory = self.backend.directory
        self.cluster, self.other = (
            Cluster(directory, self.backend.sessions, self.backend.bus, taken_over=lambda _: None) for _ in range(2)
        )
        for each in (self.cluster, self.other):
            each.advertise(f"{each.replica}:1")
        self.beat = self.cluster.beat
        self.cluster.beat = self._beat  # type: ignore[method-assign]  # the store may be away
        self.lease_renewal = LeaseRenewal(self.cluster, self.backend.bus, self._ask)

    async def _beat(self) -> None:
        if self.away:
            raise StoreUnavailable("away")
        if self.stuck:
            await asyncio.Event().wait()
        await self.beat()
        self.renewed.set()

    async def _ask(self, peers: Mapping[str, str]) -> bool:
        self.asked.append(peers)
        self.stuck = self.stuck and len(self.asked) < 2
        return self.agree


@quick
async def test_others_are_asked_to_hold_while_the_store_is_away_and_while_it_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "_LATE_S", 0.01)
    monkeypatch.setattr("gateway.cluster.lease_validity.TRUST_S", 0.0)
    case = Case()
    await case.other.beat()
    assert await case.lease_renewal.renew() and not case.asked and not case.cluster.lease.is_fresh
    case.away = True
    assert not await case.lease_renewal.renew()
    assert case.asked == [{case.other.replica: case.other.address}] and case.cluster.lease.is_fresh
    assert not case.cluster.lease.trusts_expired
    case.asked.clear()
    case.away, case.stuck = False, True
    renewing = asyncio.ensure_future(case.lease_renewal.renew())
    async with asyncio.timeout(60):
        while len(case.asked) < 2:  # noqa: ASYNC110 - each turn is looked at
            await asyncio.sleep(0)
    renewing.cancel()


@quick
async def test_a_replica_without_an_address_cannot_agree_and_who_refuses_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.cluster.lease_validity.TRUST_S", 0.0)
    for address, agree in (("", True), ("b:1", False)):
        case = Case()
        case.agree = agree
        case.other.advertise(address)
        await case.other.beat()
        await case.lease_renewal.renew()
        case.away = True
        assert not await case.lease_renewal.renew() and not case.cluster.lease.is_fresh
        assert bool(case.asked) is bool(address)


@quick
async def test_another_replica_can_have_it_renew_its_lease_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case, clock = Case(), skip_waits(monkeypatch)
    living = asyncio.ensure_future(case.lease_renewal.keep_renewing())
    await case.renewed.wait()
    case.renewed.clear()
    before = clock()
    await case.other.ask_to_beat(case.cluster.replica)
    await case.renewed.wait()
    assert clock() == before, "it does not wait for the next beat"
    living.cancel()


@quick
async def test_a_replica_that_starts_before_its_store_renews_its_lease_once_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "_AWAY_S", 0.0)
    case, subscribed, tries = Case(), MemoryBus.subscribed, list[str]()

    def subscribing(bus: MemoryBus, topic: str, receive: Any) -> Any:
        tries.append(topic)
        case.away = len(tries) < 3
        if case.away:
            raise StoreUnavailable("away")
        return subscribed(bus, topic, receive)

    monkeypatch.setattr(MemoryBus, "subscribed", subscribing)
    living = asyncio.ensure_future(case.lease_renewal.keep_renewing())
    async with asyncio.timeout(60):
        await case.renewed.wait()
    assert len(tries) == 3 and not living.done()
    living.cancel()


@quick
async def test_an_owner_that_has_just_renewed_its_lease_is_asked_again_after_a_claim() -> None:
    case, beats = Case(), list[asyncio.Future[None]]()
    session = await case.backend.sessions.create(a_session(FakeClock(time()), owner=case.cluster.replica, epoch=1))
    asked = case.backend.bus.subscribed(
        BEAT + case.cluster.replica, lambda _: beats.append(asyncio.ensure_future(case.cluster.beat()))
    )
    async with asked:  # it renews its lease when it is asked to, and never else
        await case.other.ask_to_beat(case.cluster.replica)  # for a claim before
        await asyncio.gather(*beats)
        assert await case.other.claim_from_owner(session, may_run=True) is not None
        await asyncio.gather(*beats)
    assert await case.backend.directory.acknowledged(case.cluster.replica, session.id) and len(beats) == 2
