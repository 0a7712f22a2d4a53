"""Decide whether the sessions of an owner that cannot be reached may be taken over. Pure: no I/O, no clock.

An owner that does not answer may have died, may be cut off from this replica, or may be slow. The decision depends on
the state of its lease and the time since its last answer.
"""

import enum
from collections.abc import Mapping
from typing import Final


class Lease(enum.Enum):
    """The state of a replica's lease in the store."""

    VALID = enum.auto()
    RENEWED = enum.auto()
    """The lease was renewed after the replica fell silent: the replica runs."""
    OLD = enum.auto()
    """The lease was not renewed for so long that its replica would ask the store before it answers a client."""
    EXPIRED = enum.auto()
    UNKNOWN = enum.auto()
    """The store does not answer, or did not answer a moment ago: then every lease looks expired."""


class PeerOutcome(enum.Enum):
    """How a request to a peer has ended."""

    ANSWERED = enum.auto()
    MOVED = enum.auto()
    """The peer does not serve the session, or no longer does."""
    GONE = enum.auto()
    """The peer has died, because its address refuses connections: its sessions may be claimed."""
    CUT_OFF = enum.auto()
    """The peer runs, but the two replicas do not reach each other. Its sessions may be claimed, but served only once
    the peer knows of the claim."""
    SILENT = enum.auto()
    """The peer does not answer, and has not renewed its lease: its sessions may be claimed. It may go on, and renew
    its lease, at any moment."""
    UNREACHABLE = enum.auto()
    """The peer's state is unknown, and the client has waited long enough: the client gets 503."""
    LOST = enum.auto()
    """The connection was lost before the end of the answer. The peer may run, and the request may have taken effect."""
    TIMED_OUT = enum.auto()
    """No answer came while copies of the request could be sent, or no owner was found in time. The request may have
    taken effect."""


_DECISIONS: Final[Mapping[Lease, tuple[PeerOutcome | None, PeerOutcome]]] = {
    # at first, and when the peer has been silent for a lease
    Lease.VALID: (None, PeerOutcome.CUT_OFF),
    Lease.RENEWED: (PeerOutcome.CUT_OFF, PeerOutcome.CUT_OFF),
    Lease.OLD: (PeerOutcome.SILENT, PeerOutcome.SILENT),
    Lease.EXPIRED: (PeerOutcome.SILENT, PeerOutcome.SILENT),
    Lease.UNKNOWN: (None, PeerOutcome.UNREACHABLE),
}


def decide(lease: Lease, *, for_a_lease: bool) -> PeerOutcome | None:
    """Return the outcome of a request to a peer that has timed out, from the state of the peer's lease. Return None if
    the peer may still answer. `for_a_lease`: the peer was silent for at least `LEASE_S`."""
    at_first, after_a_lease = _DECISIONS[lease]
    return after_a_lease if for_a_lease else at_first
