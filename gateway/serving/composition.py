"""Build all parts of a gateway from its settings. Only this package chooses concrete stores and transports."""

import functools
import secrets
from collections.abc import Callable, Mapping
from time import time
from typing import TYPE_CHECKING, Any

from gateway.admin.auth import Access, OperatorHosts, SignInLink
from gateway.admin.operator_tool_calls import ToolCatalog, TriedCalls
from gateway.admin.replica_queries import PeerQueries, Replicas
from gateway.admin.routes import operator_routes
from gateway.admin.session_environments import EnvironmentSources, SessionEnvironments
from gateway.admin.session_list import SessionFinder
from gateway.admin.this_replica import Replica, ReplicaSources
from gateway.admin.verb_handlers import Operations
from gateway.bridge.suspended_calls import ask_modern
from gateway.calls.event_log import EventWriter
from gateway.calls.live_session import FrameWatches, LiveSessions
from gateway.cluster.ownership import Cluster
from gateway.config.addresses import is_loopback
from gateway.config.auth import AuthSettings
from gateway.config.difference import digest
from gateway.config.secrets import key_ring
from gateway.config.settings import ConfigurationError, Settings
from gateway.config.upstreams import OBJECT
from gateway.context.session_facts import SessionFacts
from gateway.identity.authenticate import Identity, ResourceMetadata, TrustedProxies
from gateway.identity.context_rules import kept_claims
from gateway.observability.activity import Activity
from gateway.observability.audit import Audit
from gateway.observability.event_loop_watch import LoopWatch
from gateway.observability.logs import call_lines
from gateway.observability.metrics import Metrics
from gateway.observability.request_log import RequestLog
from gateway.observability.tracing import tracing
from gateway.policy.quotas import PrincipalQuotas
from gateway.policy.rate_limits import RateLimits
from gateway.policy.server_memory import ServerMemory
from gateway.relay.call import Senders
from gateway.serving.build_http import build_http
from gateway.serving.build_servers import build_servers
from gateway.serving.build_sessions import build_resolution, build_sessions
from gateway.serving.drain import Drain
from gateway.serving.gateway_parts import (
    Callers,
    Foundation,
    Http,
    Listeners,
    Operating,
    Parts,
    Resolution,
    Servers,
    SessionParts,
    TaskParts,
)
from gateway.serving.readiness import Readiness, ServingState
from gateway.serving.url_paths import served_paths
from gateway.serving.workers import worker_count
from gateway.sessions.returning_clients import ReturnTracker
from gateway.version import __version__
from session_store import Backend, KeyRing, backend_for
from session_store.connect import BackendOptions
from session_store.tokens import Purpose
from transports.inbound.http import Guard
from transports.via_header import gateway_name

if TYPE_CHECKING:
    from gateway.admin.prometheus import PrometheusExporter
    from gateway.identity.access_tokens import AccessTokens


def compose(
    settings: Settings,
    *,
    store: Backend | None = None,
    servers: Mapping[str, Any] | None = None,
    ring: KeyRing | None = None,
    clock: Callable[[], float] = time,
    link: SignInLink | None = None,
) -> Parts:
    """Build the parts of a gateway, each from those before it.

    `store`: replaces that of the settings. `servers`: server objects by name, in addition to those of the settings.
    `ring`: the keys; None: those of the environment or of the key file. `link`: a one-time sign-in to the console.

    Raises:
        ConfigurationError: the settings cannot be served.
    """
    ring = key_ring(settings.gateway.store) if ring is None else ring
    base = _foundation(settings, ring, clock, store)
    callers = _callers(base)
    sessions = build_sessions(base)
    served = build_servers(base, sessions, servers or {})
    resolution = build_resolution(base, sessions, served)
    http = build_http(base, callers, sessions, served, resolution)
    drain = _drain(base, sessions, served, http.tasks)
    environments = _environments(base, sessions, served)
    replica = _replica(base, served, drain, environments, resolution.returns, http.tasks)
    tried = _tried_calls(base, sessions, served, resolution, http)
    return Parts(
        foundation=base,
        callers=callers,
        sessions=sessions,
        servers=served,
        resolution=resolution,
        http=http,
        drain=drain,
        operating=_operating(base, callers, sessions, replica, tried, link),
    )


