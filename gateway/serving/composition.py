"""The composition root: the only place that picks concrete stores and transports."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from time import time
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.admin.auth import Access
from gateway.admin.operations import Operations
from gateway.admin.peers import PeerQueries
from gateway.admin.prometheus import PrometheusExporter
from gateway.admin.replica import Replica
from gateway.admin.replicas import PeerReplicas
from gateway.admin.routes import operator_routes
from gateway.bridge.request_state import RequestStateSeal
from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.cluster.envelope import Envelopes
from gateway.cluster.forwarded import PeerListener
from gateway.cluster.forwarding import Forwarding
from gateway.cluster.membership import Membership
from gateway.cluster.ownership import Cluster
from gateway.cluster.peer_requests import PeerRequests
from gateway.cluster.reachability import Reachability
from gateway.config.keyring import key_ring
from gateway.config.settings import ConfigurationError, GatewaySettings, Settings
from gateway.config.upstreams import UpstreamSettings
from gateway.context.assertion import HEADER, Assertions
from gateway.context.link_resources import LinkResourceProvider
from gateway.context.secrets import PrincipalSecrets
from gateway.context.state_api import StateAccess, state_api
from gateway.errors import too_much_in_flight
from gateway.identity.access_tokens import AccessTokens
from gateway.identity.authenticate import Identity
from gateway.identity.context_rules import ContextRules
from gateway.identity.resource_metadata import ResourceMetadata
from gateway.observability.audit import Audit
from gateway.observability.metrics import Metrics
from gateway.observability.otel import flush, tracing
from gateway.observability.request_log import RequestLog
from gateway.policy.decisions import Policy, server_policy
from gateway.policy.quotas import PrincipalQuotas
from gateway.policy.rate_limits import RateLimits
from gateway.policy.tool_calls import ToolCalls
from gateway.protocol.schemas import Schemas
from gateway.relay.admission import Admission
from gateway.relay.aggregation import Aggregation
from gateway.relay.dispatch import Dispatch
from gateway.relay.endpoint import Endpoint
from gateway.relay.intake import Intake
from gateway.relay.legacy import LegacyClients
from gateway.relay.legacy_handshake import LegacyHandshake
from gateway.relay.modern import ModernClients
from gateway.relay.pipeline import Pipeline
from gateway.relay.visible_servers import VisibleServers
from gateway.serving.guard import guard_of
from gateway.serving.own_process import hide, why_in_sight
from gateway.serving.paths import ALL, HEALTH, READY
from gateway.serving.readiness import Readiness
from gateway.sessions.attach import SessionAttacher
from gateway.sessions.cached_record import CachedRecords
from gateway.sessions.carriers import Carriers
from gateway.sessions.child_sessions import ChildSessions
from gateway.sessions.lifecycle import ENDED, SessionLifecycle
from gateway.sessions.lookup import SessionLookup
from gateway.sessions.opening import SessionOpener
from gateway.sessions.reattach import InitializeResolver
from gateway.sessions.record_limits import RecordLimits
from gateway.sessions.records import SessionRecords
from gateway.sessions.resolve import SessionResolver
from gateway.upstreams.factory import in_process, upstream_of
from gateway.upstreams.prestart import PrestartPool
from gateway.upstreams.review import compare
from gateway.upstreams.upstream import ConfiguredUpstream
from gateway.version import __version__
from session_store import (
    Backend,
    KeyRing,
    Purpose,
    Session,
    StoreError,
    StoreUnavailable,
    backend_for,
)
from session_store.connect import BackendOptions
from session_store.context import tool_session
from session_store.tool_session import ToolSession
from transports.inbound.addresses import Addresses
from transports.inbound.bodies import Bodies
from transports.inbound.http_sse import HttpSse
from transports.inbound.limits import Limited
from transports.inbound.streamable_http import StreamableHttp
from transports.jsonrpc import Message
from transports.upstream.spawn import ForkServer
from transports.upstream_port import Upstream

__all__ = ["HAND_OVER_S", "Gateway"]

logger = logging.getLogger(__name__)

HAND_OVER_S = 10.0
"""How long sessions are waited for whose calls are still being answered when the gateway stops."""

LINGER_S = 2.0
"""How long a gateway that leaves others behind serves what still comes, until load balancers have seen that it is not
ready: were idle connections closed at once, a request on its way on one of them would be lost."""

SWEEP_EVERY_S = 1.0
"""How often ended sessions are cleared away and sessions in use kept alive; more often where sessions live short."""

_GIVEN_OBJECT = UpstreamSettings(in_process="given:object")
"""The entry of a server that was given as an object."""


class Gateway:
    """Everything one gateway process holds, put together from its settings."""

    def __init__(
        self,
        settings: Settings,
        *,
        store: Backend | None = None,
        servers: Mapping[str, Any] | None = None,
        ring: KeyRing | None = None,
        clock: Callable[[], float] = time,
    ) -> None:
        options = settings.gateway
        ring = key_ring(options.store) if ring is None else ring
        self.is_draining = False
        self.is_running = False
        lives = options.session
        self.metrics = Metrics()
        self.watching = RequestLog(
            self.metrics,
            lines_per_s=options.log_calls_per_s,
            tracing=tracing(__version__) if options.tracing else None,
        )
        self._sweep_every_s = min(SWEEP_EVERY_S, lives.unconfirmed_ttl_s / 3, lives.idle_ttl_s / 3)
        self.metadata = ResourceMetadata(options.auth)
        self.identity = Identity(
            api_keys=options.api_keys,
            allow_anonymous=options.allows_anonymous,
            auth=options.auth,
            tokens=AccessTokens(options.auth.jwt, clock),
            metadata_url=self.metadata.url,
        )
        self.guard = guard_of(options, self.identity.proxies)
        self._backend = (
            backend_for(options.store, BackendOptions(max_sessions=lives.max_sessions)) if store is None else store
        )
        self.is_ready = Readiness(self._may_serve, self._backend.try_write).is_ready
        self._events = self._backend.events
        self._live = LiveSessions(self._events)
        self._backend.protect(self._live.in_use)
        self.audit = Audit(self._backend.audit, clock, options.audit)
        self._cluster: Cluster | None = None
        if self._backend.is_shared:
            self._cluster = Cluster(
                self._backend.directory,
                self._backend.sessions,
                lost=lambda session_id: self.lifecycle.taken_over(session_id),
            )
        self.rates = RateLimits(options.policy, self._backend.rates)
        self._quotas = PrincipalQuotas(
            options.policy,
            self._backend.quotas,
            self._backend.sessions,
            rates=self.rates,
            kept_s=lives.max_age_s,
            run="" if self._cluster is None else self._cluster.replica,
            runs=self._backend.directory.replicas,
        )
        self._warm = PrestartPool(
            # An app of the operator's own, behind the middleware, has sessions and no servers.
            lambda path, context: endpoints[path].warm_servers(context) if path in endpoints else []
        )
        rules = ContextRules(
            options.policy.rules, lives.trust, trust_announced=options.policy.trust_announced_workspace
        )
        record_limits = RecordLimits(options.limits.record_bytes, self.metrics.limited)
        self._records = SessionRecords(self._backend.sessions, record_limits)
        self.lifecycle = SessionLifecycle(
            store=self._backend.sessions,
            bus=self._backend.bus,
            audit=self.audit,
            live=self._live,
            quotas=self._quotas,
            cluster=self._cluster,
            on_close=self._forget,
        )
        attacher = SessionAttacher(
            store=self._backend.sessions, live=self._live, cluster=self._cluster, rules=rules, audit=self.audit
        )
        opener = SessionOpener(
            lifecycle=self.lifecycle,
            attacher=attacher,
            settings=lives,
            rules=rules,
            prestart=self._warm,
            cluster=self._cluster,
            clock=clock,
        )
        self.carriers = Carriers(ring, cookie=lives.cookie)
        lookup = SessionLookup(self._backend.sessions, self.carriers, self.audit)
        self.resolver = SessionResolver(
            store=self._backend.sessions,
            lookup=lookup,
            live=self._live,
            cached=CachedRecords(rules, self._cluster, clock),
            attacher=attacher,
            opener=opener,
            settings=lives,
        )
        initializer = InitializeResolver(
            resolver=self.resolver,
            lookup=lookup,
            attacher=attacher,
            opener=opener,
            limits=record_limits,
            settings=lives,
            audit=self.audit,
        )
        self._fork_server = ForkServer()
        self.limits = options.limits.before_authentication
        self._grants = LinkResourceProvider(
            self._backend.sessions, self._backend.state, self.limits, self.metrics.limited
        )
        self._credentials = PrincipalSecrets(options.secrets, options.issuers)
        self.assertions = Assertions(ring, issuer=options.issuer, clock=clock)
        given = dict(servers or {})
        if options.tools:
            from gateway.sessions.tools import NAME, gateway_tools  # loads the SDK, which others need not wait for

            given |= {NAME: gateway_tools(self.lifecycle, self._backend.sessions)}
        entries = {**settings.mcpServers, **dict.fromkeys(given, _GIVEN_OBJECT)}
        self.policy = Policy(options.policy, {name: server_policy(entry) for name, entry in entries.items()})
        self.upstreams = [
            self._configured(name, entry, upstream_of(name, entry, options.limits, self._fork_server), options)
            for name, entry in settings.mcpServers.items()
        ]
        self.upstreams += [self._object(name, server, options) for name, server in given.items()]
        handles = ChildSessions(lifecycle=self.lifecycle, attacher=attacher, store=self._backend.sessions, clock=clock)
        self.calls = ToolCalls(self.policy, self.audit, Schemas(), options.policy)
        self._rules = options.policy
        admission = Admission(self.policy, self.calls, self.audit, options.policy)
        dispatch = Dispatch(handles, admission)

        def endpoint(upstreams: Sequence[ConfiguredUpstream]) -> Endpoint:
            visible = VisibleServers(upstreams, self.policy)
            aggregation = Aggregation(visible, admission, call_timeout_s=options.limits.call_timeout_s)
            return Endpoint(visible, dispatch=dispatch, aggregation=aggregation, admission=admission)

        endpoints = {ALL: endpoint(self.upstreams)} | {f"/servers/{u.name}/mcp": endpoint([u]) for u in self.upstreams}
        intake = Intake(
            endpoints=endpoints,
            events=self._events,
            limits=options.limits,
            rates=self.rates,
            cluster=self._cluster,
            watching=self.watching,
        )
        pipeline = Pipeline(
            watching=self.watching,
            rates=self.rates,
            identity=self.identity,
            audit=self.audit,
            legacy=LegacyClients(
                intake=intake,
                handshake=LegacyHandshake(
                    initializer=initializer,
                    records=self._records,
                    lifecycle=self.lifecycle,
                    carriers=self.carriers,
                    endpoints=endpoints,
                ),
                resolver=self.resolver,
                records=self._records,
                lifecycle=self.lifecycle,
                endpoints=endpoints,
                events=self._events,
                result_meta=options.result_meta,
            ),
            modern=ModernClients(
                intake=intake,
                resolver=self.resolver,
                carriers=self.carriers,
                endpoints=endpoints,
                seal=RequestStateSeal(ring, clock),
                result_meta=options.result_meta,
            ),
        )
        bodies = Bodies(options.limits.all_in_flight_bytes, self.metrics.limited, too_much_in_flight)
        guard = self.guard
        forwarding: Forwarding | None = None
        if self._cluster is not None:
            envelopes = Envelopes(ring, clock)
            peers = PeerRequests(self._cluster, envelopes, self.watching)
            forwarding = Forwarding(self._cluster, peers, self.guard, take_over=attacher.take_over)
        self.endpoints = {
            path: StreamableHttp(
                pipeline,
                path,
                guard=guard,
                bodies=bodies,
                limits=self.limits,
                refusals=self.metrics.limited,
                poll_after_s=options.limits.poll_after_s,
                forwarder=forwarding,
            )
            for path in endpoints
        }
        self._membership: Membership | None = None
        if self._cluster is not None:
            self._membership = Membership(
                self._cluster,
                listener=PeerListener(
                    self._cluster.replica,
                    envelopes,
                    self.endpoints,
                    self.limits,
                    refused=lambda: self.metrics.limited.update((Limited.HOP,)),
                ),
                peers=peers,
                reachability=Reachability(self._cluster, envelopes),
                listen=options.internal or options.advertise or f"{options.host}:0",
                advertise=options.advertise,
            )
        self.fronts: dict[str, HttpSse] = {}
        if options.sse:
            for path in endpoints:
                front = HttpSse(
                    self.endpoints[path],
                    pipeline,
                    path,
                    self._backend.bus,
                    guard=guard,
                    addresses=Addresses(ring.derive(Purpose.CONNECTION)),
                    body_limit=options.limits.body_bytes,
                )
                old = path.removesuffix("/mcp") + "/sse"
                self.fronts |= {old: front, f"{old}/messages": front}
        self.paths = (*endpoints, *self.fronts, HEALTH, READY)
        self._operated(options, ring, clock)
        self.state_api = state_api(self._asserted)

    def _operated(self, options: GatewaySettings, ring: KeyRing, clock: Callable[[], float]) -> None:
        """What operators see and do."""
        name = secrets.token_hex(6) if self._cluster is None else self._cluster.replica
        replica = Replica(
            name=name,
            live=self._live,
            upstreams=self.upstreams,
            metrics=self.metrics,
            cluster=self._cluster,
            serving=self,
        )
        self._asking = PeerQueries(self._backend.bus, name, replica.answer)
        operations = Operations(
            backend=self._backend,
            replicas=PeerReplicas(replica, self._backend, self._asking),
            ending=self.lifecycle,
            record=lambda reason: self.audit.tell("operated", reason=reason),
            clock=clock,
        )
        self.operator_routes = operator_routes(
            operations=operations,
            access=Access(options.admin.keys, ring, guard=self.guard, marks=self._backend.marks, audit=self.audit),
            exposition=PrometheusExporter(replica, self.audit),
            backend=self._backend,
            open_metrics=bool(options.admin.listen),
        )

    def tool_session(self, session: Session) -> ToolSession:
        """A session as tools in this process see it."""
        return tool_session(session, sessions=self._backend.sessions, state=self._backend.state)

    async def _asserted(self, request: Request) -> StateAccess:
        """The session that an HTTP server was told of."""
        session_id = self.assertions.session_of(request.headers.get("authorization", "").removeprefix("Bearer "))
        if session_id is None:
            self.audit.tell("refused", reason="no assertion of ours, or an old one")
            raise HTTPException(401, f"send the {HEADER} you were sent a minute ago at most as Authorization: Bearer")
        session = await self._backend.sessions.peek(session_id)
        if session is None:
            raise HTTPException(410, "the session has ended")
        return self._grants.state_of(session)

    def _object(self, name: str, server: Any, options: GatewaySettings) -> ConfiguredUpstream:
        return self._configured(name, _GIVEN_OBJECT, in_process(f"servers[{name!r}]", name, server), options)

    def _configured(
        self, name: str, entry: UpstreamSettings, upstream: Upstream, options: GatewaySettings
    ) -> ConfiguredUpstream:
        configured = ConfiguredUpstream(
            name,
            entry,
            upstream,
            options.limits,
            grants=self._grants,
            record_use=self._records.record_use,
            remote_session_changed=self._records.remote_session_changed,
            assertions=self.assertions,
            credentials=self._credentials,
            quotas=self._quotas,
            started_ahead=self._warm.part,
            sandbox=options.policy.sandbox,
            permits=lambda context, uris: self.policy.permitted_uris(context, name, uris),
        )
        return configured

    def _forget(self, live: LiveSession) -> None:
        self._warm.forget(live.session.id)
        for upstream in self.upstreams:
            upstream.forget(live)

    async def _open_store(self) -> None:
        try:
            await self._backend.open()
        except StoreError as error:
            raise ConfigurationError(f"gateway.store: {error}") from None

    async def try_store(self) -> None:
        """Open the store and close it again. Raises `ConfigurationError` when it cannot be used."""
        await self._open_store()
        await self._backend.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the servers' probe and the sweeper; at the end, leave no process behind."""
        hide()  # an app that embeds us has not been closed to the servers yet
        if any(entry.settings.command for entry in self.upstreams) and (why := why_in_sight()):
            logger.warning("servers without a sandbox can read this process's memory and environment: %s", why)
        await self._open_store()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._backend.close)
            stack.callback(self._grants.close)
            await stack.enter_async_context(self._fork_server)
            if self._membership is not None:
                await stack.enter_async_context(self._membership.joined())
            probes = [upstream.probe() for upstream in self.upstreams]
            work = [self._sweep(), self._listen(), self._take_times()]
            if self._membership is not None:
                work += [*self._membership.upkeep(), self._asking.listen()]
            background = [asyncio.create_task(one) for one in work]
            try:
                # A client's first discover finds the cache filled; a slow server holds up the start for 10 s at most.
                if probes:
                    await asyncio.wait(probes, timeout=10.0)
                await compare(self.upstreams, self._rules, self.calls)
                self.is_running = True
                yield
            finally:
                self.is_running = False
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                await self._leave()
                if self.watching.tracing is not None:
                    await flush()

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Any) -> AsyncIterator[None]:
        """For the app that serves or mounts this gateway: `Starlette(lifespan=gateway.lifespan)`."""
        async with self.running():
            yield

    async def _leave(self) -> None:
        """End what this process holds. The sessions themselves stay, where the store outlives us."""
        with contextlib.suppress(StoreUnavailable):
            await self.lifecycle.keep_alive()
            await self.audit.flush()
        held = [live.session for live in self._live]
        closing = [self.lifecycle.close(session.id, over=False) for session in held]
        await asyncio.gather(
            *closing, *(u.close() for u in self.upstreams), self.lifecycle.settled(), return_exceptions=True
        )
        self.watching.another_second(time())
        await self._warm.close()
        await self._quotas.settled()
        if self._cluster is not None:
            with contextlib.suppress(StoreUnavailable):
                await asyncio.gather(*(self._cluster.release(session) for session in held))
                await self._cluster.leave()

    async def drain(self) -> None:
        """Not ready any more; open streams end, so that their clients go elsewhere."""
        self.is_draining = True
        if self._cluster is not None:
            self._cluster.start_leaving()
        for live in self._live:
            live.leave()
            for exchange in list(live.exchanges.values()):
                if exchange.is_subscription:
                    exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(b'{"resultType":"complete"}')))
                    if exchange.conversation is not None:
                        exchange.conversation.cancel(exchange, "the gateway stops")
        if self._cluster is not None:
            await asyncio.gather(self._hand_over(), asyncio.sleep(LINGER_S if await self._has_others() else 0.0))

    async def _has_others(self) -> bool:
        """Whether requests can go elsewhere; as far as is known, they can."""
        assert self._cluster is not None
        try:
            return await self._cluster.another() is not None
        except StoreUnavailable:
            return True

    def admit(self) -> None:
        """Be ready again after a drain: sessions that nobody owns may be served here."""
        self.is_draining = False
        if self._cluster is not None:
            self._cluster.stop_leaving()

    async def _hand_over(self) -> None:
        """Let other replicas have the sessions, each as soon as its calls have been answered."""
        until = asyncio.get_running_loop().time() + HAND_OVER_S
        with contextlib.suppress(StoreUnavailable):
            # Calls end in many places; a look now and then is simpler than hearing of each.
            while not await self.lifecycle.release_idle() and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # calls end in many places, and this is over in seconds

    def _may_serve(self) -> bool:
        is_found = self._cluster is None or self._cluster.is_reachable
        return self.is_running and is_found and not self.is_draining

    async def _sweep(self) -> None:
        silent = False
        while True:
            await asyncio.sleep(self._sweep_every_s)
            try:
                self._warm.sweep()
                await self.lifecycle.sweep()
                if silent:
                    logger.info("the session store answers again")
                silent = False
            except StoreUnavailable as error:
                if not silent:
                    logger.warning("the session store does not answer: %s", error)
                silent = True

    async def _take_times(self) -> None:
        """End a second in the metrics' history, second by second."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(1.0)
            self.metrics.record_loop_lag(loop.time() - began - 1.0)
            self.watching.another_second(time())

    async def _listen(self) -> None:
        """Hear of sessions that end elsewhere."""
        while True:
            try:
                async with self._backend.bus.subscribed(ENDED, self.lifecycle.ended_elsewhere):
                    await asyncio.Event().wait()
            except StoreUnavailable:
                await asyncio.sleep(self._sweep_every_s)
