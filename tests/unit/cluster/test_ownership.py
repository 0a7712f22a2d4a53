"""Who owns a session, as the store says it, and which replicas may become its owner. What interleaves: the models
in `tests/proof`, and the simulation."""

import asyncio
from collections.abc import Callable
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.cluster import lease_validity as lease_module
from gateway.cluster import ownership as module
from gateway.cluster.lease_validity import DOUBT_S, LEASE_S, TRUST_S
from gateway.cluster.membership import BEAT_S
from gateway.cluster.ownership import Cluster
from session_store import MemoryBackend, Session, StoreUnavailable
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from tests.unit.calls.parts import turns
from transports.inbound_port import OwnedByPeer

pytestmark = requirement("rep.fence")


async def replicas() -> tuple[Cluster, Cluster, Session]:
    """Two replicas of one store, and a session that nobody owns."""
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    one, other = (Cluster(backend.directory, backend.sessions, backend.bus, taken_over=lambda _: None) for _ in "12")
    return one, other, await backend.sessions.create(a_session(clock, principal=ALICE, owner="", epoch=0))


async def test_an_owner_from_which_a_session_was_claimed_owns_it_no_more() -> None:
    one, other, session = await replicas()
    owned = await one.ensure_owner(session, ALICE, None)
    assert owned.owner == one.replica and await one.still_owns(owned) and not await other.still_owns(owned)
    claimed = await other.claim(owned)
    assert claimed is not None and claimed.owner == other.replica
    assert not await one.still_owns(owned) and await other.still_owns(claimed)
    assert not await other.still_owns(replace(claimed, epoch=owned.epoch)), "its own claim of before"
    assert not await one.still_owns(replace(owned, id="none"))
    with pytest.raises(OwnedByPeer) as elsewhere:
        await one.ensure_owner(claimed, ALICE, None)
    assert elsewhere.value.route.session.owner == other.replica


@pytest.mark.parametrize("stop", [Cluster.start_leaving, lambda one: one.set_reachable(False)])
async def test_a_replica_that_leaves_or_is_not_reached_claims_nothing(stop: Callable[[Cluster], None]) -> None:
    one, other, session = await replicas()
    stop(one)
    with pytest.raises(OwnedByPeer):
        await one.ensure_owner(session, ALICE, None)
    assert (await other.ensure_owner(session, ALICE, None)).owner == other.replica


async def test_a_replica_that_has_released_a_session_does_not_serve_an_old_record_of_it() -> None:
    one, other, session = await replicas()
    owned = await one.ensure_owner(session, ALICE, None)
    one.mark_released(owned)
    await one.release(owned)
    assert one.has_released(owned.id)
    with pytest.raises(OwnedByPeer):
        await one.ensure_owner(owned, ALICE, None)
    released = await other._sessions.peek(owned.id)
    assert released is not None and (await other.ensure_owner(released, ALICE, None)).owner == other.replica


async def test_a_session_that_comes_back_to_a_replica_which_has_released_it_is_served() -> None:
    one, other, session = await replicas()
    owned = await one.ensure_owner(session, ALICE, None)
    one.start_leaving()
    one.mark_released(owned)
    await one.release(owned)
    elsewhere = await other.ensure_owner(replace(owned, owner=""), ALICE, None)
    back = await one.claim_from_owner(elsewhere, may_run=False)  # the other has died, and this one drains
    assert back is not None and (await one.ensure_owner(back, ALICE, None)) is back


async def test_the_address_of_a_replica_is_published_while_others_reach_it_and_known_after_its_death() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)

    def replica() -> Cluster:
        return Cluster(backend.directory, backend.sessions, backend.bus, taken_over=lambda _: None)

    one, other = replica(), replica()
    one.advertise("127.0.0.1:1")
    one.set_reachable(False)
    await one.beat()
    assert await other.address_of(one.replica) == ("", True), "it runs, and cannot be asked"
    assert await other.reachable_peers() == [] and await other.replicas() == {one.replica}
    one.set_reachable(True)
    await one.beat()
    assert await replica().address_of(one.replica) == ("127.0.0.1:1", True)
    clock.pass_time(LEASE_S + 1)
    assert await replica().address_of(one.replica) == ("127.0.0.1:1", False)
    assert await other.address_of("none") == (None, False)


async def test_a_loss_that_was_handled_before_keeps_no_other_from_being_handled() -> None:
    one, other, _ = await replicas()
    lost: list[str] = []
    one._taken_over = lost.append
    await one.beat()
    one.lose("before")
    await other.tell_forgotten(one.replica, ["before"])
    await other.tell_forgotten(one.replica, ["now"])
    await one.beat()
    assert lost == ["before", "now"]


# -- claims from owners that run


