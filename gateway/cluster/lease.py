"""This replica's lease: until when it serves its sessions without asking the store, and what it grants other replicas.

A replica that has not renewed its lease for `DOUBT_S`, and does not answer, loses its sessions to those that ask it in
vain. So `TRUST_S` after its last renewal it asks the store before it answers. While the store does not answer it, it
asks all other replicas to hold: who has agreed takes nothing from it for `HOLD_S`, and it trusts itself for that long,
until its lease ends. Pure, but for the clock.
"""

from collections.abc import Mapping
from time import monotonic
from typing import Final

__all__ = ["DOUBT_S", "HOLD_S", "LEASE_S", "TRUST_S", "OwnLease"]

LEASE_S: Final = 5.0
TRUST_S: Final = 1.3
DOUBT_S: Final = 1.6
"""Longer than `TRUST_S` by what may lie between a look at the lease and the end of what was decided by it."""

HOLD_S: Final = 1.0
_MARGIN_S: Final = 1.0
_CLOCKS_S: Final = 0.3


class OwnLease:
    """The lease of one replica. `peers` are the addresses of the other replicas, by name, as they were last listed;
    None: unknown."""

    def __init__(self) -> None:
        self.peers: Mapping[str, str] | None = None
        self._until = 0.0
        self.trusted_until = 0.0
        """Until when no replica can have taken a session without this one knowing, by the monotonic clock."""
        self._renewed_since: float | None = None
        self._holding: dict[str, float] = {}
        self._doubted: dict[str, float] = {}

    # -- of this replica

    def list_peers(self, peers: Mapping[str, str]) -> None:
        """Record the other replicas."""
        self.peers = peers

    def renewed(self, asked_at: float) -> bool:
        """Record a renewal that was sent then. True if the replica has trusted itself until then."""
        was_fresh = asked_at < self.trusted_until
        if self._renewed_since is None or asked_at >= self._until:
            self._renewed_since = asked_at
        self._until = max(self._until, asked_at + LEASE_S)
        self.trusted_until = max(self.trusted_until, asked_at + TRUST_S)
        return was_fresh

    def not_renewed(self) -> None:
        """The store has not answered: other leases look expired too."""
        self._renewed_since = None

    def held(self, asked_at: float) -> None:
        """All other replicas have agreed to hold. They were asked then."""
        self.trusted_until = max(self.trusted_until, min(asked_at + HOLD_S, self._until))

    @property
    def is_fresh(self) -> bool:
        """True while no replica can have taken a session without this one knowing."""
        return monotonic() < self.trusted_until

    @property
    def is_fresh_for_a_while(self) -> bool:
        """As `is_fresh`, if the lease is valid for at least `_MARGIN_S` more."""
        return monotonic() < min(self.trusted_until, self._until - _MARGIN_S)

    # -- of others

    @property
    def trusts_expired(self) -> bool:
        """Whether a lease that looks expired is. Not for one lease after an outage of the store."""
        return self._renewed_since is not None and monotonic() - self._renewed_since >= LEASE_S

    def hold(self, replica: str) -> bool:
        """Take nothing from that replica for a while: it does not reach the store. False: it is too late for that."""
        now = monotonic()
        if now - self._doubted.get(replica, -LEASE_S) < LEASE_S:
            return False
        self._holding = {name: at for name, at in self._holding.items() if now - at < LEASE_S} | {replica: now}
        return True

    def doubt(self, replica: str) -> bool:
        """Whether that replica, which is silent and has not renewed its lease for `DOUBT_S`, can be taken for gone. It
        may know this one only after it has listed the replicas again, so a new one waits for two leases."""
        now = monotonic()
        if self._renewed_since is None or now - self._renewed_since < 2 * LEASE_S:
            return False
        if now - self._holding.get(replica, -LEASE_S) < HOLD_S + _CLOCKS_S:
            return False
        self._doubted = {name: at for name, at in self._doubted.items() if now - at < LEASE_S} | {replica: now}
        return True
