"""Refused requests are recorded once for each client, and requests that only failed are not."""

from typing import Any

import pytest

from gateway.errors import OutOfMemory, outcome_unknown, store_unavailable, too_many_exchanges, unknown_tool
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import FULL_ALIKE, Audit
from gateway.relay.audited_refusals import record_refused_request
from session_store import AuditEvent
from session_store.embedded.accounting import MemoryAuditTrail
from session_store.testing import ALICE
from tests.requirements import requirement
from tests.unit.relay.parts import a_request
from transports.inbound_port import Refused
from transports.jsonrpc import Message

pytestmark = requirement("pol.refused-once")

WHO = RequestContext(ALICE, None, "c")


async def recorded(refused: Refused, *, times: int = 1, **request: Any) -> list[AuditEvent]:
    trail = MemoryAuditTrail()
    audit = Audit(trail, lambda: 0.0)
    message = Message(jsonrpc="2.0", id=1, method="tools/call")
    for _ in range(times):
        record_refused_request(audit, a_request(message=message, **request), WHO, refused)
    await audit.flush()
    return await trail.recent()


@pytest.mark.parametrize("refused", [OutOfMemory("s"), too_many_exchanges(), unknown_tool("t")])
async def test_what_several_clients_get_is_recorded_for_each_of_them(refused: Refused) -> None:
    events = await recorded(refused, times=2)
    assert [(e.reason, e.outcome, e.principal) for e in events] == [(refused.reason, "refused", str(ALICE))] * 2


@pytest.mark.parametrize("refused", [store_unavailable(), outcome_unknown(), unknown_tool("t").recorded()])
async def test_what_failed_or_is_recorded_is_not_recorded_again(refused: Refused) -> None:
    assert not await recorded(refused)


async def test_a_repeated_request_may_have_been_executed_so_it_is_not_recorded_as_refused() -> None:
    assert not await recorded(unknown_tool("t"), again=True)


async def test_many_alike_are_one_event_whose_reason_stays_the_clients() -> None:
    summed = (await recorded(unknown_tool("t"), times=FULL_ALIKE + 5))[0]
    assert (summed.count, summed.reason, summed.why) == (5, "unknown_tool", "(\u00d75)")
