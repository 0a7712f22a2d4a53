"""Decide, from this replica's lease, until when it serves its sessions without asking the store.

A replica that has not renewed its lease for `DOUBT_S` and does not answer a peer loses its sessions to that peer. So
`TRUST_S` after its last renewal it asks the store before it answers. If the store does not answer, it asks all other
replicas to hold. Each that agrees claims none of its sessions for `HOLD_S`. If all agree, it trusts itself for that
long, but not beyond the end of its lease. Pure, except for the clock.
"""

from collections.abc import Mapping
from time import monotonic
from typing import Final

LEASE_S: Final = 5.0
TRUST_S: Final = 1.3
DOUBT_S: Final = 1.6
"""Longer than `TRUST_S` by the time that an answer may take after its replica has checked the lease."""

HOLD_S: Final = 1.0
_MARGIN_S: Final = 1.0
_CLOCKS_S: Final = 0.3


class OwnLease:
    """The lease of this replica. `peers` has the addresses of the other replicas, by name, as they were last listed.
    None: they were never listed."""

    def __init__(self) -> None:
        self.peers: Mapping[str, str] | None = None
        self._until = 0.0
        self.trusted_until = 0.0
        """Time, by the monotonic clock, until which no replica can claim a session from this one unnoticed."""
        self._renewed_since: float | None = None
        self._holding: dict[str, float] = {}
        self._doubted: dict[str, float] = {}

    # -- of this replica

    def list_peers(self, peers: Mapping[str, str]) -> None:
        """Record the addresses of the other replicas, by name."""
        self.peers = peers

    def renewed(self, asked_at: float) -> bool:
        """Record a renewal that was sent at `asked_at` (monotonic clock). Return True if `is_fresh` was true then."""
        was_fresh = asked_at < self.trusted_until
        if self._renewed_since is None or asked_at >= self._until:
            self._renewed_since = asked_at
        self._until = max(self._until, asked_at + LEASE_S)
        self.trusted_until = max(self.trusted_until, asked_at + TRUST_S)
        return was_fresh

    def not_renewed(self) -> None:
        """Record that the store has not answered. Leases of others may look expired only because of that."""
        self._renewed_since = None

    def held(self, asked_at: float) -> None:
        """Record that all other replicas, asked at `asked_at` (monotonic clock), have agreed to hold."""
        self.trusted_until = max(self.trusted_until, min(asked_at + HOLD_S, self._until))

    @property
    def is_fresh(self) -> bool:
        """Return True while no replica can have claimed a session from this one unnoticed."""
        return monotonic() < self.trusted_until

    @property
    def is_fresh_for_a_while(self) -> bool:
        """Return True if `is_fresh`, and the lease stays valid for at least `_MARGIN_S` more."""
        return monotonic() < min(self.trusted_until, self._until - _MARGIN_S)

    # -- of others

    @property
    def trusts_expired(self) -> bool:
        """Return True if leases of others that look expired have expired. False for one `LEASE_S` after an outage of
        the store, in which nobody could renew a lease."""
        return self._renewed_since is not None and monotonic() - self._renewed_since >= LEASE_S

    def hold(self, replica: str) -> bool:
        """Agree to claim no session of that replica for `HOLD_S`, because it does not reach the store. Return False if
        it is too late: this replica has taken the other one for gone."""
        now = monotonic()
        if now - self._doubted.get(replica, -LEASE_S) < LEASE_S:
            return False
        self._holding = {name: at for name, at in self._holding.items() if now - at < LEASE_S} | {replica: now}
        return True

    def doubt(self, replica: str) -> bool:
        """Return True if a silent replica, with a lease not renewed for `DOUBT_S`, may be taken for gone. False for two
        `LEASE_S` after a start or an outage: it may not have listed this one yet, and so cannot ask it to hold."""
        now = monotonic()
        if self._renewed_since is None or now - self._renewed_since < 2 * LEASE_S:
            return False
        if now - self._holding.get(replica, -LEASE_S) < HOLD_S + _CLOCKS_S:
            return False
        self._doubted = {name: at for name, at in self._doubted.items() if now - at < LEASE_S} | {replica: now}
        return True
