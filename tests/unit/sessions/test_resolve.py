"""Which session a request belongs to, without a gateway around it."""

import asyncio
from typing import Any

import pytest

from gateway.calls import live_session
from gateway.cluster.ownership import Cluster
from gateway.identity.request_context import RequestContext
from gateway.relay.pipeline import store_errors_refused
from gateway.sessions import cached_record
from gateway.sessions.cached_record import AGING_AFTER_S, CACHED_FOR_S
from session_store import ANONYMOUS, KeyRing, MemoryBackend, StoreUnavailable
from session_store.session import new_session_id
from session_store.testing import ALICE, BOB, FakeClock
from session_store.tokens import Purpose, TokenCodec
from tests.requirements import requirement
from tests.unit.sessions.parts import Parts
from transports.era import Era
from transports.inbound_port import OwnedByPeer, Refused, Request
from transports.soon import arrived, is_there

NOBODY = RequestContext(ANONYMOUS, None, "")
FOR_ALICE = RequestContext(ALICE, None, "")
FOR_BOB = RequestContext(BOB, None, "")

pytestmark = pytest.mark.anyio


class CountingStore:
    """A store that does not answer, and counts who tried."""

    def __init__(self) -> None:
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        async def unavailable(*_: Any, **__: Any) -> Any:
            self.asked += 1
            raise StoreUnavailable(name)

        return unavailable


