"""Build the parts that find the session of a request, and the endpoints for clients and other replicas."""

from collections.abc import Sequence

from gateway.bridge.request_state import RequestStateSeal
from gateway.cluster.forwarded_request_envelope import Envelopes
from gateway.cluster.forwarding import Forwarder
from gateway.cluster.membership import LeaseRenewal, Membership
from gateway.cluster.own_reachability import Reachability
from gateway.cluster.ownership import Cluster
from gateway.cluster.peer_listener import PeerListener
from gateway.cluster.requests_to_peers import PeerRequests
from gateway.config.secrets import peer_tls
from gateway.context.session_facts import SESSION_KEY
from gateway.errors import too_much_in_flight
from gateway.identity.offline_rights import OfflineRights
from gateway.relay.call import Calls, Intake, Senders
from gateway.relay.legacy_clients import LegacyClients
from gateway.relay.message_handler import MessageHandler
from gateway.relay.modern_clients import ModernClients
from gateway.serving.build_servers import Servers
from gateway.serving.build_sessions import SessionParts
from gateway.serving.foundation import Foundation
from gateway.sessions.cached_record_validity import CachedRecords
from gateway.sessions.client_return_tracking import ReturnTracker
from gateway.sessions.opening import SessionOpener
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.session_aliases import Aliases
from gateway.sessions.token_carriers import Carriers, without_tokens
from gateway.tasks.gateway_tasks.orphaned_tasks import TaskContinuation
from gateway.tasks.gateway_tasks.quotas import BoundedTasks, RunningNames, TaskQuotas, names_kept_s
from gateway.tasks.gateway_tasks.recovery import TaskRecovery
from gateway.tasks.gateway_tasks.result_requests import ResultCalls
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
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.prestart import PrestartPool
from session_store import Context, Purpose, Task
from transports.era import LEGACY, MODERN
from transports.inbound.host_and_origin import Guard
from transports.inbound.http_sse import Addresses, HttpSse
from transports.inbound.streamable_http import StreamableHttp
from transports.inbound.unauthenticated_limits import BodyBudget, Limited

ONLY_REPLICA = "only"
"""The replica's name in stored tasks if only one gateway uses the store. The gateway's next process finds the tasks by
this name."""


class Resolution:
    """The parts that find the session of a request, or open a new one and start processes for it in advance."""

    def __init__(self, base: Foundation, sessions: SessionParts, servers: Servers) -> None:
        settings, store = base.settings.gateway.session, base.backend.sessions

        def prestartable(path: str, context: Context) -> Sequence[ConfiguredUpstream]:
            # The path of an app behind the middleware: its sessions have no servers.
            return servers.endpoints[path].prestartable(context) if path in servers.endpoints else []

        self.prestart = PrestartPool(servers.prestarted, prestartable, base.clock)
        self.carriers = Carriers(
            base.ring,
            cookie=settings.cookie,
            key_headers=settings.key_headers,
        )
        self.returns = ReturnTracker(settings, base.backend.flags, base.audit)
        self.resolver = SessionResolver(
            store=store,
            carriers=self.carriers,
            live=base.live,
            cached=CachedRecords(sessions.rules, base.cluster, base.clock),
            attacher=sessions.attacher,
            opener=SessionOpener(
                lifecycle=sessions.lifecycle,
                attacher=sessions.attacher,
                settings=settings,
                rules=sessions.rules,
                announcements=sessions.announcements,
                prestart=self.prestart,
                clock=base.clock,
            ),
            aliases=Aliases(settings, self.carriers, self.returns, servers.endpoints),
            returns=self.returns,
            records=sessions.records,
            audit=base.audit,
        )


class TaskParts:
    """The parts for tasks that the gateway makes of calls.

    If `gateway.tasks.enabled` is off, `maker` is None, and no call becomes a task. The other parts still answer
    requests about earlier tasks.
    """

    def __init__(
        self, base: Foundation, sessions: SessionParts, servers: Servers, resolution: Resolution, intake: Intake
    ) -> None:
        options, backend, cluster = base.settings.gateway, base.backend, base.cluster
        settings, kept_s = options.tasks, names_kept_s(options.tasks)
        self.handles = TaskHandles(base.ring)

        def noted(task: Task, what: str) -> None:
            base.metrics.counters["tasks"][what] += 1
            base.audit.task(task, what)

        self.table = TaskTable(
            settings,
            BoundedTasks(backend.tasks, backend.quotas, kept_s),
            RunningNames(backend.quotas, ONLY_REPLICA if cluster is None else cluster.replica, kept_s),
            backend.bus,
            noted=noted,
            clock=base.clock,
            is_kept=backend.is_durable or backend.is_shared,
        )
        self.rights = OfflineRights(
            sessions.rules, api_keys=options.api_keys, auth=options.auth, allow_anonymous=options.allows_anonymous
        )
        continuation = TaskContinuation(
            self.table,
            base.live,
            sessions.attacher,
            calls=intake,
            endpoints=servers.endpoints,
            handles=self.handles,
        )
        self.recovery = TaskRecovery(
            self.table,
            continuation,
            sessions=backend.sessions,
            attacher=sessions.attacher,
            cluster=cluster,
            rights=self.rights,
        )
        quotas = TaskQuotas(settings, backend.quotas, backend.tasks)
        self.made = MadeTasks(
            self.table,
            self.recovery,
            sessions=backend.sessions,
            resolver=resolution.resolver,
            quotas=quotas,
            rates=base.rates,
            audit=base.audit,
            may_see=TaskVisibility(sessions.rules, servers.endpoints, servers.policy).may_see,
        )
        self.maker = TaskMaker(self.table, quotas, self.handles) if settings.enabled else None
        self.notices = TaskNotices(self.made, backend.tasks, backend.bus)


