"""Repeated refusals are counted, in a bounded number of events."""

from gateway.observability.repeated import FULL_ALIKE, FULL_IN_ALL, SUMS, Repeated
from session_store import AuditEvent
from tests.requirements import requirement


@requirement("wall.audit")
def test_refusals_of_many_addresses_cost_a_bounded_number_of_events() -> None:
    now = 0.0
    repeated = Repeated(lambda: now)
    told: list[AuditEvent] = []
    for number in range(20_000):
        event = AuditEvent(at=now, event="refused", reason="bad key", client=f"192.0.{number % 250}.{number % 97}")
        told += filter(None, [repeated.take(event)])
    assert len(told) == FULL_IN_ALL
    sums = list(repeated.sums())
    assert len(sums) == SUMS + 1 and sum(event.count for event in sums) == 20_000 - FULL_IN_ALL
    assert not list(repeated.sums())
    now = 1.0
    alike = AuditEvent(at=now, event="refused", reason="bad key", client="192.0.2.1")
    assert sum(repeated.take(alike) is not None for _ in range(100)) == FULL_ALIKE
