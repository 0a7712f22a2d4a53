"""The parts of the room, put together on a store in memory."""

from typing import Any

from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.cluster.ownership import Cluster
from gateway.config.context import ContextSettings
from gateway.config.policy import PolicySettings
from gateway.config.sessions import SessionSettings
from gateway.context.announced import Announcements
from gateway.identity.context_rules import ContextRules
from gateway.observability.audit import Audit
from gateway.policy.quotas import PrincipalQuotas
from gateway.policy.rate_limits import RateLimits
from gateway.sessions.aliases import Aliases
from gateway.sessions.attach import SessionAttacher
from gateway.sessions.cached_record import CachedRecords
from gateway.sessions.carriers import Carriers
from gateway.sessions.lifecycle import SessionLifecycle
from gateway.sessions.lookup import SessionLookup
from gateway.sessions.opening import SessionOpener
from gateway.sessions.reattach import InitializeResolver
from gateway.sessions.record_limits import RecordLimits
from gateway.sessions.records import SessionRecords
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.returns import Returns
from gateway.upstreams.prestart import PrestartedProcesses, PrestartPool
from session_store import KeyRing, MemoryBackend, SessionStore
from session_store.testing import FakeClock


class Parts:
    """One replica's sessions. `store` stands in for the backend's sessions."""

    def __init__(
        self,
        *,
        backend: MemoryBackend | None = None,
        store: Any = None,
        ring: KeyRing | None = None,
        clock: FakeClock | None = None,
        clustered: bool = False,
        policy: PolicySettings | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock or FakeClock()
        self.backend = backend or MemoryBackend(clock=self.clock)
        self.store: SessionStore = self.backend.sessions if store is None else store
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
        self.carriers = Carriers(ring or KeyRing.ephemeral(), cookie=chosen.cookie, key_headers=chosen.key_headers)
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
