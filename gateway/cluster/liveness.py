"""Decide whether the sessions of an owner that cannot be reached may be taken over. Pure: no I/O, no clock.

An owner that does not answer may have died, may be cut off from this replica, or may be slow. The decision depends on
the state of its lease and the time since its last answer.
"""

import enum
from typing import Final

__all__ = ["Lease", "Liveness", "Outcome", "decide"]


class Lease(enum.Enum):
    """The state of a replica's lease in the store."""

    VALID = enum.auto()
    RENEWED = enum.auto()
    """It was renewed after the replica fell silent: the replica runs."""
    OLD = enum.auto()
    """It was not renewed for so long that the replica asks the store before it answers."""
    EXPIRED = enum.auto()
    UNKNOWN = enum.auto()
    """The store does not answer, or did not a moment ago: then every lease looks expired."""


class Liveness(enum.Enum):
    """The decision about a peer that has timed out."""

    WAIT = enum.auto()
    """It may still answer."""
    GONE = enum.auto()
    """It has died: its sessions may be claimed."""
    CUT_OFF = enum.auto()
    """It runs and does not reach this replica: its sessions may be claimed once it has learned of the claim."""
    SILENT = enum.auto()
    """It does not answer, and does not renew its lease: its sessions may be claimed."""
    UNDECIDED = enum.auto()
    """Its state is unknown, and the client has waited long enough: the client gets 503."""


DECISIONS: Final = {
    # lease, and whether the peer has been timed out for at least one lease
    (Lease.VALID, False): Liveness.WAIT,
    (Lease.VALID, True): Liveness.CUT_OFF,
    (Lease.RENEWED, False): Liveness.CUT_OFF,
    (Lease.RENEWED, True): Liveness.CUT_OFF,
    (Lease.OLD, False): Liveness.SILENT,
    (Lease.OLD, True): Liveness.SILENT,
    (Lease.EXPIRED, False): Liveness.GONE,
    (Lease.EXPIRED, True): Liveness.GONE,
    (Lease.UNKNOWN, False): Liveness.WAIT,
    (Lease.UNKNOWN, True): Liveness.UNDECIDED,
}


def decide(lease: Lease, *, for_a_lease: bool) -> Liveness:
    """Return the decision about a peer that has timed out. `for_a_lease`: it was silent for at least `LEASE_S`."""
    return DECISIONS[lease, for_a_lease]


class Outcome(enum.Enum):
    """The end of a request to a peer."""

    ANSWERED = enum.auto()
    MOVED = enum.auto()
    """The peer does not serve the session, or no longer does."""
    GONE = enum.auto()
    """The peer has died (`Liveness.GONE`)."""
    CUT_OFF = enum.auto()
    """The peer runs, but does not reach this replica (`Liveness.CUT_OFF`)."""
    SILENT = enum.auto()
    """The peer neither answers nor renews its lease (`Liveness.SILENT`)."""
    UNKNOWN = enum.auto()
    """The connection was lost before the end of the answer. The peer may run, and the request may have taken effect."""