class Taking:
    """`other` claims the session of `one`, whose lease is valid. Time passes only while `other` waits: then `meanwhile`
    runs, after each tenth of a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.began = self.clock()
        self.waits = 0
        self.beaten = 0.0
        self.meanwhile: Callable[[], Any] = lambda: None
        self.patch = monkeypatch
        monkeypatch.setattr(
            module, "asyncio", SimpleNamespace(sleep=self.passes, Event=asyncio.Event, wait=asyncio.wait)
        )
        for each in (module, lease_module):
            monkeypatch.setattr(each, "monotonic", self.clock)

    async def passes(self, seconds: float) -> None:
        self.waits += 1
        self.clock.pass_time(seconds)
        await self.other_beats()
        if (some := self.meanwhile()) is not None:
            await some

    async def other_beats(self) -> None:
        if self.clock() - self.beaten >= BEAT_S:
            self.beaten = self.clock()
            await self.other.beat()

    async def ready(self) -> "Taking":
        backend = self.backend = MemoryBackend(clock=self.clock)
        self.lost: list[str] = []
        shared = (backend.directory, backend.sessions, backend.bus)
        self.one = Cluster(*shared, taken_over=self.lost.append)
        self.other = Cluster(*shared, taken_over=lambda _: None)
        record = a_session(self.clock, principal=ALICE, owner=self.one.replica, epoch=1, idle_ttl_s=1e9, max_age_s=1e9)
        self.session = await backend.sessions.create(record)
        self.beaten = 0.0
        for _ in range(round(2 * LEASE_S / BEAT_S) + 1):
            await self.one.beat()
            await self.other_beats()
            self.clock.pass_time(BEAT_S)
        await self.one.beat()
        self.began = self.clock()
        return self

    async def request(self) -> Session:
        """Another request, which reads the session's record at `other`."""
        found = await self.backend.sessions.peek(self.session.id)
        assert found is not None
        return await self.other.ensure_owner(found, ALICE, None)

    @property
    def took_s(self) -> float:
        return self.clock() - self.began


@pytest.fixture
async def taking(monkeypatch: pytest.MonkeyPatch) -> Taking:
    return await Taking(monkeypatch).ready()


@requirement("rep.takeover")
@pytest.mark.parametrize("is_second", [False, True])
async def test_no_request_is_served_before_the_former_owner_has_read_of_the_claim(
    taking: Taking, is_second: bool
) -> None:
    if is_second:  # it comes while the first one waits, which then has gone
        claiming = asyncio.CancelledError

        def stop() -> None:
            taking.meanwhile = lambda: None
            raise claiming

        taking.meanwhile = stop
        with pytest.raises(claiming):
            await taking.other.claim_from_owner(taking.session, may_run=True)
    assert taking.lost == [] and taking.one.lease.is_fresh, "it serves the clients that reach it"
    taking.meanwhile = lambda: taking.one.beat() if taking.waits > 5 else None
    served = await (taking.request() if is_second else taking.other.claim_from_owner(taking.session, may_run=True))
    assert served is not None and served.owner == taking.other.replica
    assert taking.lost == [taking.session.id] and not taking.other.former_owner_may_answer(taking.session.id)
    waits = taking.waits
    assert (await taking.request()).epoch == served.epoch and taking.waits == waits, "and then at once"


async def test_a_session_that_ends_while_it_waits_for_its_former_owner_is_returned_as_it_was(taking: Taking) -> None:
    await taking.backend.sessions.change(taking.session.id, lambda now: replace(now, owner=taking.other.replica))
    taking.other._formers[taking.session.id] = module._Former(taking.one.replica)

    async def end() -> None:
        await taking.backend.sessions.end(taking.session.id)
        taking.meanwhile = lambda: None

    taking.meanwhile = end
    assert (await taking.request()).id == taking.session.id and taking.waits


@requirement("rep.failover")
@pytest.mark.parametrize("is_second", [False, True])
async def test_a_claim_that_a_failover_forgets_while_its_replica_waits_serves_nobody(
    taking: Taking, is_second: bool
) -> None:
    before, claimed = taking.session, list[Session]()

    async def forget() -> None:
        found = await taking.backend.sessions.peek(before.id)
        assert found is not None
        claimed.append(found)
        await taking.backend.sessions.change(
            before.id, lambda now: replace(now, owner=before.owner, epoch=before.epoch)
        )
        if is_second:
            taking.meanwhile = lambda: None
            with pytest.raises(OwnedByPeer):
                await taking.other.ensure_owner(found, ALICE, None)
        taking.meanwhile = lambda: None

    taking.meanwhile = forget
    served = await taking.other.claim_from_owner(before, may_run=True)
    assert claimed[0].owner == taking.other.replica
    assert served is not None and (served.owner, served.epoch) == (before.owner, before.epoch)


