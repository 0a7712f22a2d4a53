"""The liveness decision: every row of its table."""

from gateway.cluster.liveness import Lease, Liveness, decide


def test_the_lease_of_a_peer_decides_and_how_long_it_has_been_silent() -> None:
    at_once_and_after_a_lease = {
        lease: (decide(lease, for_a_lease=False), decide(lease, for_a_lease=True)) for lease in Lease
    }
    assert at_once_and_after_a_lease == {
        Lease.EXPIRED: (Liveness.GONE, Liveness.GONE),
        Lease.RENEWED: (Liveness.CUT_OFF, Liveness.CUT_OFF),
        Lease.OLD: (Liveness.SILENT, Liveness.SILENT),
        Lease.VALID: (Liveness.WAIT, Liveness.CUT_OFF),  # never gone
        Lease.UNKNOWN: (Liveness.WAIT, Liveness.UNDECIDED),  # without the store nothing is claimed
    }