class Http:
    """The endpoints of clients and of other replicas, the parts that serve their requests, and the tasks of clients.

    `endpoints`: the MCP endpoints, by path. `served`: the MCP endpoints and those of HTTP+SSE, by path.
    """

    def __init__(
        self,
        base: Foundation,
        guard: Guard,
        senders: Senders,
        sessions: SessionParts,
        servers: Servers,
        resolution: Resolution,
    ) -> None:
        options = base.settings.gateway
        self._base = base
        self._guard = guard
        self.body_budget = BodyBudget(base.memory.bodies, base.metrics.limited, too_much_in_flight)
        self.intake = Intake(
            endpoints=servers.endpoints,
            events=base.events,
            limits=options.limits,
            rates=base.rates,
            cluster=base.cluster,
            log=base.request_log,
            facts=base.facts,
            announcements=sessions.announcements,
        )
        self.tasks = TaskParts(base, sessions, servers, resolution, self.intake)
        self._handler = self._message_handler(senders, sessions, servers, resolution)
        self.endpoints: dict[str, StreamableHttp] = {}
        self.served: dict[str, StreamableHttp | HttpSse] = {}
        self.forwarder: Forwarder | None = None
        self.membership: Membership | None = None
        if base.cluster is not None:
            envelopes = Envelopes(base.ring, base.clock, peer_tls(options.peer_tls))
            peers = PeerRequests(base.cluster, envelopes, base.request_log)
            self.forwarder = Forwarder(
                base.cluster,
                peers,
                guard,
                base.rates,
                take_over=sessions.attacher.take_over,
                is_here=lambda session_id: base.live.get(session_id) is not None,
                stripped=without_tokens,
            )
            self.membership = self._membership(base.cluster, peers, envelopes, self.forwarder)
        self._addresses = Addresses(base.ring.derive(Purpose.CONNECTION)) if options.sse else None
        for path in servers.endpoints:
            self.add(path)

    def add(self, path: str) -> None:
        """Serve the servers of `Servers.endpoints[path]` as an MCP endpoint at `path`. If the settings ask for it, also
        serve them by HTTP+SSE (the transport of 2024-11-05), below a path of its own."""
        base, limits = self._base, self._base.settings.gateway.limits
        self.endpoints[path] = self.served[path] = endpoint = StreamableHttp(
            self._handler,
            path,
            guard=self._guard,
            body_budget=self.body_budget,
            limits=base.limits,
            refusals=base.metrics.limited,
            poll_after_s=limits.poll_after_s,
            forwarder=self.forwarder,
        )
        if self._addresses is not None:
            stream = path.removesuffix("/mcp") + "/sse"
            self.served[stream] = self.served[f"{stream}/messages"] = HttpSse(
                endpoint,
                self._handler,
                path,
                base.backend.bus,
                guard=self._guard,
                addresses=self._addresses,
                body_limit=limits.body_bytes,
                session_key=SESSION_KEY,
            )

    def _message_handler(
        self, senders: Senders, sessions: SessionParts, servers: Servers, resolution: Resolution
    ) -> MessageHandler:
        base, parts, intake, endpoints = self._base, self.tasks, self.intake, servers.endpoints
        options, handles = base.settings.gateway, parts.handles
        relayed = RelayedTasks(handles, intake, endpoints, result_meta=options.result_meta)
        sessions.closed.append(relayed.known.forget)
        requested = RequestedTasks(
            settings=options.tasks,
            maker=parts.maker,
            made=parts.made,
            results=ResultCalls(parts.table, base.backend.bus, self.body_budget, options.limits.in_flight_bytes),
            handles=handles,
            intake=intake,
            endpoints=endpoints,
        )
        legacy_tasks = LegacyTasks(
            relayed=relayed, intake=intake, resolver=resolution.resolver, endpoints=endpoints, requested=requested
        )
        legacy = LegacyClients(
            intake=intake,
            resolver=resolution.resolver,
            records=sessions.records,
            lifecycle=sessions.lifecycle,
            announcements=sessions.announcements,
            tasks=legacy_tasks,
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
            seal=RequestStateSeal(base.ring, base.clock),
            tasks=modern_tasks,
            result_meta=options.result_meta,
        )
        calls = Calls(
            senders=senders,
            clients={LEGACY: legacy, MODERN: modern},
            resolver=resolution.resolver,
            intake=intake,
            audit=base.audit,
            log=base.request_log,
            watches=base.watches,
        )
        return MessageHandler(calls=calls, legacy=legacy, modern=modern)

    def _membership(
        self, cluster: Cluster, peers: PeerRequests, envelopes: Envelopes, forwarder: Forwarder
    ) -> Membership:
        """Build the part that registers this replica with the others on the store, and listens for their requests."""
        options, limited = self._base.settings.gateway, self._base.metrics.limited
        return Membership(
            cluster,
            listener=PeerListener(
                cluster.replica,
                envelopes,
                self.endpoints,
                refused=lambda: limited.update((Limited.HOP,)),
                hold=cluster.lease.agree_to_hold,
                claim=forwarder.claim_for_peer,
            ),
            peers=peers,
            lease_renewal=LeaseRenewal(cluster, self._base.backend.bus, peers.hold),
            reachability=Reachability(cluster, envelopes),
            listen=options.internal or options.advertise or f"{options.host}:0",
            advertise=options.advertise,
            store="" if options.internal else options.store,
        )
