"""Which session a request belongs to, without a gateway around it."""

import asyncio
import contextlib
import math
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.calls import live_session
from gateway.calls.live_session import LiveSession
from gateway.cluster.ownership import Forwarded, Route
from gateway.context.session_facts import SESSION_KEY
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.request_context import RequestContext
from gateway.relay.message_handler import store_errors_refused
from gateway.sessions import cached_record_validity
from gateway.sessions.cached_record_validity import AGING_AFTER_S, CACHED_FOR_S
from gateway.sessions.client_return_tracking import ASKED_AGAIN_S
from gateway.sessions.session_attaching import Resolved
from session_store import ClientFacts, KeyRing, StoreUnavailable
from session_store.session import new_session_id
from session_store.testing import ALICE, BOB, FakeClock
from session_store.token_signing import Purpose, TokenCodec
from tests.requirements import requirement
from tests.support.waiting import at_once
from tests.unit.sessions.parts import FOR_ALICE, FOR_BOB, NOBODY, Parts, Unreliable, refused, replicas, request
from transports.era import Era
from transports.inbound_port import HandlerCache, OwnedByPeer, Refused, Request

MODERN = Era.MODERN
KEY: dict[str, Any] = {"mcp_gateway_session_key": "agent-1"}
KEYED = request(MODERN, **KEY)


def by_token(parts: Parts, live: LiveSession) -> Request:
    return request(mcp_session_id=parts.token_of(live))


@requirement("id.forged")
async def test_a_forged_token_is_refused_before_any_store_access() -> None:
    parts, forger = Parts(store=Unreliable), KeyRing.ephemeral()
    stranger = TokenCodec(forger, Purpose.TOKEN).sign(new_session_id())
    cookie = f"mcp_session_id={parts.carriers.cookies.sign(new_session_id())}"
    for token in (stranger, "nonsense", "", "a" * 5_000, parts.carriers.cookies.sign(new_session_id())):
        for named in (
            request(mcp_session_id=token),
            request(MODERN, mcp_gateway_session=token, cookie=cookie),
            request(MODERN, meta={SESSION_KEY: token}, cookie=cookie),
        ):
            with refused(404):  # and no good cookie takes its place
                await parts.resume(named, NOBODY)
    forged = TokenCodec(forger, Purpose.COOKIE).sign(new_session_id())
    for cookie in (stranger, forged, parts.carriers.tokens.sign(new_session_id())):
        assert await parts.resume(request(cookie=f"mcp_session_id={cookie}"), NOBODY) is None
    assert parts.store.asked == 0


async def test_a_store_that_does_not_answer_is_503_and_never_404() -> None:
    parts = Parts(store=Unreliable)
    parts.store.is_off = True
    good = request(mcp_session_id=parts.carriers.tokens.sign(new_session_id()))
    with pytest.raises(Refused) as refusal, store_errors_refused():
        await parts.resume(good, NOBODY)
    assert (refusal.value.status, refusal.value.headers["Retry-After"]) == (503, "1")
    assert parts.store.asked == 1


async def test_a_token_names_one_session_and_only_for_its_own_principal() -> None:
    parts = Parts()
    opened = await parts.resume_or_open(request(MODERN))
    assert opened.opened
    found = await parts.require(by_token(parts, opened.live))
    assert found.live is opened.live and not found.opened
    for stranger in (FOR_BOB, NOBODY):
        with refused(404):
            await parts.resume(by_token(parts, opened.live), stranger)


async def test_an_explicit_token_comes_before_a_cookie_and_a_cookie_before_the_default_session() -> None:
    parts = Parts()
    by_default = (await parts.resume_or_open(request(MODERN))).live
    nameless = request(MODERN, client="")
    one, other = [(await parts.resume_or_open(nameless, FOR_BOB)).live for _ in range(2)]
    assert one is other, "the same client of the same principal"
    mine = (await parts.resume_or_open(request(MODERN, client="", user_agent=""))).live
    assert mine is not by_default, "another client"
    cookie, token = parts.cookie_of(mine), parts.token_of(by_default)
    found = await parts.resume(request(MODERN, cookie=cookie))
    assert found is not None and found.live is mine and found.cookie_held
    found = await parts.resume(request(MODERN, cookie=cookie, mcp_gateway_session=token, user_agent="-"))
    assert found is not None and found.live is by_default and not found.cookie_held
    assert await parts.found(request(MODERN)) is by_default


async def test_a_legacy_message_without_a_session_is_refused() -> None:
    with refused(400):
        await Parts().require(request())


