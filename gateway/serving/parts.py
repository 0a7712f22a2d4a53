"""The parts of one gateway process, in the order in which they are built. Values, but for the events between them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.routing import BaseRoute

from gateway.admin.replicas import PeerQueries
from gateway.calls.event_log import EventWriter
from gateway.calls.live_session import FrameWatches, LiveSession, LiveSessions
from gateway.cluster.forwarding import Forwarder
from gateway.cluster.membership import Membership
from gateway.cluster.ownership import Cluster
from gateway.config.settings import Settings
from gateway.context.announcements import Announcements
from gateway.context.link_resources import LinkResourceProvider
from gateway.context.session_assertions import Assertions
from gateway.context.session_facts import SessionFacts
from gateway.identity.authenticate import Identity, ResourceMetadata
from gateway.identity.context_rules import ContextRules
from gateway.observability.activity import Activity
from gateway.observability.audit import Audit
from gateway.observability.loop_watch import LoopWatch
from gateway.observability.metrics import Metrics
from gateway.observability.request_log import RequestLog
from gateway.policy.decisions import Policy
from gateway.policy.quotas import PrincipalQuotas
from gateway.policy.rate_limits import RateLimits
from gateway.policy.tool_calls import ToolCalls
from gateway.relay.call import Senders
from gateway.relay.endpoint import Endpoint
from gateway.relay.internal_requests import InternalRequests
from gateway.relay.late_servers import LateServers
from gateway.sandbox.enclosures import Enclosures
from gateway.sandbox.packages import Packages
from gateway.sandbox.refusals import SessionRefusals
from gateway.serving.drain import Drain
from gateway.serving.readiness import ServingState
from gateway.sessions.attach import SessionAttacher
from gateway.sessions.carriers import Carriers
from gateway.sessions.event_streams import EventStreamSessions
from gateway.sessions.lifecycle import SessionLifecycle
from gateway.sessions.reattach import InitializeResolver
from gateway.sessions.records import RecordLimits, SessionRecords
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.returns import Returns
from gateway.tasks.made.made_tasks import MadeTasks
from gateway.tasks.made.maker import TaskMaker
from gateway.tasks.made.recovery import TaskRecovery
from gateway.tasks.made.table import TaskTable
from gateway.tasks.notices import TaskNotices
from gateway.upstreams.prestart import PrestartedProcesses, PrestartPool
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store import Backend, KeyRing, Session
from session_store.tool_session import ToolSession
from transports.inbound.http import Guard
from transports.inbound.http_sse import HttpSse
from transports.inbound.limits import Limits
from transports.inbound.streamable_http import StreamableHttp
from transports.upstream.spawn import ForkServer

__all__ = [
    "Callers",
    "Foundation",
    "Http",
    "Listeners",
    "Operating",
    "Parts",
    "Resolution",
    "Servers",
    "SessionParts",
    "TaskParts",
]

T = TypeVar("T")


class Listeners(Generic[T]):
    """An event, for parts that are built before those they notify. Calls its listeners in the order of their coming."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[T], object]] = []

    def add(self, listener: Callable[[T], object]) -> None:
        """Notify that listener from now on."""
        self._listeners.append(listener)

    def notify(self, what: T) -> None:
        """Call every listener. An exception of one reaches the caller, and the listeners after it are not called."""
        for listener in self._listeners:
            listener(what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """What all others build on: the store, the keys, the clock, what is observed, and whether this process serves.

    `cluster` is None where the store serves one gateway only. `name` is that of this replica, for operators.
    """

    settings: Settings
    ring: KeyRing
    clock: Callable[[], float]
    name: str
    backend: Backend
    events: EventWriter
    live: LiveSessions
    metrics: Metrics
    loop_watch: LoopWatch | None
    request_log: RequestLog
    audit: Audit
    activity: Activity
    facts: SessionFacts
    cluster: Cluster | None
    taken_over: Listeners[str]
    """Ids of sessions that another replica took from this one."""
    state: ServingState
    limits: Limits
    rates: RateLimits
    quotas: PrincipalQuotas
    watches: FrameWatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """Who calls, and which `Host` and `Origin` are served."""

    identity: Identity
    senders: Senders
    metadata: ResourceMetadata
    guard: Guard


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """The records and the life of sessions. `closed` is notified of each live session that this replica closes. `tools`
    makes the session that tools in this process see."""

    rules: ContextRules
    announcements: Announcements
    record_limits: RecordLimits
    records: SessionRecords
    lifecycle: SessionLifecycle
    attacher: SessionAttacher
    closed: Listeners[LiveSession]
    tools: Callable[[Session], ToolSession]


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers, what they are given, and what may be done with them."""

    upstreams: list[ConfiguredUpstream]
    fork_server: ForkServer
    enclosures: Mapping[str, Enclosures]
    """The sandboxes of servers with a command, by name."""
    refused: SessionRefusals
    prestarted: PrestartedProcesses
    link_resources: LinkResourceProvider
    packages: Packages
    assertions: Assertions
    policy: Policy
    tool_calls: ToolCalls
    late: LateServers
    endpoints: Mapping[str, Endpoint]
    """By path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Which session a request belongs to."""

    carriers: Carriers
    resolver: SessionResolver
    initializer: InitializeResolver
    returns: Returns
    streams: EventStreamSessions
    prestart: PrestartPool


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParts:
    """The tasks that the gateway makes. `maker` is None where it makes none."""

    table: TaskTable
    recovery: TaskRecovery
    made: MadeTasks
    notices: TaskNotices
    maker: TaskMaker | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """What clients and peers reach, and the tasks of the clients."""

    endpoints: Mapping[str, StreamableHttp]
    """By path."""
    sse: Mapping[str, HttpSse]
    """HTTP+SSE by path, where it is switched on."""
    membership: Membership | None
    forwarder: Forwarder | None
    tasks: TaskParts
    internal: InternalRequests
    """Requests without a credential, from within the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operating:
    """What operators reach, and what replicas ask each other for them."""

    routes: list[BaseRoute]
    queries: PeerQueries


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All parts of a gateway."""

    foundation: Foundation
    callers: Callers
    sessions: SessionParts
    servers: Servers
    resolution: Resolution
    http: Http
    drain: Drain
    operating: Operating
