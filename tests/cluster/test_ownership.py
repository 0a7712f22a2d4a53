"""The invariants of ownership, whatever happens in whatever order: a model of several replicas on one store.

Replicas are the real `Cluster` on the real directory contract; time, pauses and the store's outages are the model's.
"""

import asyncio
import contextlib
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from msgspec.structs import replace

from gateway.cluster import lease_validity as lease_module
from gateway.cluster import ownership as cluster_module
from gateway.cluster.lease_validity import DOUBT_S, LEASE_S
from gateway.cluster.membership import BEAT_S
from gateway.cluster.ownership import Cluster
from gateway.sessions.ownership_reconciliation import Reconciliation
from session_store import MemoryBackend, Session, StoreUnavailable
from session_store.ports.cluster import count_of
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import OwnedByPeer

REPLICAS = 3
WHO = st.integers(0, REPLICAS - 1)
SECONDS = st.sampled_from([0.4, BEAT_S, DOUBT_S, 2 * DOUBT_S])


class Live:
    """What a replica has of a session. `since`: how many claims there had been when it was made."""

    def __init__(self, session: Session, since: int) -> None:
        self.session = session
        self.since = since


class Held(dict[str, Live]):
    """What is live on one replica, as `LiveSessions` has it."""

    def ids(self) -> list[str]:
        return [*self]


class Interrupted:
    """A part of the backend, which does not answer while the store is out, or the replica is cut off from it."""

    def __init__(self, part: Any, model: "Ownership", n: int) -> None:
        self._part = part
        self._model = model
        self._n = n

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            if self._model.outage or self._n in self._model.cut:
                raise StoreUnavailable("out")
            return await method(*arguments, **named)

        return call