@requirement("hot.forwarded", "id.bound")
async def test_a_way_to_an_owner_is_kept_for_one_caller_in_one_era_until_the_owner_is_silent() -> None:
    owner, other = replicas(clustered=True, store=Unreliable)
    live = (await owner.resume_or_open(request(MODERN))).live
    asked = replace(by_token(other, live), handler_cache=HandlerCache())

    async def route(who: RequestContext, asked: Request = asked) -> Route:
        with pytest.raises(OwnedByPeer) as elsewhere:
            await other.require(asked, who)
        found: Route = elsewhere.value.route
        return found

    first, reads = await route(FOR_ALICE), other.store.asked
    again = await route(FOR_ALICE)
    assert first.memory is again.memory is not None and first.is_read and not again.is_read
    assert other.store.asked == reads and other.live.get(live.session.id) is None, "it is not served here"
    assert (await route(replace(FOR_ALICE, claims=CredentialClaims()))).is_read, "others have other claims"
    for stranger in (replace(asked, era=MODERN), asked):
        with refused(404) if stranger is asked else contextlib.nullcontext():
            assert await other.resume(stranger, FOR_BOB) is None
    again.memory.end()
    assert (await route(FOR_ALICE)).is_read


@requirement("cli.session-key", "cli.default")
async def test_the_bytes_of_a_request_say_its_session_for_good_or_for_a_second() -> None:
    parts = Parts()
    for first in (request(MODERN), KEYED):
        resolved = await parts.resume_or_open(first)
        live, is_key = resolved.live, first is KEYED
        named = (first, by_token(parts, live), request(MODERN, cookie=parts.cookie_of(live)))
        said = [parts.resolver.same_session_for_s(each, FOR_ALICE, await parts.resume_or_open(each)) for each in named]
        assert said == [math.inf if is_key else ASKED_AGAIN_S, math.inf, math.inf]
    own = await parts.resume_or_open(request(MODERN, mcp_gateway_session="new"))
    for asked in (request(MODERN), KEYED):
        assert parts.resolver.same_session_for_s(asked, FOR_ALICE, own) == 0, "it is for another session"


@requirement("cli.session-key")
async def test_an_owner_serves_its_sessions_while_the_store_is_away_however_they_are_named() -> None:
    parts = Parts(store=Unreliable, clustered=True)
    assert parts.cluster is not None
    live, keyed = [(await parts.resume_or_open(asked)).live for asked in (request(MODERN), KEYED)]
    await parts.resume(request(MODERN))  # whose record is recent then; that of the key was never read
    by_cookie = request(MODERN, cookie=parts.cookie_of(live))
    served = ((by_token(parts, live), live), (request(MODERN), live), (KEYED, keyed), (by_cookie, live))
    parts.store.is_off = True
    for asked, _ in served:
        with pytest.raises(StoreUnavailable):
            await parts.resume(asked)  # no lease: another replica may own it by now
    await parts.cluster.beat()
    for asked, expected in served:
        assert await parts.found(asked) is expected
        with pytest.raises(StoreUnavailable):
            await parts.resume(asked, FOR_BOB)
    with pytest.raises(StoreUnavailable):
        await parts.resume(request(MODERN, mcp_gateway_session_key="agent-2"))


@requirement("cli.session-key")
async def test_a_session_key_comes_after_a_token_and_before_the_cookie() -> None:
    parts = Parts()
    keyed = (await parts.resume_or_open(KEYED)).live
    own = (await parts.resume_or_open(request(MODERN, mcp_gateway_session="new"))).live
    for era in (MODERN, Era.LEGACY):
        found = await parts.resume(request(era, cookie=parts.cookie_of(own), **KEY))
        assert found is not None and found.live is keyed and not found.opened
        assert await parts.found(request(era, mcp_gateway_session=parts.token_of(own), **KEY)) is own, "the token wins"
    with refused(404):  # an invalid token is not replaced by a key
        await parts.resume(request(MODERN, mcp_gateway_session="forged", **KEY))


@requirement("cli.session-key", "cli.session-key-bound")
async def test_a_session_key_names_one_session_of_one_principal_at_one_endpoint() -> None:
    parts = Parts()
    first, again = [await parts.resume_or_open(KEYED) for _ in range(2)]
    theirs = await parts.resume_or_open(KEYED, FOR_BOB)
    elsewhere = await parts.resume_or_open(request(MODERN, endpoint="/servers/a/mcp", **KEY))
    opened = [resolved.opened for resolved in (first, again, theirs, elsewhere)]
    assert first.live is again.live and opened == [True, False, True, True]
    assert await parts.resume(request(MODERN, mcp_gateway_session_key="agent-2")) is None
    await parts.lifecycle.end(first.live.session.id, "test")
    assert (await parts.resume_or_open(KEYED)).opened, "the key is free again"


