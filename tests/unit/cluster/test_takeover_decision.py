"""The decision whether to take over a silent owner's sessions: every row of its table."""

from gateway.cluster.takeover_decision import Lease, PeerOutcome, decide


def test_the_lease_of_a_peer_decides_and_how_long_it_has_been_silent() -> None:
    at_once_and_after_a_lease = {
        lease: (decide(lease, for_a_lease=False), decide(lease, for_a_lease=True)) for lease in Lease
    }
    assert at_once_and_after_a_lease == {
        Lease.EXPIRED: (PeerOutcome.SILENT, PeerOutcome.SILENT),
        Lease.RENEWED: (PeerOutcome.CUT_OFF, PeerOutcome.CUT_OFF),
        Lease.OLD: (PeerOutcome.SILENT, PeerOutcome.SILENT),
        Lease.VALID: (None, PeerOutcome.CUT_OFF),  # never gone
        Lease.UNKNOWN: (None, PeerOutcome.UNREACHABLE),  # without the store nothing is claimed
    }