@requirement("rep.takeover")
async def test_a_loss_of_which_the_answer_was_lost_is_told_again_and_nobody_serves_before(taking: Taking) -> None:
    directory, one, renew = taking.backend.directory, taking.one, taking.backend.directory.renew_lease
    others = [await taking.backend.sessions.create(replace(taking.session, id=f"other-{n}")) for n in range(2)]
    said: list[int] = []

    async def unanswered(*arguments: Any) -> list[str]:
        await renew(*arguments)
        raise StoreUnavailable("away")

    async def renewed(*arguments: Any) -> list[str]:
        said.append(len(arguments[3]))
        assert len(taking.lost) >= said[-1] and not one.lease.is_fresh, "nobody serves here yet"
        return await (unanswered if said == [0, 3] else renew)(*arguments)

    taking.clock.pass_time(DOUBT_S)
    for session in (*others, taking.session):
        await directory.claim(session.id, taking.other.replica, epoch=session.epoch)
    taking.patch.setattr(directory, "renew_lease", unanswered)
    with pytest.raises(StoreUnavailable):
        await one.beat()
    assert not one.lease.is_fresh and not await directory.acknowledged(one.replica, taking.session.id)
    taking.patch.setattr(directory, "renew_lease", renewed)
    with pytest.raises(StoreUnavailable):
        await one.beat()
    assert sorted(taking.lost) == sorted([taking.session.id, "other-0", "other-1"]) and not one.lease.is_fresh
    await one.beat()
    assert said == [0, 3, 0] and one.lease.is_fresh, "what is told once more would hide a loss that followed"
    assert await directory.acknowledged(one.replica, taking.session.id)


@requirement("rep.store-down")
@pytest.mark.parametrize("is_away", [False, True])
async def test_who_asks_while_a_lease_is_renewed_shares_the_next_renewal(is_away: bool, taking: Taking) -> None:
    renew, begun, answers = taking.backend.directory.renew_lease, [0], asyncio.Event()

    async def slow(*arguments: Any) -> list[str]:
        begun[0] += 1
        await answers.wait()
        if is_away:
            raise StoreUnavailable("away")
        return await renew(*arguments)

    taking.patch.setattr(taking.backend.directory, "renew_lease", slow)
    beats = [asyncio.ensure_future(taking.one.beat()) for _ in range(5)]
    await turns()
    assert begun == [1]
    beats.append(asyncio.ensure_future(taking.one.beat()))
    answers.set()
    found = await asyncio.gather(*beats, return_exceptions=True)
    assert [isinstance(each, StoreUnavailable) for each in found] == [is_away] * 6 and begun == [2]
    await asyncio.gather(taking.one.beat(), return_exceptions=True)
    assert begun == [3]


@requirement("rep.takeover")
async def test_a_claim_of_which_the_store_did_not_say_that_it_was_made_is_told_of_and_waited_for(
    taking: Taking,
) -> None:
    claim, directory = taking.backend.directory.claim, taking.backend.directory

    async def unanswered(*arguments: Any, **named: Any) -> int:
        with taking.patch.context() as patch:
            patch.setattr(directory, "tell_lost", lambda *_: asyncio.sleep(0))
            await claim(*arguments, **named)
        raise StoreUnavailable("away")

    taking.patch.setattr(directory, "claim", unanswered)
    with pytest.raises(StoreUnavailable):
        await taking.other.claim_from_owner(taking.session, may_run=True)
    taking.patch.setattr(directory, "claim", claim)
    assert await directory.acknowledged(taking.one.replica, taking.session.id), "nothing was told"
    taking.meanwhile = lambda: taking.one.beat() if taking.waits > 5 else None
    served = await taking.request()
    assert served.owner == taking.other.replica and taking.lost == [taking.session.id]


@requirement("rep.takeover")
@pytest.mark.parametrize(
    ("then", "within_s"),
    [("leaves", 0.5), ("is paused", DOUBT_S + 0.5), ("is paused, and this one is new", LEASE_S + 0.2)],
)
async def test_what_was_claimed_is_served_once_its_former_owner_answers_no_client(
    taking: Taking, then: str, within_s: float
) -> None:
    if then == "leaves":
        taking.meanwhile = taking.one.leave
    elif "new" in then:
        taking.other.lease.not_renewed()
        await taking.other.beat()
    served = await taking.other.claim_from_owner(taking.session, may_run=True)
    assert served is not None and served.owner == taking.other.replica
    assert taking.took_s <= within_s and taking.lost == []
    assert not taking.one.lease.is_fresh or then == "leaves"


@requirement("rep.takeover")
async def test_a_session_that_a_third_has_claimed_is_not_waited_for(taking: Taking) -> None:
    await taking.backend.directory.claim(taking.session.id, "third", epoch=taking.session.epoch)
    found = await taking.other.claim_from_owner(taking.session, may_run=True)
    assert found is not None and found.owner == "third" and taking.waits == 0
    assert not taking.other.former_owner_may_answer(taking.session.id)