def _foundation(settings: Settings, ring: KeyRing, clock: Callable[[], float], store: Backend | None) -> Foundation:
    """Build the store, logs and metrics, and the limits of clients."""
    options = settings.gateway
    backend = store
    if backend is not None and not hasattr(backend, "sessions"):
        raise ConfigurationError(
            f"store={type(store).__name__}: a gateway needs a whole backend, which this is not. Give "
            "session_store.backend_for(url), or an object that passes session_store.testing.BackendContract; a store "
            "with the four methods of DocumentStore serves SessionMiddleware only"
        )
    if backend is None:
        backend = backend_for(options.store, BackendOptions(max_sessions=options.session.max_sessions))
    events = EventWriter(backend.events, lambda session_id: live.epoch_of(session_id, replica))
    live = LiveSessions(events, ask_modern, lambda session, entry: activity.timelines.add(session, entry))
    backend.protect(live.in_use)
    metrics = Metrics()
    taken_over: Listeners[str] = Listeners()
    cluster = None
    if backend.is_shared:
        claims = metrics.counters["claims"]
        cluster = Cluster(backend.directory, backend.sessions, backend.bus, taken_over=taken_over.notify, claims=claims)
        cluster.configuration.use(digest(settings))
    replica = "" if cluster is None else cluster.replica
    name = replica or secrets.token_hex(6)
    activity = Activity(backend, name, clock, lambda: live.count)
    rates = RateLimits(options.rated_policy, backend.rates)
    trusts_announced = options.policy.trust_announced_workspace
    facts = SessionFacts(options.context, options.session.metadata, trusts_announced=trusts_announced)
    return Foundation(
        settings=settings,
        ring=ring,
        clock=clock,
        backend=backend,
        events=events,
        live=live,
        metrics=metrics,
        loop_watch=LoopWatch(metrics),
        request_log=RequestLog(
            metrics,
            lines_per_s=options.log_calls_per_s,
            tracing=tracing(__version__) if options.tracing else None,
            fields=facts.logged,
            lines=call_lines(),
            ended=activity.add_call,
        ),
        audit=Audit(backend.audit, clock, options.audit, facts.audited, activity.add_event),
        name=name,
        hops=_hops(ring, is_shared=backend.is_shared),
        activity=activity,
        facts=facts,
        cluster=cluster,
        taken_over=taken_over,
        state=ServingState(cluster),
        limits=options.limits.before_authentication,
        rates=rates,
        quotas=PrincipalQuotas(
            options.policy,
            backend.quotas,
            backend.sessions,
            rates=rates,
            kept_s=options.longest_age_s,
            run="" if cluster is None else cluster.replica,
            runs=backend.directory.replicas,
        ),
        memory=ServerMemory(options.limits.total_memory_mb, metrics.limited, workers=worker_count()),
        watches=FrameWatches(),
    )


def _hops(ring: KeyRing, *, is_shared: bool) -> tuple[str, ...]:
    """Return the names by which a gateway recognizes itself in `Via` headers; it sends the first one. Replicas share
    their names, which are derived from their keys and do not reveal them. A gateway without replicas gets a random
    name."""
    if not is_shared:
        return (gateway_name(secrets.token_hex(8)),)
    return tuple(gateway_name(key.hex()[:16]) for key in ring.derive(Purpose.HOP))


def _callers(base: Foundation) -> Callers:
    """Build the parts that authenticate callers."""
    options = base.settings.gateway
    metadata = ResourceMetadata(options.auth)
    identity = Identity(
        api_keys=options.api_keys,
        allow_anonymous=options.allows_anonymous,
        auth=options.auth,
        tokens=_tokens(options.auth, base.clock),
        metadata_url=metadata.url,
        fields=options.context.fields,
    )
    senders = Senders(identity=identity, rates=base.rates, audit=base.audit, log=base.request_log)
    return Callers(identity=identity, senders=senders, metadata=metadata, guard=_guard(base, identity.proxies))


def _tokens(auth: AuthSettings, clock: Callable[[], float]) -> "AccessTokens | None":
    """Return the part that verifies access tokens; None if no issuer is trusted."""
    if not auth.jwt:
        return None
    from gateway.identity.access_tokens import AccessTokens  # loads an HTTP client, and PyJWT

    return AccessTokens(auth.jwt, clock)


def _drain(base: Foundation, sessions: SessionParts, servers: Servers, tasks: TaskParts) -> Drain:
    """Build the part that drains this process and reports whether it is ready. The process is ready once a configured
    server has answered; if there is no configured server, once the gateway's own tools have."""

    def can_answer() -> bool:
        configured = [upstream for upstream in servers.upstreams if upstream.settings is not OBJECT]
        counted = configured or servers.upstreams
        return not counted or any(upstream.has_answered for upstream in counted)

    return Drain(
        state=base.state,
        readiness=Readiness(
            base.state.may_serve,
            base.backend.try_write,
            can_answer,
            is_shared=base.backend.is_shared,
        ),
        live=base.live,
        lifecycle=sessions.lifecycle,
        cluster=base.cluster,
        tasks=tasks.table,
        rates=base.rates,
    )


