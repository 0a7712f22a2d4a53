"""The session of an `initialize`."""

import pytest

from gateway.identity.request_context import RequestContext
from session_store import ClientFacts
from session_store.testing import ALICE
from tests.requirements import requirement
from tests.unit.sessions.parts import Parts
from transports.era import Era
from transports.inbound_port import Request

FOR_ALICE = RequestContext(ALICE, None, "")
FACTS = ClientFacts(name="tests")

pytestmark = pytest.mark.anyio


def request(**headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(era=Era.LEGACY, endpoint="/mcp", headers=named)


@requirement("cli.session-key", "id.reattach")
async def test_initialize_with_a_key_resumes_the_session_of_that_key() -> None:
    parts = Parts()
    keyed = request(mcp_gateway_session_key="agent-1")
    first = await parts.initializer.initialize(keyed, FOR_ALICE, FACTS)
    again = await parts.initializer.initialize(keyed, FOR_ALICE, FACTS)
    assert first.opened and not again.opened and first.live is again.live
    other = await parts.initializer.initialize(request(mcp_gateway_session_key="agent-2"), FOR_ALICE, FACTS)
    alone = await parts.initializer.initialize(request(), FOR_ALICE, FACTS)
    assert other.opened and alone.opened


@requirement("cli.session-key")
async def test_at_initialize_a_live_token_wins_over_a_key_and_a_stale_one_does_not() -> None:
    parts = Parts()
    keyed = (await parts.initializer.initialize(request(mcp_gateway_session_key="agent-1"), FOR_ALICE, FACTS)).live
    own = (await parts.initializer.initialize(request(), FOR_ALICE, FACTS)).live
    both = request(mcp_gateway_session_key="agent-1", mcp_session_id=parts.carriers.token(own.session))
    assert (await parts.initializer.initialize(both, FOR_ALICE, FACTS)).live is own
    await parts.store.end(own.session.id)
    await parts.lifecycle.close(own.session.id)
    assert (await parts.initializer.initialize(both, FOR_ALICE, FACTS)).live is keyed


@requirement("cli.session-key")
async def test_a_key_goes_before_re_attaching_by_principal_and_new_goes_without() -> None:
    parts = Parts(reattach=frozenset({"principal", "cookie"}))
    attached = await parts.initializer.initialize(request(), FOR_ALICE, FACTS)
    assert not (await parts.initializer.initialize(request(), FOR_ALICE, FACTS)).opened
    assert (await parts.initializer.initialize(request(mcp_gateway_session_key="a"), FOR_ALICE, FACTS)).opened
    cookie = f"mcp_session_id={parts.carriers.cookies.sign(attached.live.session.id)}"
    for asked in (request(mcp_gateway_session="new"), request(mcp_gateway_session="new", cookie=cookie)):
        assert (await parts.initializer.initialize(asked, FOR_ALICE, FACTS)).opened
