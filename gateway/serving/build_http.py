"""Build the endpoints for clients and for other replicas, and the parts that serve their requests."""

from collections.abc import Callable, Mapping

from gateway.bridge.request_state import RequestStateSeal
from gateway.cluster.envelope import Envelopes
from gateway.cluster.forwarding import Forwarder
from gateway.cluster.membership import Beats, Membership
from gateway.cluster.own_reachability import Reachability
from gateway.cluster.ownership import Cluster
from gateway.cluster.peer_listener import PeerListener
from gateway.cluster.requests_to_peers import PeerRequests
from gateway.config.secrets import peer_tls
from gateway.context.session_facts import SESSION_KEY
from gateway.errors import too_much_in_flight
from gateway.identity.offline_rights import OfflineRights
from gateway.relay.call import Calls, Intake
from gateway.relay.legacy_clients import LegacyClients, LegacyHandshake
from gateway.relay.message_handler import MessageHandler
from gateway.relay.modern_clients import ModernClients
from gateway.relay.requests_to_self import InternalRequests
from gateway.serving.gateway_parts import Callers, Foundation, Http, Resolution, Servers, SessionParts, TaskParts
from gateway.sessions.token_carriers import without_tokens
from gateway.tasks.gateway_tasks.quotas import BoundedTasks, RunningNames, TaskQuotas, names_kept_s
from gateway.tasks.gateway_tasks.recovery import TaskRecovery
from gateway.tasks.gateway_tasks.result_requests import Outcomes, ResultCalls
from gateway.tasks.gateway_tasks.resumed_tasks import TaskContinuation
from gateway.tasks.gateway_tasks.task_maker import TaskMaker
from gateway.tasks.gateway_tasks.task_requests import MadeTasks, TaskVisibility
from gateway.tasks.gateway_tasks.task_table import TaskTable
from gateway.tasks.legacy_clients import LegacyTasks
from gateway.tasks.modern_clients import ModernTasks
from gateway.tasks.notifications import TaskNotices
from gateway.tasks.relayed_tasks import RelayedTasks
from gateway.tasks.requested_tasks import RequestedTasks
from gateway.tasks.subscriptions import TaskListening
from gateway.tasks.task_handles import TaskHandles
from session_store import Purpose, Task
from transports.era import LEGACY, MODERN
from transports.inbound.event_stream import StreamTimes
from transports.inbound.http_sse import Addresses, HttpSse
from transports.inbound.streamable_http import StreamableHttp
from transports.inbound.unauthenticated_limits import BodyBudget, Limited


def build_http(
    base: Foundation, callers: Callers, sessions: SessionParts, servers: Servers, resolution: Resolution
) -> Http:
    """Build the endpoints of clients, and the part that forwards requests to the replica that owns their session."""
    options, cluster = base.settings.gateway, base.cluster
    body_budget = BodyBudget(options.limits.all_in_flight_bytes, base.metrics.limited, too_much_in_flight)
    handler, intake, tasks = _message_handler(base, callers, sessions, servers, resolution, body_budget)
    envelopes = Envelopes(base.ring, base.clock, peer_tls(options.peer_tls))
    peers = None if cluster is None else PeerRequests(cluster, envelopes, base.request_log)
    forwarder = None
    if cluster is not None and peers is not None:
        forwarder = Forwarder(
            cluster,
            peers,
            callers.guard,
            base.rates,
            take_over=sessions.attacher.take_over,
            is_here=lambda session_id: base.live.get(session_id) is not None,
            stripped=without_tokens,
        )

    endpoints: dict[str, StreamableHttp] = {}
    served: dict[str, StreamableHttp | HttpSse] = {}
    front = _sse(base, callers, handler) if options.sse else None

    def add(path: str) -> None:
        endpoints[path] = StreamableHttp(
            handler,
            path,
            guard=callers.guard,
            body_budget=body_budget,
            limits=base.limits,
            refusals=base.metrics.limited,
            times=StreamTimes(options.limits.priming_after_s, options.limits.poll_after_s),
            forwarder=forwarder,
        )
        served[path] = endpoints[path]
        if front is not None:
            served.update(front(path, endpoints[path]))

    for path in servers.endpoints:
        add(path)
    internal = InternalRequests(endpoints, host=callers.guard.served_host)
    membership = None
    if cluster is not None and peers is not None:
        membership = _membership(base, cluster, peers, envelopes, endpoints)
    return Http(
        endpoints=endpoints,
        served=served,
        add=add,
        intake=intake,
        membership=membership,
        forwarder=forwarder,
        tasks=tasks,
        internal=internal,
    )