@requirement("cli.session-key-anonymous")
async def test_an_anonymous_session_with_a_key_waits_for_its_client_as_long_as_any_other() -> None:
    parts = Parts()
    with refused(400):
        await parts.resume_or_open(KEYED, NOBODY)
    asked = request(MODERN, mcp_gateway_session_key="5f2c9a7be01d4368b7f0a1926ce3d854")
    session = (await parts.resume_or_open(asked, NOBODY)).live.session
    assert session.confirmed
    headers = dict(parts.carriers.headers(session, asked, cookie_held=False))
    assert b"mcp-gateway-session" in headers and b"set-cookie" not in headers, "a jar may serve several keys"


@requirement("cli.session-key-race")
async def test_first_requests_with_one_key_at_two_replicas_open_one_session() -> None:
    asked = [parts.resume_or_open(KEYED) for parts in replicas(clustered=True) for _ in range(10)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    sessions = {
        outcome.route.session.id if isinstance(outcome, OwnedByPeer) else outcome.live.session.id  # type: ignore[union-attr]  # nothing else was raised
        for outcome in outcomes
    }
    assert len(sessions) == 1 and sum(not isinstance(o, BaseException) and o.opened for o in outcomes) == 1


@requirement("hot.aging-record")
async def test_a_busy_session_is_read_again_behind_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    for module in (cached_record_validity, live_session):
        monkeypatch.setattr(module, "monotonic", clock)
    parts = Parts(store=Unreliable, clock=clock)
    store, live = parts.store, (await parts.resume_or_open(request())).live
    called = by_token(parts, live)
    await parts.require(called)  # reads the record

    async def asked_by_calls_after(pause_s: float) -> int:
        before: int = store.asked
        clock.pass_time(pause_s)
        for _ in range(3):
            at_once(parts.resolver.require(called, FOR_ALICE))
        await parts.attacher._refreshing.settled()
        asked: int = store.asked - before
        return asked

    for _ in range(5):
        read_at = live.read_at
        assert await asked_by_calls_after(0.5 * AGING_AFTER_S) == 0 and live.read_at == read_at
        assert await asked_by_calls_after(0.5 * AGING_AFTER_S) == 1 and live.read_at == clock(), "one read for all"
    store.is_off = True
    assert await asked_by_calls_after(AGING_AFTER_S) == 1 and live.read_at < clock()
    store.is_off = False
    assert await asked_by_calls_after(0.0) == 1 and live.read_at == clock()
    assert await store.end(live.session.id)
    read_at = live.read_at
    assert await asked_by_calls_after(AGING_AFTER_S) == 1 and live.read_at == read_at, "what has ended is no news"
    clock.pass_time(CACHED_FOR_S)
    with refused(404):
        await parts.require(called)


# -- at `initialize`


async def initialized(parts: Parts, asked: Request, who: RequestContext = FOR_ALICE) -> Resolved:
    return await parts.resolver.initialize(asked, who, ClientFacts(name="tests", initialize_params=b"{}"))


async def resumed(parts: Parts) -> int:
    """How often a client has initialized again, as the audit trail says."""
    await parts.audit.flush()
    return sum(event.event == "resumed" for event in await parts.backend.audit.recent())


@requirement("cli.session-key")
async def test_at_initialize_a_live_token_wins_over_a_key_and_a_stale_one_does_not() -> None:
    parts = Parts()
    keyed, own = [(await initialized(parts, asked)).live for asked in (request(**KEY), request())]
    both = request(mcp_session_id=parts.token_of(own), **KEY)
    assert (await initialized(parts, both)).live is own
    await parts.lifecycle.end(own.session.id, "test")
    assert (await initialized(parts, both)).live is keyed


@requirement("cli.session-key")
async def test_a_key_goes_before_re_attaching_by_principal_and_new_goes_without() -> None:
    parts = Parts(reattach=frozenset({"principal", "cookie"}))
    attached = await initialized(parts, request())
    assert not (await initialized(parts, request())).opened
    assert await resumed(parts) == 1
    new: dict[str, Any] = {"mcp_gateway_session": "new"}
    for headers in (KEY, new, {**new, "cookie": parts.cookie_of(attached.live)}):
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
    sent = Forwarded(
        session_id=live.session.id, principal=ALICE, epoch=0, version=1, granted=None, before_sending=nothing
    )
    forwarded = replace(request(), forwarded=sent)
    resolved = await initialized(parts, forwarded)
    assert resolved.live is live and not resolved.opened
    assert await resumed(parts) == 1
    with refused(404):
        await initialized(parts, forwarded, FOR_BOB)
