"""The session of an `initialize`."""

from typing import Any

from msgspec.structs import replace

from gateway.cluster.ownership import Forwarded
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.request_context import RequestContext
from gateway.sessions.session_loading import Resolved
from session_store import ClientFacts
from session_store.testing import ALICE, BOB
from tests.requirements import requirement
from tests.unit.sessions.parts import FOR_ALICE, FOR_BOB, Parts, refused, request
from transports.inbound_port import Request

KEYED: dict[str, Any] = {"mcp_gateway_session_key": "agent-1"}


async def initialized(parts: Parts, asked: Request, who: RequestContext = FOR_ALICE) -> Resolved:
    return await parts.initializer.initialize(asked, who, ClientFacts(name="tests"))


@requirement("cli.session-key")
async def test_at_initialize_a_live_token_wins_over_a_key_and_a_stale_one_does_not() -> None:
    parts = Parts()
    keyed, own = [(await initialized(parts, asked)).live for asked in (request(**KEYED), request())]
    both = request(mcp_session_id=parts.token_of(own), **KEYED)
    assert (await initialized(parts, both)).live is own
    await parts.store.end(own.session.id)
    await parts.lifecycle.close(own.session.id)
    assert (await initialized(parts, both)).live is keyed


@requirement("cli.session-key")
async def test_a_key_goes_before_re_attaching_by_principal_and_new_goes_without() -> None:
    parts = Parts(reattach=frozenset({"principal", "cookie"}))
    attached = await initialized(parts, request())
    assert not (await initialized(parts, request())).opened
    new: dict[str, Any] = {"mcp_gateway_session": "new"}
    for headers in (KEYED, new, {**new, "cookie": parts.cookie_of(attached.live)}):
        assert (await initialized(parts, request(**headers))).opened


@requirement("id.bound", "wall.audit")
async def test_a_token_leads_to_its_own_session_of_its_own_principal_alone() -> None:
    parts = Parts()
    granted = CredentialClaims(trust="sandboxed", permissions=("deploy",))
    live = (await initialized(parts, request(), RequestContext(ALICE, granted, ""))).live
    assert (live.session.context.trust, live.session.context.permissions) == ("sandboxed", ("deploy",))
    for token, why in ((parts.token_of(live), "session of another principal"), ("x", "invalid")):
        assert (await initialized(parts, request(mcp_session_id=token), FOR_BOB)).opened
        await parts.audit.flush()
        [told] = [event for event in await parts.backend.audit.recent() if why in event.why]
        assert (told.event, told.reason, told.principal) == ("refused", "unknown_session", str(BOB))


@requirement("id.bound")
async def test_a_forwarded_initialize_has_the_session_that_the_sender_names_if_it_is_the_callers() -> None:
    parts = Parts()
    live = (await initialized(parts, request())).live
    nothing: Any = None
    sent = Forwarded(session_id=live.session.id, principal=ALICE, epoch=0, version=1, granted=None, started=nothing)
    forwarded = replace(request(), forwarded=sent)
    resolved = await initialized(parts, forwarded)
    assert resolved.live is live and not resolved.opened
    with refused(404):
        await initialized(parts, forwarded, FOR_BOB)