def _message_handler(
    base: Foundation,
    callers: Callers,
    sessions: SessionParts,
    servers: Servers,
    resolution: Resolution,
    body_budget: BodyBudget,
) -> tuple[MessageHandler, Intake, TaskParts]:
    """Build the handler of clients' messages, the part that accepts their calls, and the parts for tasks."""
    options, endpoints, events = base.settings.gateway, servers.endpoints, base.events
    intake = Intake(
        endpoints=endpoints,
        events=events,
        limits=options.limits,
        rates=base.rates,
        cluster=base.cluster,
        log=base.request_log,
        facts=base.facts,
        announcements=sessions.announcements,
    )
    handles = TaskHandles(base.ring)
    relayed = RelayedTasks(handles, intake, endpoints, result_meta=options.result_meta)
    sessions.closed.add(relayed.known.forget)
    parts = _made_tasks(base, sessions, servers, resolution, intake, handles)
    requested = RequestedTasks(
        settings=options.tasks,
        maker=parts.maker,
        made=parts.made,
        results=ResultCalls(parts.table, base.backend.bus, Outcomes(body_budget, options.limits.in_flight_bytes)),
        handles=handles,
        intake=intake,
        endpoints=endpoints,
    )
    handshake = LegacyHandshake(
        initializer=resolution.initializer,
        records=sessions.records,
        lifecycle=sessions.lifecycle,
        carriers=resolution.carriers,
        endpoints=endpoints,
        requested=requested,
        announcements=sessions.announcements,
    )
    legacy_tasks = LegacyTasks(
        relayed=relayed, intake=intake, resolver=resolution.resolver, endpoints=endpoints, requested=requested
    )
    legacy = LegacyClients(
        intake=intake,
        handshake=handshake,
        resolver=resolution.resolver,
        records=sessions.records,
        lifecycle=sessions.lifecycle,
        tasks=legacy_tasks,
        events=events,
        result_meta=options.result_meta,
    )
    listening = TaskListening(
        relayed=relayed, notices=parts.notices, intake=intake, resolver=resolution.resolver, endpoints=endpoints
    )
    modern_tasks = ModernTasks(
        relayed=relayed,
        made=parts.made,
        maker=parts.maker,
        resolver=resolution.resolver,
        endpoints=endpoints,
        listening=listening,
    )
    modern = ModernClients(
        intake=intake,
        resolver=resolution.resolver,
        carriers=resolution.carriers,
        endpoints=endpoints,
        seal=RequestStateSeal(base.ring, base.clock),
        tasks=modern_tasks,
        result_meta=options.result_meta,
    )
    calls = Calls(
        senders=callers.senders,
        clients={LEGACY: legacy, MODERN: modern},
        resolver=resolution.resolver,
        intake=intake,
        audit=base.audit,
        log=base.request_log,
        watches=base.watches,
    )
    handler = MessageHandler(
        senders=callers.senders,
        calls=calls,
        legacy=legacy,
        modern=modern,
        log=base.request_log,
        streams=resolution.streams,
    )
    return handler, intake, parts


