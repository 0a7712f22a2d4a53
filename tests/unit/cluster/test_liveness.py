"""The liveness decision: every row of its tables."""

from gateway.cluster.envelope import Refusal
from gateway.cluster.liveness import Lease, Liveness, Outcome, after_refusal, decide


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


def test_a_refused_envelope_tells_who_answers_there() -> None:
    assert {why: after_refusal(why) for why in Refusal} == {
        Refusal.SOMEBODY_ELSE: Outcome.GONE,
        Refusal.SEEN: Outcome.UNKNOWN,
        Refusal.INVALID: None,
    }
