"""Rules that the simulation leaves out of the product, to show that it notices. `docs/proof.md` has the table.

Each mutant replaces functions of the product in the simulation's process. Names and rules are those of the models.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.calls.link_manager import LinkUsers
from gateway.cluster import lease_validity, requests_to_peers, takeover_decision
from gateway.cluster.forwarded_answer import RelayedReply
from gateway.cluster.forwarded_request_envelope import Envelopes
from gateway.cluster.lease_validity import OwnLease
from gateway.cluster.ownership import Cluster
from gateway.cluster.takeover_decision import Lease, PeerOutcome
from gateway.sessions import session_attaching
from gateway.sessions.lifecycle import SessionLifecycle
from session_store.ports.replica_directory import count_of
from session_store.redis import replica_directory
from session_store.redis.commands import Script
from transports.peer_authentication import Sealed
from transports.peer_channel import PeerChannel
from transports.peer_server import PeerIncomingCall


def _set(place: Any, name: str, value: Any) -> None:
    setattr(place, name, value)


def _believes_asker() -> None:
    async def greet_owner(self: Any, session: Any, address: str) -> PeerOutcome:
        return PeerOutcome.SILENT

    _set(requests_to_peers.PeerRequests, "greet_owner", greet_owner)


def _copies_executed() -> None:
    _set(Envelopes, "accept", lambda self, nonce, facts: None)


def _epoch_reused() -> None:
    _set(replica_directory, "next_epoch", lambda epoch: (1 << 21) | (count_of(epoch) + 1))


def _held_too_late() -> None:
    def hold(self: OwnLease, replica: str) -> bool:
        self._doubted.pop(replica, None)
        return held(self, replica)

    held = OwnLease.agree_to_hold
    _set(OwnLease, "agree_to_hold", hold)


def _hold_ignored() -> None:
    _set(OwnLease, "agree_to_hold", lambda self, replica: True)


def _lease_ignored() -> None:
    def decide(lease: Lease, *, for_a_lease: bool) -> PeerOutcome | None:
        return PeerOutcome.GONE

    _set(requests_to_peers, "decide", decide)


def _lease_read_once() -> None:
    async def take(self: Cluster, session: Any, *, may_run: bool) -> Any:
        age_s = await self.lease_age(session.owner)
        is_old = age_s is None or age_s >= lease_validity.DOUBT_S
        return await taken(self, session, may_run=may_run and not is_old)

    taken = Cluster.claim_from_owner
    _set(Cluster, "claim_from_owner", take)


def _no_agreement() -> None:
    async def agreed(self: PeerIncomingCall) -> None:
        self.send(b"S")

    _set(PeerIncomingCall, "agreed", agreed)


def _no_compare() -> None:
    rule = b"if f[1] ~= ARGV[3] then return false end\n"
    made = replica_directory._CLAIM.source
    assert rule in made
    source = made.replace(rule, b"")
    _set(replica_directory, "_CLAIM", Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest()))


def _no_fence() -> None:
    _set(Cluster, "may_have_lost", lambda self, session_id: False)


def _no_probe() -> None:
    _set(PeerChannel, "is_heard", property(lambda self: True))


async def _at_once(self: Cluster, session_id: str) -> None:
    self._formers.pop(session_id, None)


def _not_acknowledged() -> None:
    _set(Cluster, "_until_no_other_serves", _at_once)


def _not_told() -> None:
    async def tell_lost(self: Any, replica: str, session_ids: Sequence[str]) -> None:
        """Tell nobody."""

    _set(replica_directory.RedisDirectory, "tell_lost", tell_lost)


def _old_process() -> None:
    def lose(self: Cluster, session_id: str) -> None:
        self._lost[session_id] = None

    def take_over(self: Any, session: Any) -> None:
        live = self._live.get(session.id)
        if live is None:
            taken(self, session)
        else:
            live.replace_record(session, is_read=True)

    taken = session_attaching.SessionAttacher.take_over
    _set(Cluster, "lose", lose)
    _set(session_attaching, "_is_before", lambda live, session, claimed=False: False)
    _set(session_attaching.SessionAttacher, "take_over", take_over)


def _others_serve() -> None:
    async def own(self: Cluster, session: Any, principal: Any, granted: Any) -> Any:
        former = self._formers.pop(session.id, None)
        try:
            return await owned(self, session, principal, granted)
        finally:
            if former is not None:
                self._formers[session.id] = former

    owned = Cluster.ensure_owner
    _set(Cluster, "ensure_owner", own)


def _released_first() -> None:
    async def release_idle(self: Any) -> bool:
        for live in [live for live in self._live if live.is_movable and not live.has_suspended]:
            await self._cluster.release(live.session)
        return await released(self)

    released = SessionLifecycle.release_idle
    _set(SessionLifecycle, "release_idle", release_idle)


def _resent() -> None:
    _set(RelayedReply, "start", lambda self: None)


def _sealed_loosely() -> None:
    def open_records(self: Sealed, seal: Any, data: bytes) -> None:
        for _, content in self._records.feed(data):
            self._protocol.data_received(content)

    _set(Sealed, "_open", open_records)


def _silent_restart() -> None:
    _set(LinkUsers, "notify", lambda self, live, reason: None)
    _set(LinkUsers, "restarted", lambda self, reason: None)


def _trusted_too_long() -> None:
    _set(lease_validity, "TRUST_S", 4.0)


def _waits_for_ever() -> None:
    def decide(lease: Lease, *, for_a_lease: bool) -> PeerOutcome | None:
        outcome = decided(lease, for_a_lease=for_a_lease)
        return None if outcome is PeerOutcome.CUT_OFF else outcome

    decided = takeover_decision.decide
    _set(requests_to_peers, "decide", decide)


MUTANTS: Final[Mapping[str, Callable[[], None]]] = {
    mutant.__name__[1:].upper(): mutant
    for mutant in (
        _believes_asker,
        _copies_executed,
        _epoch_reused,
        _held_too_late,
        _hold_ignored,
        _lease_ignored,
        _lease_read_once,
        _no_agreement,
        _no_compare,
        _no_fence,
        _no_probe,
        _not_acknowledged,
        _not_told,
        _old_process,
        _others_serve,
        _released_first,
        _resent,
        _sealed_loosely,
        _silent_restart,
        _trusted_too_long,
        _waits_for_ever,
    )
}


def apply(name: str) -> None:
    """Leave that rule out from now on."""
    MUTANTS[name]()