def _membership(
    base: Foundation,
    cluster: Cluster,
    peers: PeerRequests,
    envelopes: Envelopes,
    endpoints: Mapping[str, StreamableHttp],
) -> Membership:
    """Build the part that registers this replica with the others on the store, and listens for their requests."""
    options, limited = base.settings.gateway, base.metrics.limited
    return Membership(
        cluster,
        listener=PeerListener(
            cluster.replica,
            envelopes,
            endpoints,
            refused=lambda: limited.update((Limited.HOP,)),
            hold=cluster.lease.hold,
        ),
        peers=peers,
        beats=Beats(cluster, base.backend.bus, peers.hold),
        reachability=Reachability(cluster, envelopes),
        listen=options.internal or options.advertise or f"{options.host}:0",
        advertise=options.advertise,
        store="" if options.internal else options.store,
    )


def _sse(
    base: Foundation, callers: Callers, handler: MessageHandler
) -> Callable[[str, StreamableHttp], dict[str, HttpSse]]:
    """Return a function that makes the endpoints of HTTP+SSE (the transport of 2024-11-05) beside an MCP endpoint, by
    path."""
    addresses = Addresses(base.ring.derive(Purpose.CONNECTION))

    def beside(path: str, endpoint: StreamableHttp) -> dict[str, HttpSse]:
        front = HttpSse(
            endpoint,
            handler,
            path,
            base.backend.bus,
            guard=callers.guard,
            addresses=addresses,
            body_limit=base.settings.gateway.limits.body_bytes,
            session_key=SESSION_KEY,
        )
        stream = path.removesuffix("/mcp") + "/sse"
        return {stream: front, f"{stream}/messages": front}

    return beside


ONLY_REPLICA = "only"
"""The replica's name in stored tasks if only one gateway uses the store. Its next process finds them by this name."""


def _made_tasks(
    base: Foundation,
    sessions: SessionParts,
    servers: Servers,
    resolution: Resolution,
    intake: Intake,
    handles: TaskHandles,
) -> TaskParts:
    """Build the parts for tasks that this gateway makes of calls. If `gateway.tasks.enabled` is off, these parts still
    answer requests about earlier tasks."""
    settings, backend, cluster = base.settings.gateway.tasks, base.backend, base.cluster
    kept_s = names_kept_s(settings)

    def noted(task: Task, what: str) -> None:
        base.metrics.counters["tasks"][what] += 1
        base.audit.task(task, what)

    table = TaskTable(
        settings,
        BoundedTasks(backend.tasks, backend.quotas, settings.principal_bytes, kept_s),
        RunningNames(backend.quotas, ONLY_REPLICA if cluster is None else cluster.replica, kept_s),
        backend.bus,
        noted=noted,
        clock=base.clock,
        is_kept=backend.is_durable or backend.is_shared,
    )

    options = base.settings.gateway
    rights = OfflineRights(
        sessions.rules, api_keys=options.api_keys, auth=options.auth, allow_anonymous=options.allows_anonymous
    )
    continuation = TaskContinuation(
        table,
        base.live,
        sessions.attacher,
        calls=intake,
        endpoints=servers.endpoints,
        handles=handles,
    )
    recovery = TaskRecovery(
        table,
        continuation,
        sessions=backend.sessions,
        attacher=sessions.attacher,
        cluster=cluster,
        rights=rights,
    )
    quotas = TaskQuotas(settings, backend.quotas, backend.tasks)
    made = MadeTasks(
        table,
        recovery,
        sessions=backend.sessions,
        resolver=resolution.resolver,
        quotas=quotas,
        rates=base.rates,
        audit=base.audit,
        may_see=TaskVisibility(sessions.rules, servers.endpoints, servers.policy).may_see,
    )
    maker = TaskMaker(table, quotas, handles) if settings.enabled else None
    notices = TaskNotices(made, backend.tasks, backend.bus)
    return TaskParts(
        table=table,
        recovery=recovery,
        made=made,
        notices=notices,
        maker=maker,
        rights=rights,
    )
