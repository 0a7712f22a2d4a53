"""The decision whether to take over a silent owner's sessions: every row of its table."""

from gateway.cluster.takeover_decision import Lease, Outcome, decide


def test_the_lease_of_a_peer_decides_and_how_long_it_has_been_silent() -> None:
    at_once_and_after_a_lease = {
        lease: (decide(lease, for_a_lease=False), decide(lease, for_a_lease=True)) for lease in Lease
    }
    assert at_once_and_after_a_lease == {
        Lease.EXPIRED: (Outcome.SILENT, Outcome.SILENT),
        Lease.RENEWED: (Outcome.CUT_OFF, Outcome.CUT_OFF),
        Lease.OLD: (Outcome.SILENT, Outcome.SILENT),
        Lease.VALID: (None, Outcome.CUT_OFF),  # never gone
        Lease.UNKNOWN: (None, Outcome.UNREACHABLE),  # without the store nothing is claimed
    }