def _replica(
    base: Foundation,
    servers: Servers,
    drain: Drain,
    environments: SessionEnvironments,
    returns: ReturnTracker,
    tasks: TaskParts,
) -> Replica:
    """Build the part that answers operators' questions about this process."""
    return Replica(
        name=base.name,
        live=base.live,
        upstreams=servers.upstreams,
        metrics=base.metrics,
        cluster=base.cluster,
        serving=drain,
        seen=ReplicaSources(
            environments=environments,
            warnings=returns.warnings,
            refused=servers.refused.of,
            unwritten=base.activity.unwritten,
            write_activity=base.activity.write_seen,
            watches=base.watches,
            memory=base.memory,
        ),
        cancel_task=tasks.table.cancel,
    )


def _operating(
    base: Foundation,
    callers: Callers,
    sessions: SessionParts,
    replica: Replica,
    tried: TriedCalls,
    link: SignInLink | None,
) -> Operating:
    """Build the parts for operators: the console, the REST interface, metrics, and queries to other replicas."""
    backend, admin = base.backend, base.settings.gateway.admin
    queries = PeerQueries(backend.bus, replica.name, replica.answer)
    operations = Operations(
        backend=backend,
        replicas=Replicas(backend, replica, queries),
        ending=sessions.lifecycle,
        record=functools.partial(base.audit.record, "operated"),
        clock=base.clock,
        tried=tried,
        settings=base.settings,
    )
    access = Access(
        admin.keys,
        base.ring,
        guard=callers.guard,
        flags=backend.flags,
        audit=base.audit,
        link=link,
        hosts=OperatorHosts((*base.settings.gateway.allowed_hosts, *admin.allowed_hosts)),
    )

    def exposition() -> "PrometheusExporter":
        from gateway.admin.prometheus import PrometheusExporter  # loads prometheus_client

        return PrometheusExporter(replica, base.audit)

    routes = operator_routes(
        operations=operations,
        access=access,
        exposition=exposition,
        backend=backend,
        open_metrics=bool(admin.listen),
    )
    return Operating(
        routes=routes,
        access=access,
        operations=operations,
        replica=replica,
        environments=replica.environments,
        catalog=tried.catalog,
        queries=queries,
    )


def _guard(base: Foundation, proxies: TrustedProxies) -> Guard:
    """Build the check of `Host`, `Origin`, `Via` and proxies for all requests of clients."""
    options = base.settings.gateway
    names, proxies_say = options.allowed_hosts, () if options.auth.proxies is None else options.auth.proxies.headers
    fields = (field.header.lower() for field in options.context.fields.values() if field.header)
    keys = (name.lower() for name in options.session.key_headers)
    return Guard(
        proxies=proxies,
        hosts=frozenset(names),
        domains=tuple(name[1:] for name in names if name.startswith("*.")),
        origins=frozenset(options.allowed_origins),
        loopback=is_loopback(options.host),
        single=frozenset((*proxies_say, *fields, *keys)),
        hops=frozenset(base.hops),
    )


def _environments(base: Foundation, sessions: SessionParts, servers: Servers) -> SessionEnvironments:
    """Build the part that explains to operators what the sessions of this process may do, and why."""
    return SessionEnvironments(base.name, environment_sources(base.settings, sessions, servers), base.live)


def environment_sources(settings: Settings, sessions: SessionParts, servers: Servers) -> EnvironmentSources:
    """Return the configuration that explains what sessions may do."""
    return EnvironmentSources(
        settings=settings,
        upstreams=servers.upstreams,
        served=served_paths([upstream.name for upstream in servers.upstreams]),
        rules=sessions.rules,
        policy=servers.policy,
        sandboxes=servers.sandboxes,
        delegation=servers.fork_server.delegation,
        unusable=servers.tool_calls.unusable,
    )


def _tried_calls(
    base: Foundation, sessions: SessionParts, servers: Servers, resolution: Resolution, http: Http
) -> TriedCalls:
    """Build the part that calls tools for operators."""
    options = base.settings.gateway
    names = [upstream.name for upstream in servers.upstreams]
    return TriedCalls(
        catalog=ToolCatalog(servers.upstreams, served_paths(names), servers.tool_calls.unapproved),
        ask=http.internal,
        finder=SessionFinder(base.backend.sessions, base.clock),
        claims=functools.partial(kept_claims, rules=sessions.rules),
        token=resolution.carriers.token,
        record=functools.partial(base.audit.record, "operated"),
        ending=sessions.lifecycle,
        where=options.admin.try_tools or ("any" if options.is_of_one_person else "own"),
    )
