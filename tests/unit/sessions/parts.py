"""The parts of the room, put together on a store in memory, and requests to them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import pytest

from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.cluster.ownership import Cluster
from gateway.config.policy import PolicySettings
from gateway.config.sessions import ContextSettings, SessionSettings
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.observability.metrics import Metrics
from gateway.policy.principal_quotas import PrincipalQuotas
from gateway.policy.rate_limits import RateLimits
from gateway.serving.build_http import Resolution
from gateway.serving.build_sessions import SessionParts
from gateway.serving.foundation import notify
from gateway.sessions.session_aliases import Aliases
from gateway.sessions.session_attaching import Resolved
from gateway.upstreams.prestart import PrestartedProcesses
from session_store import ANONYMOUS, KeyRing, MemoryBackend, StoreUnavailable
from session_store.testing import ALICE, BOB, FakeClock, a_session
from transports.era import Era
from transports.inbound_port import HandlerCache, Refused, Request

FOR_ALICE: Final = RequestContext(ALICE, None, "")
FOR_BOB: Final = RequestContext(BOB, None, "")
NOBODY: Final = RequestContext(ANONYMOUS, None, "")


def request(
    era: Era = Era.LEGACY,
    *,
    endpoint: str = "/mcp",
    client: str = "tests",
    meta: Mapping[str, Any] | None = None,
    secure: bool = False,
    handler_cache: HandlerCache | None = None,
    **headers: Any,
) -> Request:
    """A request of a client that brings nothing back by itself. `mcp_session_id="x"` is the header of that name."""
    named = {"user-agent": "curl/8.5.0"} | {name.replace("_", "-"): value for name, value in headers.items()}
    told = {"io.modelcontextprotocol/clientInfo": {"name": client}} if era is Era.MODERN and client else {}
    return Request(
        era=era,
        endpoint=endpoint,
        headers=named,
        meta={**told, **(meta or {})},
        secure=secure,
        handler_cache=handler_cache,
    )


@contextlib.contextmanager
def refused(status: int) -> Iterator[None]:
    """What is done within is refused with this status."""
    with pytest.raises(Refused) as refusal:
        yield
    assert refusal.value.status == status


class Unreliable:
    """A store that answers until it is switched off, and counts what it is asked."""

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


class Parts:
    """One replica's sessions, built as the gateway builds them. `store` is made of the backend's sessions, and stands
    in for them."""

    def __init__(
        self,
        *,
        backend: MemoryBackend | None = None,
        store: Callable[[Any], Any] = lambda sessions: sessions,
        clock: FakeClock | None = None,
        clustered: bool = False,
        policy: PolicySettings | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock or FakeClock()
        self.backend = backend or MemoryBackend(clock=self.clock)
        self.store = store(self.backend.sessions)
        self.closed: list[LiveSession] = []
        self.live = LiveSessions(self.backend.events)
        self.audit = Audit(self.backend.audit, self.clock)
        taken_over: list[Callable[[str], object]] = []
        shared = (self.backend.directory, self.store, self.backend.bus)
        self.cluster = Cluster(*shared, taken_over=partial(notify, taken_over)) if clustered else None
        policy = policy or PolicySettings()
        quotas = PrincipalQuotas(
            policy,
            self.backend.quotas,
            self.store,
            rates=RateLimits(policy, self.backend.rates),
            kept_s=60.0,
            run="",
            runs=self.backend.directory.replicas,
        )
        chosen = SessionSettings(**{"trust": "direct", **settings})
        options = SimpleNamespace(session=chosen, context=ContextSettings(), policy=policy)
        of_backend = ("tasks", "bus", "flags", "state")
        base: Any = SimpleNamespace(
            settings=SimpleNamespace(gateway=options, workspaces_become_variables=False),
            backend=SimpleNamespace(sessions=self.store, **{name: getattr(self.backend, name) for name in of_backend}),
            activity=SimpleNamespace(timelines=SimpleNamespace(add=lambda *_: None)),
            metrics=Metrics(),
            ring=KeyRing.ephemeral(),
            **{name: getattr(self, name) for name in ("audit", "clock", "cluster", "live")},
            quotas=quotas,
            taken_over=taken_over,
        )
        served: Any = SimpleNamespace(
            endpoints={path: SimpleNamespace(prestartable=lambda _: []) for path in ("/mcp", "/servers/a/mcp")},
            prestarted=PrestartedProcesses(),
        )
        sessions = SessionParts(base)
        sessions.closed.append(self.closed.append)
        resolution = Resolution(base, sessions, served)
        self.lifecycle, self.attacher, self.records = sessions.lifecycle, sessions.attacher, sessions.records
        self.resolver = resolution.resolver
        self.carriers, self.returns = resolution.carriers, resolution.returns
        self.aliases = Aliases(chosen, self.carriers, self.returns, served.endpoints)

    async def create(self, alias: str | None = None, **fields: Any) -> LiveSession:
        """A new session with these fields, as this replica holds it."""
        return self.live.of(await self.lifecycle.create(a_session(self.clock, **fields), alias))

    def token_of(self, live: LiveSession) -> str:
        return self.carriers.token(live.session)

    def cookie_of(self, live: LiveSession) -> str:
        return f"mcp_session_id={self.carriers.cookies.sign(live.session.id)}"

    async def resume(self, asked: Request, who: RequestContext = FOR_ALICE) -> Resolved | None:
        return await self.resolver.resume(asked, who)

    async def found(self, asked: Request, who: RequestContext = FOR_ALICE) -> LiveSession | None:
        """The session that is resumed by this request."""
        resolved = await self.resume(asked, who)
        return None if resolved is None else resolved.live

    async def require(self, asked: Request, who: RequestContext = FOR_ALICE) -> Resolved:
        return await self.resolver.require(asked, who)

    async def resume_or_open(self, asked: Request, who: RequestContext = FOR_ALICE) -> Resolved:
        return await self.resolver.resume_or_open(asked, who)


def replicas(*, clock: FakeClock | None = None, **settings: Any) -> tuple[Parts, Parts]:
    """Two replicas with one store and one clock."""
    clock = clock or FakeClock()
    backend = MemoryBackend(clock=clock)
    one, other = (Parts(backend=backend, clock=clock, **settings) for _ in range(2))
    return one, other
