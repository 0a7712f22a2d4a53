"""The parts of the room, put together on a store in memory, and requests to them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.cluster.ownership import Cluster
from gateway.config.policy import PolicySettings
from gateway.config.sessions import ContextSettings, SessionSettings
from gateway.context.client_workspace import Announcements
from gateway.identity.context_rules import ContextRules
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.policy.quotas import PrincipalQuotas
from gateway.policy.rate_limits import RateLimits
from gateway.sessions.aliases import Aliases
from gateway.sessions.attach import Resolved, SessionAttacher
from gateway.sessions.cached_record import CachedRecords
from gateway.sessions.carriers import Carriers
from gateway.sessions.lifecycle import SessionLifecycle
from gateway.sessions.lookup import SessionLookup
from gateway.sessions.opening import SessionOpener
from gateway.sessions.reattach import InitializeResolver
from gateway.sessions.records import RecordLimits, SessionRecords
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.returns import Returns
from gateway.upstreams.prestart import PrestartedProcesses, PrestartPool
from session_store import ANONYMOUS, KeyRing, MemoryBackend, StoreUnavailable
from session_store.testing import ALICE, BOB, FakeClock, a_session
from transports.era import Era
from transports.inbound_port import Memory, Refused, Request

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
    memory: Memory | None = None,
    **headers: Any,
) -> Request:
    """A request of a client that brings nothing back by itself. `mcp_session_id="x"` is the header of that name."""
    named = {"user-agent": "curl/8.5.0"} | {name.replace("_", "-"): value for name, value in headers.items()}
    told = {"io.modelcontextprotocol/clientInfo": {"name": client}} if era is Era.MODERN and client else {}
    return Request(
        era=era, endpoint=endpoint, headers=named, meta={**told, **(meta or {})}, secure=secure, memory=memory
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
    """One replica's sessions. `store` is made of the backend's sessions, and stands in for them."""

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
        self.rules = ContextRules((), "direct")
        self.cluster: Cluster | None = None
        if clustered:
            self.cluster = Cluster(
                self.backend.directory, self.store, self.backend.bus, taken_over=lambda i: self.lifecycle.taken_over(i)
            )
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
        chosen = SessionSettings(**settings)
        self.lifecycle = SessionLifecycle(
            tasks=self.backend.tasks,
            store=self.store,
            bus=self.backend.bus,
            audit=self.audit,
            live=self.live,
            quotas=quotas,
            cluster=self.cluster,
            on_close=self.closed.append,
        )
        announcements = Announcements(chosen.workspace_path, ContextSettings(), lambda _: None)
        self.attacher = SessionAttacher(
            store=self.store,
            live=self.live,
            cluster=self.cluster,
            rules=self.rules,
            announcements=announcements,
            audit=self.audit,
        )
        self.carriers = Carriers(KeyRing.ephemeral(), cookie=chosen.cookie, key_headers=chosen.key_headers)
        self.returns = Returns(chosen, self.backend.marks, self.audit, clock=self.clock, wall=self.clock)
        self.aliases = Aliases(chosen, self.carriers, self.returns, ("/mcp", "/servers/a/mcp"))
        self.cached = CachedRecords(self.rules, self.cluster, self.clock)
        lookup = SessionLookup(self.store, self.carriers, self.audit)
        opener = SessionOpener(
            lifecycle=self.lifecycle,
            attacher=self.attacher,
            settings=chosen,
            rules=self.rules,
            announcements=announcements,
            prestart=PrestartPool(PrestartedProcesses(), lambda *_: []),
            cluster=self.cluster,
            clock=self.clock,
        )
        self.resolver = SessionResolver(
            store=self.store,
            lookup=lookup,
            live=self.live,
            cached=self.cached,
            attacher=self.attacher,
            opener=opener,
            aliases=self.aliases,
            returns=self.returns,
        )
        self.limits = RecordLimits(400)
        self.records = SessionRecords(self.store, self.limits)
        self.initializer = InitializeResolver(
            resolver=self.resolver,
            lookup=lookup,
            attacher=self.attacher,
            aliases=self.aliases,
            limits=self.limits,
            settings=chosen,
            audit=self.audit,
        )

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


def replicas(**settings: Any) -> tuple[Parts, Parts]:
    """Two replicas with one store and one clock."""
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    one, other = (Parts(backend=backend, clock=clock, **settings) for _ in range(2))
    return one, other
