"""Which session a request belongs to, without a gateway around it."""

from typing import Any

import pytest

from gateway.calls.live_session import LiveSessions
from gateway.config.policy import PolicySettings
from gateway.config.sessions import SessionSettings
from gateway.identity.context_rules import ContextRules
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.policy.quotas import PrincipalQuotas
from gateway.policy.rate_limits import RateLimits
from gateway.relay.pipeline import available
from gateway.sessions.lifecycle import Sessions
from gateway.upstreams.prestart import PrestartPool
from session_store import ANONYMOUS, KeyRing, MemoryBackend, SessionStore, StoreUnavailable
from session_store.session import new_session_id
from session_store.testing import FakeClock
from session_store.tokens import Purpose, TokenCodec
from tests.requirements import requirement
from transports.era import Era
from transports.inbound_port import Refused, Request

NOBODY = RequestContext(ANONYMOUS, None, "")

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


def sessions(store: Any, ring: KeyRing) -> Sessions:
    held: SessionStore = store
    backend, clock = MemoryBackend(), FakeClock()
    return Sessions(
        store=held,
        bus=backend.bus,
        audit=Audit(backend.audit, clock),
        live=LiveSessions(backend.events),
        ring=ring,
        settings=SessionSettings(),
        clock=clock,
        closed=lambda _: None,
        rules=ContextRules((), "direct"),
        warm=PrestartPool(lambda *_: []),
        quotas=PrincipalQuotas(
            PolicySettings(),
            backend.quotas,
            held,
            rates=RateLimits(PolicySettings(), backend.rates),
            kept_s=60.0,
            run="",
            runs=backend.directory.replicas,
        ),
    )


def request(**headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(era=Era.LEGACY, endpoint="/mcp", headers=named)


@requirement("id.forged")
async def test_a_forged_token_is_refused_before_any_store_access() -> None:
    store, ring = CountingStore(), KeyRing.ephemeral()
    stranger = TokenCodec(KeyRing.ephemeral(), Purpose.TOKEN).sign(new_session_id())
    for token in (stranger, "nonsense", TokenCodec(ring, Purpose.COOKIE).sign(new_session_id())):
        with pytest.raises(Refused) as refused:
            await sessions(store, ring).resume(request(mcp_session_id=token), NOBODY)
        assert refused.value.status == 404
    assert store.asked == 0
    forged_cookie = request(cookie=f"mcp_session_id={stranger}")
    assert await sessions(store, ring).resume(forged_cookie, NOBODY) is None
    assert store.asked == 0


async def test_a_store_that_does_not_answer_is_503_and_never_404() -> None:
    store, ring = CountingStore(), KeyRing.ephemeral()
    good = TokenCodec(ring, Purpose.TOKEN).sign(new_session_id())
    with pytest.raises(Refused) as refused:
        with available():
            await sessions(store, ring).resume(request(mcp_session_id=good), NOBODY)
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "1")
    assert store.asked == 1
