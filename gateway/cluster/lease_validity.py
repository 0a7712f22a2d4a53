"""Decide, from this replica's lease, until when it serves its sessions without asking the store.

A replica that has not renewed its lease for `DOUBT_S` and does not answer a peer loses its sessions to that peer. So
from `TRUST_S` after its last renewal, a replica asks the store before it answers. If the store does not answer, the
replica asks all peers to hold: to claim none of its sessions for `HOLD_S`. If all agree, it serves its sessions for
that long, but not beyond the end of its lease. Pure, except for the clock, and for waking those who wait for the next
renewal (`next_trust`).
"""

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Final

LEASE_S: Final = 5.0
TRUST_S: Final = 1.3
DOUBT_S: Final = 1.6
"""Seconds without a renewal, after which a silent replica may lose its sessions. Longer than `TRUST_S` by the time in
which a replica sends an answer after it has checked its lease."""

HOLD_S: Final = 1.0
_MARGIN_S: Final = 1.0
_CLOCKS_S: Final = 0.3


class OwnLease:
    """Track how long this replica may trust its own lease, and what it knows of the leases of other replicas."""

    def __init__(self) -> None:
        self.peers: Mapping[str, str] | None = None
        """The last listed addresses of the other replicas, by name; None if they were never listed."""
        self._until = 0.0
        self._trusted = 0.0
        self.is_compared = True
        """False from a new connection to the store until its records were compared with the live sessions: it may be a
        copy that lacks the last claims of this replica."""
        self.trusted_until = 0.0
        """Time (monotonic clock) until which no other replica can claim a session of this one unnoticed."""
        self._trusts = asyncio.Event()
        self._renewed_since: float | None = None
        self._holding: dict[str, float] = {}
        self._doubted: dict[str, float] = {}

    # -- of this replica

    def set_peers(self, peers: Mapping[str, str]) -> None:
        """Record the addresses of the other replicas, by name."""
        self.peers = peers

    def renewed(self, asked_at: float) -> None:
        """Record that this replica's lease was renewed, by a request sent at `asked_at` (monotonic clock)."""
        if self._renewed_since is None or asked_at >= self._until:
            self._renewed_since = asked_at
        self._until = max(self._until, asked_at + LEASE_S)
        self._trust(asked_at + TRUST_S)

    def not_renewed(self) -> None:
        """Record that the store has not answered a renewal. Until `LEASE_S` after the next renewal, leases of other
        replicas that look expired do not count as expired (`trusts_expired`): the outage may be the reason."""
        self._renewed_since = None

    def peers_agreed(self, asked_at: float) -> None:
        """Record that all other replicas, asked at `asked_at` (monotonic clock), agree to claim no session of this one
        for `HOLD_S`."""
        self._trust(min(asked_at + HOLD_S, self._until))

    def _trust(self, until: float) -> None:
        self._trusted = max(self._trusted, until)
        if self.is_compared:
            self._trust_again()

    def _trust_again(self) -> None:
        self.trusted_until = self._trusted
        self._trusts.set()
        self._trusts = asyncio.Event()

    async def next_trust(self) -> None:
        """Wait until this replica may trust its lease for longer: the lease was renewed, all peers agree to claim no
        session, or the live sessions were compared with the store."""
        await self._trusts.wait()

    def store_connected(self) -> None:
        """Record that a new connection to the store has opened. The store behind it may be a copy that lacks the last
        claims, so the lease is not trusted until `compared` is called."""
        self.is_compared = False
        self.trusted_until = 0.0

    def compared(self) -> None:
        """Record that the live sessions were compared with the store, and that the store names this replica as the
        owner of all of them."""
        self.is_compared = True
        self._trust_again()

    def was_trusted(self, at: float) -> bool:
        """Return True if the lease could be trusted at the time `at` (monotonic clock): its last renewal, or the last
        agreement of the peers, was recent enough. Whether the live sessions were compared with the store does not
        count."""
        return at < self._trusted

    @property
    def is_fresh(self) -> bool:
        """Return True if no other replica can have claimed a session of this one unnoticed."""
        return monotonic() < self.trusted_until

    @property
    def is_fresh_for_a_while(self) -> bool:
        """Return True if `is_fresh`, and the lease stays valid for at least `_MARGIN_S` seconds more."""
        return monotonic() < min(self.trusted_until, self._until - _MARGIN_S)

    # -- of others

    @property
    def trusts_expired(self) -> bool:
        """Return True if a peer's lease that looks expired in the store counts as expired. Return False from an outage
        of the store until `LEASE_S` after it, because no replica could renew its lease."""
        return self._renewed_since is not None and monotonic() - self._renewed_since >= LEASE_S

    def agree_to_hold(self, replica: str) -> bool:
        """Agree to claim no session of `replica` for `HOLD_S`: it asks for this because it does not reach the store.
        Return True if this replica agrees. Return False if it already treats `replica` as dead."""
        now = monotonic()
        if now - self._doubted.get(replica, -LEASE_S) < LEASE_S:
            return False
        self._holding = {name: at for name, at in self._holding.items() if now - at < LEASE_S} | {replica: now}
        return True

    def treat_as_dead(self, replica: str) -> bool:
        """Treat a silent replica, whose lease was not renewed for `DOUBT_S`, as dead, and return True. Return False
        while this replica holds for it (`agree_to_hold`). Return False, too, until two `LEASE_S` after a start or an
        outage: `replica` may not know this one yet, and so could not ask it to hold."""
        now = monotonic()
        if self._renewed_since is None or now - self._renewed_since < 2 * LEASE_S:
            return False
        if now - self._holding.get(replica, -LEASE_S) < HOLD_S + _CLOCKS_S:
            return False
        self._doubted = {name: at for name, at in self._doubted.items() if now - at < LEASE_S} | {replica: now}
        return True
