"""The session of an `initialize`."""

from typing import Any

import msgspec
import pytest

from gateway.cluster.ownership import Forwarded
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.request_context import RequestContext
from session_store import ClientFacts
from session_store.testing import ALICE, BOB
from tests.requirements import requirement
from tests.unit.sessions.parts import Parts
from transports.era import Era
from transports.inbound_port import Refused, Request

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


@requirement("id.bound", "wall.audit")
async def test_a_token_leads_to_its_own_session_of_its_own_principal_alone() -> None:
    parts = Parts()
    granted = CredentialClaims(trust="sandboxed", permissions=("deploy",))
    live = (await parts.initializer.initialize(request(), RequestContext(ALICE, granted, ""), FACTS)).live
    assert (live.session.context.trust, live.session.context.permissions) == ("sandboxed", ("deploy",))
    for_bob = RequestContext(BOB, None, "")
    for token, reason in ((parts.carriers.token(live.session), "session of another principal"), ("x", "invalid")):
        assert (await parts.initializer.initialize(request(mcp_session_id=token), for_bob, FACTS)).opened
        await parts.audit.flush()
        [told] = [event for event in await parts.backend.audit.recent() if reason in event.reason]
        assert (told.event, told.principal) == ("refused", str(BOB))


@requirement("id.bound")
async def test_a_forwarded_initialize_has_the_session_that_the_sender_names_if_it_is_the_callers() -> None:
    parts = Parts()
    live = (await parts.initializer.initialize(request(), FOR_ALICE, FACTS)).live
    nothing: Any = None
    sent = Forwarded(session_id=live.session.id, principal=ALICE, epoch=0, version=1, granted=None, started=nothing)
    forwarded = msgspec.structs.replace(request(), forwarded=sent)
    resolved = await parts.initializer.initialize(forwarded, FOR_ALICE, FACTS)
    assert resolved.live is live and not resolved.opened
    with pytest.raises(Refused) as refused:
        await parts.initializer.initialize(forwarded, RequestContext(BOB, None, ""), FACTS)
    assert refused.value.status == 404