class Ownership(RuleBasedStateMachine):
    """Requests, beats, pauses, deaths, outages, failovers and departures, interleaved."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        for module in (cluster_module, lease_module):
            setattr(module, "monotonic", self.clock)  # noqa: B010  # it is not exported, and time is the model's
        self.outage = False
        self.backend = MemoryBackend(clock=self.clock)
        self.held: list[Held] = []
        self.claims = 0
        self.paused: set[int] = set()
        self.cut: set[int] = set()  # off from the store
        self.apart: set[int] = set()  # from the other replicas
        self.dead: set[int] = set()
        self.epochs: dict[int, int] = {}
        self.forgot = 0  # claims that a failover has forgotten, and of which not all have learned by comparing
        self.before: Session | None = None  # the record before the last claim

    def do(self, what: Any) -> Any:
        return self.loop.run_until_complete(what)

    @initialize()
    def start(self) -> None:
        self.session = self.do(self.backend.sessions.create(a_session(self.clock, idle_ttl_s=1e9, max_age_s=1e9)))
        self.replicas = []
        self.comparisons = []
        for n in range(REPLICAS):
            held = Held()
            self.held.append(held)
            directory: Any = Interrupted(self.backend.directory, self, n)
            sessions: Any = Interrupted(self.backend.sessions, self, n)
            closed: Any = lambda i, held=held: held.pop(i, None)  # noqa: E731  # of this replica
            replica = Cluster(directory, sessions, self.backend.bus, taken_over=closed)
            replica.advertise(f"http://{n}")
            self.replicas.append(replica)
            self.comparisons.append(Reconciliation(replica, directory, held))  # type: ignore[arg-type]  # a fake
            self.beat(n)
        self.pass_time(2 * LEASE_S + 1)
        self.request(0)

    def runs(self, n: int) -> bool:
        return n not in self.paused and n not in self.dead

    def number_of(self, name: str) -> int | None:
        return next((n for n, replica in enumerate(self.replicas) if replica.replica == name), None)

    @rule(n=WHO)
    def beat(self, n: int) -> None:
        if self.runs(n):
            try:
                self.do(self.replicas[n].beat())
            except StoreUnavailable:
                self.replicas[n].lease.not_renewed()
                self.ask_to_hold(n)

    def ask_to_hold(self, n: int) -> None:
        lease, me = self.replicas[n].lease, self.replicas[n].replica
        others = [self.number_of(name) for name in lease.peers or {}]
        if lease.peers is not None and all(
            p is not None and self.runs(p) and not {n, p} & self.apart and self.replicas[p].lease.hold(me)
            for p in others
        ):
            lease.held(self.clock())

    @rule(seconds=st.sampled_from([0.1, 0.4, BEAT_S, DOUBT_S, LEASE_S, 2 * LEASE_S + 1]))
    def pass_time(self, seconds: float) -> None:
        """Running replicas beat every second, as they do, and twice as often while the store is away."""
        left = seconds
        while left > 0:
            self.clock.pass_time(min(left, BEAT_S / 2))
            left -= BEAT_S / 2
            if seconds >= BEAT_S:
                for n in range(REPLICAS):
                    self.beat(n)

    @rule(n=WHO)
    def pause(self, n: int) -> None:
        self.paused.add(n)

    @rule(n=WHO)
    def go_on(self, n: int) -> None:
        self.paused.discard(n)

    @rule(n=WHO, out=st.booleans())
    def cut_from_the_store(self, n: int, out: bool) -> None:
        (self.cut.add if out else self.cut.discard)(n)

    @rule(n=WHO, out=st.booleans())
    def cut_from_the_others(self, n: int, out: bool) -> None:
        (self.apart.add if out else self.apart.discard)(n)

    @rule(n=WHO, m=WHO, seconds=SECONDS, when=st.integers(0, 2), mends=st.booleans())
    def cut_off_while_another_asks(self, n: int, m: int, seconds: float, when: int, mends: bool) -> None:
        """Off from the store, and from that other replica at the same time, a while later, or not."""
        self.cut.add(n)
        for moment in range(2):
            if when == moment:
                self.apart.add(m)
            if moment == 0:
                self.pass_time(seconds)
            elif m != n:
                self.request(m)
        if mends:
            self.apart.discard(m)
            self.beat(n)
        self.answer(n)

    @rule(n=WHO)
    def kill(self, n: int) -> None:
        if len(self.dead) < REPLICAS - 1:
            self.dead.add(n)
            self.held[n].clear()

    @rule(out=st.booleans())
    def cut_the_store(self, out: bool) -> None:
        self.outage = out

    @rule()
    def failover_forgets(self) -> None:
        """The store is a copy now that has not seen the last claim, nor that its owner was to be told."""
        truth = self.do(self.backend.sessions.peek(self.session.id))
        before = self.before
        if not self.outage and before is not None and before.epoch != truth.epoch:
            changed = self.backend.sessions.change
            self.do(changed(self.session.id, lambda now: replace(now, owner=before.owner, epoch=before.epoch)))
            self.backend.directory._lost.clear()
            self.forgot, self.before = self.forgot + 1, None

    @rule(n=WHO, learns=st.sampled_from(["beat", "compare", "nothing"]))
    def claim_and_forget(self, n: int, learns: str) -> None:
        """A replica claims from an owner that runs, and that learns of it in some way, or not, before the store forgets
        it. Then a request reaches the owner."""
        truth = self.do(self.backend.sessions.peek(self.session.id))
        owner = self.number_of(truth.owner)
        assert owner is not None
        if owner == n or self.outage or not self.runs(n) or not self.runs(owner) or {n, owner} & self.cut:
            return
        self.before, self.claims = truth, self.claims + 1
        self.serve(n, self.do(self.replicas[n].claim(truth)))
        if learns != "nothing":
            getattr(self, learns)(owner)
        self.failover_forgets()
        self.request(owner)

    @rule(n=WHO)
    def compare(self, n: int) -> None:
        """A running replica compares what it holds, as it does once a lease."""
        if self.runs(n):
            for _ in range(3):
                with contextlib.suppress(StoreUnavailable):
                    self.do(self.comparisons[n].compare())

    @rule()
    def settle(self) -> None:
        """Every running replica has compared, and the owner has been told of what others have found."""
        if self.outage:
            return
        truth = self.do(self.backend.sessions.peek(self.session.id))
        owner = self.number_of(truth.owner)
        assert owner is not None
        has, knows = self.held[owner].get(truth.id), truth.id in self.replicas[owner]._told
        reached = [n for n in range(REPLICAS) if self.runs(n) and n not in self.cut]
        others = [live for n in reached if n != owner for live in self.held[n].values()]
        tells = any(count_of(live.session.epoch) > count_of(truth.epoch) for live in others)
        is_told = truth.id in self.backend.directory._lost.get(truth.owner, ())
        for n in range(REPLICAS):
            self.compare(n)
        for n in range(REPLICAS):
            self.beat(n)
        assert not any(self.held[n] for n in reached if n != owner), "one of them serves it"
        # Of two forgotten claims the owner tells only one from those that it knows, and rather ends too much.
        if owner in reached and has is not None and has.since == self.claims and not is_told and self.forgot < 2:
            assert self.held[owner].get(truth.id) is has, "it was made after all claims"
        if owner in reached and has is not None and tells and not knows:
            assert not self.held[owner], "it was made before a claim of which the owner has not learned"
        self.forgot = self.forgot if self.paused or self.cut else 0

    @rule(n=WHO)
    def request(self, n: int) -> None:
        """A request lands on a replica: the owner, one that finds it, or one that takes over from it."""
        if not self.runs(n):
            return
        replica = self.replicas[n]
        try:
            session = self.do(replica._sessions.resume(self.session.id, ALICE))
            try:
                self.serve(n, self.do(replica.own(session, ALICE, None)))
            except OwnedByPeer as elsewhere:
                self.forward(n, elsewhere.route.session)
        except StoreUnavailable:
            return

    def forward(self, n: int, session: Session) -> None:
        owner = self.number_of(session.owner)
        assert owner is not None and owner != n
        replica = self.replicas[n]
        age_s = self.do(replica.lease_age(session.owner))
        refused = owner in self.dead and n not in self.apart
        silent = owner in self.paused or owner in self.dead or {n, owner} & self.apart
        own = replica.lease
        is_gone = own.trusts_expired if age_s is None else age_s >= DOUBT_S and own.doubt(session.owner)
        if refused or (silent and is_gone):
            claimed = self.do(replica.claim(session))
            self.before = session
            self.claims += 1
            if claimed is not None and claimed.owner == replica.replica:
                self.serve(n, claimed)

    def serve(self, n: int, session: Session) -> None:
        assert session.owner == self.replicas[n].replica
        assert self.epochs.setdefault(session.epoch, n) == n, "an epoch has one owner"
        live = self.held[n].get(session.id)
        if live is None or live.session.epoch != session.epoch:  # what was live before another owner has ended
            self.held[n][session.id] = Live(session, self.claims)

    @rule(n=WHO)
    def answer(self, n: int) -> None:
        """A call of an earlier request is answered: nothing leaves a replica that has lost the session."""
        live = self.held[n].get(self.session.id)
        if live is None or not self.runs(n):
            return
        replica, epoch = self.replicas[n], live.session.epoch
        truth = self.do(self.backend.sessions.peek(self.session.id))
        session = a_session(self.clock, id=self.session.id, owner=replica.replica, epoch=epoch)
        try:
            leaves = replica.is_fresh or self.do(replica.still_owns(session))
        except StoreUnavailable:
            leaves = False
        if leaves and not (self.forgot and replica.is_fresh):  # it learns within a lease what a failover has forgotten
            assert (truth.owner, truth.epoch) == (replica.replica, epoch), "it had lost the session"

    def teardown(self) -> None:
        from time import monotonic

        for module in (cluster_module, lease_module):
            setattr(module, "monotonic", monotonic)  # noqa: B010  # undoes what the machine began with
        self.loop.close()


@requirement("rep.fence", "rep.takeover", "rep.failover")
def test_ownership_keeps_its_invariants() -> None:
    run_state_machine_as_test(
        Ownership,
        settings=settings(stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)),
    )
