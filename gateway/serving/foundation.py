"""Build the parts of a gateway process that all others need: store, keys, logs, metrics, limits, and its state."""

import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from gateway.bridge.call_suspension import ask_modern
from gateway.calls.event_log import EventWriter
from gateway.calls.live_session import FrameWatches, LiveSessions
from gateway.cluster.ownership import Cluster
from gateway.config.configuration_difference import digest
from gateway.config.settings import ConfigurationError, Settings
from gateway.context.session_facts import SessionFacts
from gateway.observability.activity_buffer import Activity
from gateway.observability.audit import Audit
from gateway.observability.event_loop_watch import LoopWatch
from gateway.observability.logs import call_lines
from gateway.observability.metrics import Metrics
from gateway.observability.request_log import RequestLog
from gateway.observability.tracing import tracing
from gateway.policy.memory_admission import ServerMemory
from gateway.policy.principal_quotas import PrincipalQuotas
from gateway.policy.rate_limits import RateLimits
from gateway.serving.readiness import ServingState
from gateway.serving.workers import worker_count
from gateway.version import __version__
from session_store import Backend, KeyRing, backend_for
from session_store.connect import BackendOptions
from session_store.token_signing import Purpose
from transports.via_header import gateway_name

T = TypeVar("T")


def notify(listeners: Iterable[Callable[[T], object]], what: T) -> None:
    """Call each listener with the argument `what`, in order. An exception of a listener is raised at once, and the
    later listeners are not called."""
    for listener in listeners:
        listener(what)


class Foundation:
    """The parts that all others need: the store, keys, clock, logs and metrics, limits of clients, and the state of
    this process.

    `cluster`: None if only one gateway can use the store. `name`: the name of this replica for operators.
    """

    def __init__(
        self, settings: Settings, ring: KeyRing, clock: Callable[[], float], store: Backend | None = None
    ) -> None:
        options = settings.gateway
        if store is not None and not hasattr(store, "sessions"):
            raise ConfigurationError(
                f"store={type(store).__name__}: a gateway needs a whole backend, which this is not. Give "
                "session_store.backend_for(url), or an object that passes session_store.testing.BackendContract; a "
                "store with the four methods of DocumentStore serves SessionMiddleware only"
            )
        if store is None:
            store = backend_for(options.store, BackendOptions(max_sessions=options.session.max_sessions))
        self.settings = settings
        self.ring = ring
        self.clock = clock
        self.backend = store
        self.metrics = Metrics()
        self.taken_over: list[Callable[[str], object]] = []
        """Functions that are called with the id of each session that another replica has taken over."""
        self.cluster: Cluster | None = None
        if store.is_shared:
            claims, lost = self.metrics.counters["claims"], partial(notify, self.taken_over)
            self.cluster = Cluster(store.directory, store.sessions, store.bus, taken_over=lost, claims=claims)
            self.cluster.configuration.use(digest(settings))
        replica = "" if self.cluster is None else self.cluster.replica
        self.name = replica or secrets.token_hex(6)
        # The names by which a gateway recognizes itself in `Via` headers; it sends the first one. Replicas share
        # theirs, which are derived from their keys and do not reveal them.
        of_keys = [key.hex()[:16] for key in ring.derive(Purpose.HOP)] if store.is_shared else [secrets.token_hex(8)]
        self.hops = tuple(map(gateway_name, of_keys))
        self.events = EventWriter(store.events, lambda session_id: self.live.epoch_of(session_id, replica))
        self.activity = Activity(store, self.name, clock, lambda: self.live.count)
        self.live = LiveSessions(self.events, ask_modern, self.activity.timelines.add)
        store.protect(self.live.in_use)
        self.facts = SessionFacts(
            options.context, options.session.metadata, trusts_announced=options.policy.trust_announced_workspace
        )
        self.loop_watch = LoopWatch(self.metrics)
        self.request_log = RequestLog(
            self.metrics,
            tracing=tracing(__version__),
            fields=self.facts.log_fields,
            lines=call_lines(),
            ended=self.activity.add_call,
        )
        self.audit = Audit(store.audit, clock, options.audit, self.facts.audit_fields, self.activity.add_event)
        self.state = ServingState(self.cluster)
        self.limits = options.limits.before_authentication
        self.rates = RateLimits(options.rated_policy, store.rates)
        self.quotas = PrincipalQuotas(
            options.policy,
            store.quotas,
            store.sessions,
            rates=self.rates,
            kept_s=options.longest_age_s,
            run=replica,
            runs=store.directory.replicas,
        )
        self.memory = ServerMemory(options.limits.total_memory_mb, self.metrics.limited, workers=worker_count())
        self.watches = FrameWatches()
