"""The liveness decision: every row of its tables."""

import pytest

from gateway.cluster.envelope import Refusal
from gateway.cluster.liveness import DECISIONS, REFUSALS, Lease, Liveness, Outcome, after_refusal, decide


def test_every_combination_has_a_decision() -> None:
    assert {*DECISIONS} == {(lease, long) for lease in Lease for long in (False, True)}
    assert {*REFUSALS} == {*Refusal}


@pytest.mark.parametrize("for_a_lease", [False, True])
def test_a_peer_whose_lease_has_expired_is_gone_at_once(for_a_lease: bool) -> None:
    assert decide(Lease.EXPIRED, for_a_lease=for_a_lease) is Liveness.GONE


@pytest.mark.parametrize("for_a_lease", [False, True])
def test_a_peer_that_renews_its_lease_in_silence_is_cut_off_and_one_that_does_not_is_silent(for_a_lease: bool) -> None:
    assert decide(Lease.RENEWED, for_a_lease=for_a_lease) is Liveness.CUT_OFF
    assert decide(Lease.OLD, for_a_lease=for_a_lease) is Liveness.SILENT


def test_a_peer_with_a_valid_lease_is_waited_for_and_then_cut_off_but_never_gone() -> None:
    assert decide(Lease.VALID, for_a_lease=False) is Liveness.WAIT
    assert decide(Lease.VALID, for_a_lease=True) is Liveness.CUT_OFF


def test_without_the_store_nothing_is_claimed() -> None:
    assert decide(Lease.UNKNOWN, for_a_lease=False) is Liveness.WAIT
    assert decide(Lease.UNKNOWN, for_a_lease=True) is Liveness.UNDECIDED


def test_a_refused_envelope_tells_who_answers_there() -> None:
    assert after_refusal(Refusal.SOMEBODY_ELSE) is Outcome.GONE
    assert after_refusal(Refusal.SEEN) is Outcome.UNKNOWN
    assert after_refusal(Refusal.INVALID) is None
