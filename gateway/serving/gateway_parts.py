"""Define the groups of parts of a gateway process, in the order in which they are built."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.routing import BaseRoute

from gateway.admin.auth import Access
from gateway.admin.operator_tool_calls import ToolCatalog
from gateway.admin.replica_queries import PeerQueries
from gateway.admin.session_environments import SessionEnvironments
from gateway.admin.this_replica import Replica
from gateway.admin.verb_handlers import Operations
from gateway.calls.event_log import EventWriter
from gateway.calls.live_session import FrameWatches, LiveSession, LiveSessions
from gateway.cluster.forwarding import Forwarder
from gateway.cluster.membership import Membership
from gateway.cluster.ownership import Cluster
from gateway.config.settings import Settings
from gateway.config.upstreams import UpstreamSettings
from gateway.context.client_announcements import Announcements
from gateway.context.link_resources import LinkResourceProvider
from gateway.context.principal_secrets import PrincipalSecrets
from gateway.context.session_assertions import Assertions
from gateway.context.session_facts import SessionFacts
from gateway.identity.authenticate import Identity, ResourceMetadata
from gateway.identity.context_rules import ContextRules
from gateway.identity.offline_rights import OfflineRights
from gateway.observability.activity import Activity
from gateway.observability.audit import Audit
from gateway.observability.event_loop_watch import LoopWatch
from gateway.observability.metrics import Metrics
from gateway.observability.request_log import RequestLog
from gateway.policy.decisions import Policy
from gateway.policy.quotas import PrincipalQuotas
from gateway.policy.rate_limits import RateLimits
from gateway.policy.server_memory import ServerMemory
from gateway.policy.tool_policy import ToolCalls
from gateway.relay.call import Intake, Senders
from gateway.relay.endpoint_servers import EndpointServers
from gateway.relay.late_servers import LateServers
from gateway.relay.policy_admission import Admission
from gateway.relay.requests_to_self import InternalRequests
from gateway.sandbox.packages import Packages
from gateway.sandbox.profiles import WallsOfFetches
from gateway.sandbox.refusals import SessionRefusals
from gateway.sandbox.sandboxes_by_trust import SandboxesByTrust
from gateway.serving.drain import Drain
from gateway.serving.readiness import ServingState
from gateway.sessions.http_sse_sessions import HttpSseSessions
from gateway.sessions.lifecycle import SessionLifecycle
from gateway.sessions.record_changes import RecordLimits, SessionRecords
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.resolve_initialize import InitializeResolver
from gateway.sessions.returning_clients import ReturnTracker
from gateway.sessions.session_loading import SessionAttacher
from gateway.sessions.token_carriers import Carriers
from gateway.tasks.gateway_tasks.recovery import TaskRecovery
from gateway.tasks.gateway_tasks.task_maker import TaskMaker
from gateway.tasks.gateway_tasks.task_requests import MadeTasks
from gateway.tasks.gateway_tasks.task_table import TaskTable
from gateway.tasks.notifications import TaskNotices
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.former_servers import FormerServers
from gateway.upstreams.prestart import PrestartedProcesses, PrestartPool
from session_store import Backend, KeyRing, Session
from session_store.tool_session import ToolSession
from transports.inbound.http import Guard
from transports.inbound.http_sse import HttpSse
from transports.inbound.streamable_http import StreamableHttp
from transports.inbound.unauthenticated_limits import Limits
from transports.upstream.fork_server_client import ForkServer

T = TypeVar("T")


class Listeners(Generic[T]):
    """An event of one part for other parts, which may be built later. Its listeners are called in the order of
    `add`."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[T], object]] = []

    def add(self, listener: Callable[[T], object]) -> None:
        """Add a listener for all later events."""
        self._listeners.append(listener)

    def notify(self, what: T) -> None:
        """Call all listeners with `what`. If a listener raises an exception, raise it, and do not call the later
        ones."""
        for listener in self._listeners:
            listener(what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """The parts that all others need: the store, keys, clock, logs and metrics, and the state of this process.

    `cluster`: None if only one gateway can use the store. `name`: the name of this replica for operators.
    """

    settings: Settings
    ring: KeyRing
    clock: Callable[[], float]
    name: str
    hops: tuple[str, ...]
    backend: Backend
    events: EventWriter
    live: LiveSessions
    metrics: Metrics
    loop_watch: LoopWatch
    request_log: RequestLog
    audit: Audit
    activity: Activity
    facts: SessionFacts
    cluster: Cluster | None
    taken_over: Listeners[str]
    """The event that another replica took over a session. Listeners get its id."""
    state: ServingState
    limits: Limits
    rates: RateLimits
    quotas: PrincipalQuotas
    memory: ServerMemory
    watches: FrameWatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """The parts that authenticate callers and check `Host` and `Origin`."""

    identity: Identity
    senders: Senders
    metadata: ResourceMetadata
    guard: Guard


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """The parts that store sessions, open them and end them.

    `closed`: the event that this replica closed a live session. `tools` returns the object by which tools in this
    process use a session.
    """

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
    """The servers, the parts that start their processes, and the policy for them."""

    upstreams: list[ConfiguredUpstream]
    fork_server: ForkServer
    sandboxes: dict[str, SandboxesByTrust]
    """The sandboxes of servers that have a command, by name."""
    make: Callable[[Mapping[str, UpstreamSettings], Mapping[str, SandboxesByTrust]], dict[str, ConfiguredUpstream]]
    """Makes servers of other entries, with their sandboxes by name."""
    fetch_walls: WallsOfFetches
    credentials: PrincipalSecrets
    former: FormerServers
    refused: SessionRefusals
    prestarted: PrestartedProcesses
    link_resources: LinkResourceProvider
    packages: Packages
    assertions: Assertions
    policy: Policy
    tool_calls: ToolCalls
    admission: Admission
    late: LateServers
    serving: Callable[[Sequence[ConfiguredUpstream]], EndpointServers]
    """Makes the endpoint of some servers."""
    endpoints: dict[str, EndpointServers]
    """The servers and policy behind each path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The parts that find the session of a request."""

    carriers: Carriers
    resolver: SessionResolver
    initializer: InitializeResolver
    returns: ReturnTracker
    streams: HttpSseSessions
    prestart: PrestartPool


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParts:
    """The parts for tasks that the gateway makes of calls. `maker` is None if the gateway makes no tasks."""

    table: TaskTable
    recovery: TaskRecovery
    made: MadeTasks
    notices: TaskNotices
    rights: OfflineRights
    maker: TaskMaker | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """The parts that serve requests of clients and other replicas, and the tasks of clients."""

    endpoints: dict[str, StreamableHttp]
    """The MCP endpoints, by path."""
    served: dict[str, StreamableHttp | HttpSse]
    """All endpoints, by path."""
    add: Callable[[str], None]
    """Serves another path of `Servers.endpoints`, in all transports."""
    intake: Intake
    membership: Membership | None
    forwarder: Forwarder | None
    tasks: TaskParts
    internal: InternalRequests
    """Sends requests from within the process, which need no credential."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operating:
    """The parts for operators. `queries` sends their queries to other replicas, and answers theirs."""

    routes: list[BaseRoute]
    access: Access
    operations: Operations
    replica: Replica
    environments: SessionEnvironments
    catalog: ToolCatalog
    queries: PeerQueries


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All parts of a gateway process, in groups."""

    foundation: Foundation
    callers: Callers
    sessions: SessionParts
    servers: Servers
    resolution: Resolution
    http: Http
    drain: Drain
    operating: Operating
