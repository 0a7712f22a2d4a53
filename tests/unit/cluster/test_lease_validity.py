"""How long a replica trusts itself, and what it takes from others, by the clock of the test."""

import pytest

from gateway.cluster import lease_validity as module
from gateway.cluster.lease_validity import DOUBT_S, HOLD_S, LEASE_S, TRUST_S, OwnLease
from session_store.testing import FakeClock
from tests.requirements import requirement

pytestmark = requirement("rep.quick", "rep.fence")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


def test_a_replica_trusts_itself_for_a_moment_after_a_renewal_and_longer_while_all_others_hold(
    clock: FakeClock,
) -> None:
    lease = OwnLease()
    assert not lease.is_fresh
    assert not lease.is_fresh
    lease.renewed(clock())
    assert lease.is_fresh and lease.is_fresh_for_a_while
    clock.pass_time(TRUST_S)
    assert not lease.is_fresh
    lease.peers_agreed(clock())
    assert lease.is_fresh
    began, trusted_s = clock(), TRUST_S
    while lease.is_fresh:
        clock.pass_time(HOLD_S / 2)
        lease.peers_agreed(clock())
        trusted_s = TRUST_S + clock() - began
    assert LEASE_S <= trusted_s < LEASE_S + HOLD_S / 2, "until its lease is over"


@requirement("rep.failover")
def test_behind_a_new_connection_to_the_store_nothing_is_trusted_until_all_is_compared(clock: FakeClock) -> None:
    lease = OwnLease()
    lease.renewed(clock())
    lease.store_connected()
    assert not lease.is_fresh
    lease.renewed(clock())
    lease.peers_agreed(clock())
    assert not lease.is_fresh, "others may have claimed what the store has forgotten"
    assert lease.was_trusted(clock())
    lease.compared()
    assert lease.is_fresh
    clock.pass_time(TRUST_S)
    assert not lease.is_fresh


def test_a_late_renewal_counts_from_when_it_was_asked_for(clock: FakeClock) -> None:
    lease = OwnLease()
    lease.renewed(clock())
    clock.pass_time(1.0 + TRUST_S)
    lease.renewed(clock() - TRUST_S)
    assert not lease.is_fresh
    lease.renewed(clock() - 1.0)
    assert lease.is_fresh
    lease.renewed(clock() - TRUST_S)
    assert lease.is_fresh, "an answer that came later than that of a later one changes nothing"


def test_others_are_doubted_only_by_one_that_they_know(clock: FakeClock) -> None:
    lease = OwnLease()
    assert not lease.treat_as_dead("a") and not lease.trusts_expired
    lease.renewed(clock())
    clock.pass_time(LEASE_S)
    lease.renewed(clock() - 0.1)
    assert lease.trusts_expired and not lease.treat_as_dead("a"), "it may have listed the others before this one came"
    clock.pass_time(LEASE_S)
    assert lease.treat_as_dead("a")
    lease.renewed(clock())
    assert not lease.treat_as_dead("a"), "its own lease had run out, so the others did not list it"
    clock.pass_time(2 * LEASE_S)
    lease.not_renewed()
    assert not lease.treat_as_dead("a") and not lease.trusts_expired


def test_who_holds_takes_nothing_and_who_has_doubted_does_not_hold(clock: FakeClock) -> None:
    lease = OwnLease()
    for _ in range(12):
        lease.renewed(clock())
        clock.pass_time(1.0)
    assert lease.agree_to_hold("a") and not lease.treat_as_dead("a") and lease.treat_as_dead("b")
    assert not lease.agree_to_hold("b"), "it may be claiming from it"
    clock.pass_time(HOLD_S)
    assert not lease.treat_as_dead("a"), "the clocks of two machines differ"
    clock.pass_time(DOUBT_S)
    assert lease.treat_as_dead("a")
    clock.pass_time(LEASE_S)
    assert lease.agree_to_hold("b")