async def configured(*digests: str, beating: int = 9) -> list[Cluster]:
    """Replicas of one store, each with its configuration. So many of them have renewed their leases."""
    backend, made = MemoryBackend(clock=FakeClock()), list[Cluster]()
    for digest in digests:
        cluster = Cluster(backend.directory, backend.sessions, backend.bus, taken_over=lambda _: None)
        cluster.configuration.use(digest)
        cluster.advertise(f"127.0.0.1:{len(made)}")
        made.append(cluster)
        if len(made) <= beating:
            await cluster.beat()
    return made


@requirement("live.reload")
async def test_a_replica_with_an_older_configuration_says_so_and_claims_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    older, _, newest = await configured("a", "a", "b", beating=2)
    assert not older.configuration.is_outdated
    owned, unowned = [
        await older._sessions.create(a_session(FakeClock(), principal=ALICE, owner="", epoch=0)) for _ in "12"
    ]
    owned = await older.ensure_owner(owned, ALICE, None)
    await newest.beat()
    with pytest.raises(OwnedByPeer):  # it has not renewed its lease since: it asks before it claims
        await older.ensure_owner(unowned, ALICE, None)
    assert not await older.may_claim() and await newest.may_claim()
    assert await older.random_peer() == (newest.replica, "127.0.0.1:2"), "not one with an older configuration"
    assert (await older.ensure_owner(owned, ALICE, None)).owner == older.replica, "it goes on with its own sessions"
    assert (await newest.ensure_owner(unowned, ALICE, None)).owner == newest.replica
    told = [text for text in caplog.messages if "is older than that of replica" in text]
    assert len(told) == 1 and newest.replica in told[0]
    older.configuration.use("b")
    assert await older.may_claim() and older.configuration.own == newest.configuration.own == 2


@requirement("live.reload")
@pytest.mark.parametrize(
    ("stop", "resume"),
    [
        (Cluster.start_leaving, Cluster.stop_leaving),
        (lambda one: one.set_reachable(False), lambda one: one.set_reachable(True)),
    ],
    ids=["drains", "is not reached"],
)
async def test_a_replica_that_drains_or_that_others_do_not_reach_holds_no_other_back(
    stop: Callable[[Cluster], None], resume: Callable[[Cluster], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    older, newest = await configured("a", "b")
    newest.advertise("")
    await newest.beat()
    await older.beat()
    assert not await older.may_claim() and await older.random_peer() is None, "nobody can ask one without an address"
    stop(newest)
    await newest.beat()
    assert await older.may_claim()
    assert caplog.messages[-1] == "no replica has a newer configuration file than this one any more (number 1)"
    resume(newest)
    await newest.beat()
    assert not await older.may_claim(), "it is the newest again"
    await newest.leave()
    assert await older.may_claim()


@requirement("live.reload")
async def test_a_replica_that_drains_learns_of_newer_configurations() -> None:
    older, newer, newest = await configured("a", "a", "b", beating=2)
    older.start_leaving()
    assert await older.random_peer() == (newer.replica, "127.0.0.1:1")
    await newest.beat()
    assert not await older.may_claim(), "nor the sessions of a dead owner"
    assert await older.random_peer() == (newest.replica, "127.0.0.1:2")


@requirement("live.reload")
async def test_an_edit_during_a_drain_gets_its_number_after_it() -> None:
    one, other = await configured("a", "a")
    one.start_leaving()
    one.configuration.use("b")
    await one.beat()
    assert await other.may_claim() and one.configuration.own == 1
    one.stop_leaving()
    await one.beat()
    assert one.configuration.own == 2 and not await other.may_claim()


@requirement("live.reload")
async def test_a_replica_without_a_file_takes_no_part() -> None:
    alone, _ = await configured("", "b", beating=2)
    assert await alone.may_claim() and (alone.configuration.own, alone.configuration.newest) == (0, 0)
    await alone.leave()


@requirement("live.reload")
async def test_an_edit_that_the_store_did_not_take_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = await configured("a", "b")

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


async def test_an_answer_that_waits_for_trust_is_sent_when_the_others_agree_and_not_once_its_session_is_lost() -> None:
    one, _, _ = await replicas()
    one.lease.renewed(monotonic() - TRUST_S)
    waiting = [asyncio.create_task(one.trusts_soon(session_id)) for session_id in ("kept", "kept", "lost")]
    one.lose("lost")
    await turns()
    waiting.pop(0).cancel()
    one.lease.peers_agreed(monotonic())
    assert await asyncio.gather(*waiting) == [True, False]


async def test_an_answer_waits_for_trust_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _, _ = await replicas()
    monkeypatch.setattr(module, "_AGREED_WITHIN_S", 0.0)
    assert not await asyncio.wait_for(one.trusts_soon("s"), 60)