class Switched:
    """A store that answers until it is switched off."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.is_off = False
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)

        async def asked(*arguments: Any, **named: Any) -> Any:
            self.asked += 1
            if self.is_off:
                raise StoreUnavailable(name)
            return await method(*arguments, **named)

        return asked


def request(era: Era = Era.LEGACY, **headers: str) -> Request:
    named = {"user-agent": "curl/8.5.0"} | {name.replace("_", "-"): value for name, value in headers.items()}
    meta = {"io.modelcontextprotocol/clientInfo": {"name": "tests"}} if era is Era.MODERN else {}
    return Request(era=era, endpoint="/mcp", headers=named, meta=meta)


@requirement("id.forged")
async def test_a_forged_token_is_refused_before_any_store_access() -> None:
    store, ring = CountingStore(), KeyRing.ephemeral()
    stranger = TokenCodec(KeyRing.ephemeral(), Purpose.TOKEN).sign(new_session_id())
    for token in (stranger, "nonsense", TokenCodec(ring, Purpose.COOKIE).sign(new_session_id())):
        with pytest.raises(Refused) as refused:
            await arrived(Parts(store=store, ring=ring).resolver.resume(request(mcp_session_id=token), NOBODY))
        assert refused.value.status == 404
    assert store.asked == 0
    forged_cookie = request(cookie=f"mcp_session_id={stranger}")
    assert await arrived(Parts(store=store, ring=ring).resolver.resume(forged_cookie, NOBODY)) is None
    assert store.asked == 0


async def test_a_store_that_does_not_answer_is_503_and_never_404() -> None:
    store, ring = CountingStore(), KeyRing.ephemeral()
    good = TokenCodec(ring, Purpose.TOKEN).sign(new_session_id())
    with pytest.raises(Refused) as refused:
        with store_errors_refused():
            await arrived(Parts(store=store, ring=ring).resolver.resume(request(mcp_session_id=good), NOBODY))
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "1")
    assert store.asked == 1


async def test_a_token_names_one_session_and_only_for_its_own_principal() -> None:
    parts = Parts()
    opened = await arrived(parts.resolver.resume_or_open(request(Era.MODERN), FOR_ALICE))
    assert opened.opened
    token = parts.carriers.token(opened.live.session)
    found = await arrived(parts.resolver.require(request(mcp_session_id=token), FOR_ALICE))
    assert found.live is opened.live and not found.opened
    for stranger in (FOR_BOB, NOBODY):
        with pytest.raises(Refused) as refused:
            await arrived(parts.resolver.resume(request(mcp_session_id=token), stranger))
        assert refused.value.status == 404


async def test_an_explicit_token_comes_before_a_cookie_and_a_cookie_before_the_default_session() -> None:
    parts = Parts()
    by_default = (await arrived(parts.resolver.resume_or_open(request(Era.MODERN), FOR_ALICE))).live
    others = []
    for _ in range(2):
        client = Request(era=Era.MODERN, endpoint="/mcp", headers={"user-agent": "curl/8.5.0"}, meta={})
        await parts.store.end((await arrived(parts.resolver.resume_or_open(client, NOBODY))).live.session.id)
        others.append((await arrived(parts.resolver.resume_or_open(client, FOR_BOB))).live)
    assert others[0] is others[1], "the same client of the same principal"
    mine = (
        await arrived(parts.resolver.resume_or_open(Request(era=Era.MODERN, endpoint="/mcp", headers={}), FOR_ALICE))
    ).live
    assert mine is not by_default, "another client"
    cookie = f"mcp_session_id={parts.carriers.cookies.sign(mine.session.id)}"
    found = await arrived(parts.resolver.resume(request(Era.MODERN, cookie=cookie), FOR_ALICE))
    assert found is not None and found.live is mine and found.cookie_held
    token = parts.carriers.token(by_default.session)
    found = await arrived(
        parts.resolver.resume(request(Era.MODERN, cookie=cookie, mcp_gateway_session=token, user_agent="-"), FOR_ALICE)
    )
    assert found is not None and found.live is by_default and not found.cookie_held
    found = await arrived(parts.resolver.resume(request(Era.MODERN), FOR_ALICE))
    assert found is not None and found.live is by_default


async def test_a_legacy_message_without_a_session_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        await arrived(Parts().resolver.require(request(), FOR_ALICE))
    assert refused.value.status == 400


async def test_the_session_of_another_replica_is_not_served_here() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    owner = Parts(backend=backend, clock=clock, clustered=True)
    other = Parts(backend=backend, clock=clock, clustered=True)
    session = (await arrived(owner.resolver.resume_or_open(request(Era.MODERN), FOR_ALICE))).live.session
    with pytest.raises(OwnedByPeer) as elsewhere:
        await arrived(other.resolver.resume_by_id(session.id, FOR_ALICE, Era.MODERN))
    assert isinstance(owner.cluster, Cluster) and elsewhere.value.route.session.owner == owner.cluster.replica
    assert other.live.get(session.id) is None


async def test_an_owner_serves_its_sessions_by_id_and_by_alias_while_the_store_is_away() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    store = Switched(backend.sessions)
    parts = Parts(backend=backend, store=store, clock=clock, clustered=True)
    assert parts.cluster is not None
    live = (await arrived(parts.resolver.resume_or_open(request(Era.MODERN), FOR_ALICE))).live
    await arrived(parts.resolver.resume(request(Era.MODERN), FOR_ALICE))
    store.is_off = True
    token = parts.carriers.token(live.session)
    for asked in (request(mcp_session_id=token), request(Era.MODERN)):
        with pytest.raises(StoreUnavailable):
            await arrived(parts.resolver.resume(asked, FOR_ALICE))  # no lease: another replica may own it by now
    await parts.cluster.beat()
    for asked in (request(mcp_session_id=token), request(Era.MODERN)):
        found = await arrived(parts.resolver.resume(asked, FOR_ALICE))
        assert found is not None and found.live is live
        with pytest.raises(StoreUnavailable):
            await arrived(parts.resolver.resume(asked, FOR_BOB))


async def test_the_store_is_asked_once_for_requests_that_come_together() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    store = Switched(backend.sessions)
    parts = Parts(backend=backend, store=store, clock=clock)
    live = (await arrived(parts.resolver.resume_or_open(request(Era.MODERN), FOR_ALICE))).live
    token = parts.carriers.token(live.session)
    await arrived(parts.resolver.resume(request(mcp_session_id=token), FOR_ALICE))
    live.read_at += 60.0  # as if no time passed
    store.asked = 0
    for _ in range(3):
        assert await arrived(parts.resolver.resume(request(mcp_session_id=token), FOR_ALICE)) is not None
    assert store.asked == 0
    with pytest.raises(Refused):
        await arrived(parts.resolver.resume(request(mcp_session_id=token), FOR_BOB))
    live.read_at -= 120.0
    await arrived(parts.resolver.resume(request(mcp_session_id=token), FOR_ALICE))
    assert store.asked > 0


KEYED = {"mcp_gateway_session_key": "agent-1"}


@requirement("cli.session-key")
async def test_a_session_key_comes_after_a_token_and_before_the_cookie() -> None:
    parts = Parts()
    keyed = (await arrived(parts.resolver.resume_or_open(request(Era.MODERN, **KEYED), FOR_ALICE))).live
    own = (await arrived(parts.resolver.resume_or_open(request(Era.MODERN, mcp_gateway_session="new"), FOR_ALICE))).live
    cookie = f"mcp_session_id={parts.carriers.cookies.sign(own.session.id)}"
    token = parts.carriers.token(own.session)
    for era in (Era.MODERN, Era.LEGACY):
        found = await arrived(parts.resolver.resume(request(era, cookie=cookie, **KEYED), FOR_ALICE))
        assert found is not None and found.live is keyed and not found.opened
        found = await arrived(parts.resolver.resume(request(era, mcp_gateway_session=token, **KEYED), FOR_ALICE))
        assert found is not None and found.live is own, "the token wins"
    with pytest.raises(Refused) as refused:
        await arrived(parts.resolver.resume(request(Era.MODERN, mcp_gateway_session="forged", **KEYED), FOR_ALICE))
    assert refused.value.status == 404, "an invalid token is not replaced by a key"


@requirement("cli.session-key", "cli.session-key-bound")
async def test_a_session_key_names_one_session_of_one_principal_at_one_endpoint() -> None:
    parts = Parts()
    first = await arrived(parts.resolver.resume_or_open(request(Era.MODERN, **KEYED), FOR_ALICE))
    again = await arrived(parts.resolver.resume_or_open(request(Era.MODERN, **KEYED), FOR_ALICE))
    theirs = await arrived(parts.resolver.resume_or_open(request(Era.MODERN, **KEYED), FOR_BOB))
    elsewhere = Request(era=Era.MODERN, endpoint="/servers/a/mcp", headers={"mcp-gateway-session-key": "agent-1"})
    other = await arrived(parts.resolver.resume_or_open(elsewhere, FOR_ALICE))
    assert first.live is again.live and (first.opened, again.opened, theirs.opened, other.opened) == (
        True,
        False,
        True,
        True,
    )
    assert (
        await arrived(parts.resolver.resume(request(Era.MODERN, mcp_gateway_session_key="agent-2"), FOR_ALICE)) is None
    )
    await parts.store.end(first.live.session.id)
    await parts.lifecycle.close(first.live.session.id)
    assert (await arrived(parts.resolver.resume_or_open(request(Era.MODERN, **KEYED), FOR_ALICE))).opened, (
        "the key is free again"
    )


@requirement("cli.session-key-anonymous")
async def test_an_anonymous_session_with_a_key_waits_for_its_client_as_long_as_any_other() -> None:
    parts = Parts()
    with pytest.raises(Refused) as refused:
        await arrived(parts.resolver.resume_or_open(request(Era.MODERN, **KEYED), NOBODY))
    assert refused.value.status == 400
    asked = request(Era.MODERN, mcp_gateway_session_key="5f2c9a7be01d4368b7f0a1926ce3d854")
    session = (await arrived(parts.resolver.resume_or_open(asked, NOBODY))).live.session
    assert session.confirmed
    headers = dict(parts.carriers.headers(session, asked, cookie_held=False))
    assert b"mcp-gateway-session" in headers and b"set-cookie" not in headers, "a jar may serve several keys"


@requirement("cli.session-key-race")
async def test_first_requests_with_one_key_at_two_replicas_open_one_session() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    replicas = [Parts(backend=backend, clock=clock, clustered=True) for _ in range(2)]
    asked = [
        arrived(parts.resolver.resume_or_open(request(Era.MODERN, **KEYED), FOR_ALICE))
        for parts in replicas
        for _ in range(10)
    ]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    sessions = {
        outcome.route.session.id if isinstance(outcome, OwnedByPeer) else outcome.live.session.id  # type: ignore[union-attr]  # nothing else was raised
        for outcome in outcomes
    }
    assert len(sessions) == 1 and sum(not isinstance(o, BaseException) and o.opened for o in outcomes) == 1


@requirement("cli.session-key")
async def test_an_owner_serves_a_keyed_session_while_the_store_is_away() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    store = Switched(backend.sessions)
    parts = Parts(backend=backend, store=store, clock=clock, clustered=True)
    assert parts.cluster is not None
    live = (await arrived(parts.resolver.resume_or_open(request(Era.MODERN, **KEYED), FOR_ALICE))).live
    await parts.cluster.beat()
    store.is_off = True
    found = await arrived(parts.resolver.resume(request(Era.MODERN, **KEYED), FOR_ALICE))
    assert found is not None and found.live is live
    with pytest.raises(StoreUnavailable):
        await arrived(parts.resolver.resume(request(Era.MODERN, mcp_gateway_session_key="agent-2"), FOR_ALICE))


@requirement("hot.aging-record")
async def test_a_busy_session_is_read_again_behind_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    for module in (cached_record, live_session):
        monkeypatch.setattr(module, "monotonic", clock)
    backend = MemoryBackend(clock=clock)
    store = Switched(backend.sessions)
    parts = Parts(backend=backend, store=store, clock=clock)
    live = (await arrived(parts.resolver.resume_or_open(request(), FOR_ALICE))).live
    by_token = request(mcp_session_id=parts.carriers.token(live.session))
    await arrived(parts.resolver.require(by_token, FOR_ALICE))  # reads the record

    async def asked_by_calls_after(pause_s: float) -> int:
        before = store.asked
        clock.pass_time(pause_s)
        for _ in range(3):
            assert is_there(parts.resolver.require(by_token, FOR_ALICE)), "a call waits for the store"
        await parts.attacher._refreshing.settled()
        return store.asked - before

    for _ in range(5):
        read_at = live.read_at
        assert await asked_by_calls_after(0.5 * AGING_AFTER_S) == 0 and live.read_at == read_at
        assert await asked_by_calls_after(0.5 * AGING_AFTER_S) == 1 and live.read_at == clock(), "one read for all"
    store.is_off = True
    assert await asked_by_calls_after(AGING_AFTER_S) == 1 and live.read_at < clock()
    store.is_off = False
    assert await asked_by_calls_after(0.0) == 1 and live.read_at == clock()
    assert await backend.sessions.end(live.session.id)
    read_at = live.read_at
    assert await asked_by_calls_after(AGING_AFTER_S) == 1 and live.read_at == read_at, "what has ended is no news"
    clock.pass_time(CACHED_FOR_S)
    with pytest.raises(Refused) as refused:
        await arrived(parts.resolver.require(by_token, FOR_ALICE))
    assert refused.value.status == 404
