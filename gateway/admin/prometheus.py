"""Export the metrics to Prometheus. They are collected for each scrape."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from gateway.admin.this_replica import Replica, ReplicaCounts
from gateway.calls.lifecycles import LOSSES
from gateway.observability.audit import Audit
from gateway.observability.metrics import BUCKETS_S, COUNTERS, Histogram
from gateway.observability.queued_output import dropped_lines
from gateway.observability.request_outcomes import FAILURES
from gateway.protocol.methods import CACHEABLE
from gateway.upstreams.link_opener import Start
from gateway.version import __version__
from session_store.ports.audit import StepName

Row = tuple[tuple[str, ...], float]
"""The values of a metric's labels, and its value."""

_EVENTS = frozenset(get_args(StepName)) - {"operated"}


class PrometheusExporter:
    """Collect the metrics of this replica, and write them as `/metrics` returns them. `audit`: its counts of events are
    exported, too."""

    def __init__(self, replica: Replica, audit: Audit) -> None:
        self._replica = replica
        self._audit = audit
        self._replicas = 0
        self._store_s: float | None = None
        self._counted = ReplicaCounts({})
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    async def render(self, accept: str, store_s: float | None, replicas: int) -> tuple[bytes, str]:
        """Return the metrics as text, and its media type. `accept`: the `Accept` header of the scrape, which chooses
        the format. `store_s`: the seconds until the store answered; None if it did not. `replicas`: the number of
        replicas."""
        counts = await self._replica.counts()
        # No await from here on: the collector reads these.
        self._store_s, self._replicas, self._counted = store_s, replicas, counts
        encoder, kind = choose_encoder(accept)
        return encoder(self._registry), kind

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families; `prometheus_client` calls this for each scrape."""
        yield from self._requests()
        yield from self._process()
        yield from self._servers()
        yield from self._memory()
        yield from self._store()

    def _requests(self) -> Iterator[Metric]:
        metrics, audit = self._replica.metrics, self._audit
        requests: list[Row] = []
        own: dict[tuple[str, ...], Histogram] = defaultdict(lambda: Histogram(BUCKETS_S))
        conventional: dict[tuple[str, ...], Histogram] = defaultdict(lambda: Histogram(BUCKETS_S))
        for (*labels, kind), series in metrics.series.items():
            ended = kind.replace(" ", "_")
            requests.append(((*labels, ended), series.count))
            own[*labels].include(series)
            conventional[*labels, ended if kind in FAILURES else ""].include(series)
        yield _counter("requests", "Requests of clients by outcome", requests, "server", "method", "era", "outcome")
        yield _histogram(
            "mcp_gateway_request_duration_seconds",
            "Time from the arrival of a request to its answer, without subscriptions",
            own.items(),
            *("server", "method", "era"),
        )
        yield _histogram(
            "mcp_server_operation_duration_seconds",
            "The same times under OpenTelemetry's name, by failure",
            conventional.items(),
            *("server", "mcp_method_name", "era", "error_type"),
        )
        for name, row in COUNTERS.items():
            values = dict.fromkeys([*row.known, *metrics.counters[name]])
            yield _counter(name, row.help, [((value,), metrics.counters[name][value]) for value in values], row.label)
        events = [((event,), audit.counts[event]) for event in _EVENTS | audit.counts.keys()]
        yield _counter("session_events", "Session events and refusals by kind", events, "event")
        yield _histogram(
            "mcp_server_session_duration_seconds",
            "Ages at which sessions ended, by how they ended",
            (((how,), lasted) for how, lasted in audit.durations.items()),
            "event",
        )
        calls = "Calls answered in sessions that ended here"
        yield _histogram("mcp_gateway_session_calls", calls, [((), audit.calls_each)])
        yield _counter("audit_lost", "Audit events that were dropped", [((), audit.lost)])
        yield _counter("log_lines_dropped", "Lines for stderr that were dropped", [((), dropped_lines())])

    def _process(self) -> Iterator[Metric]:
        counts, metrics = self._counted, self._replica.metrics
        for name, text, value in (
            ("sessions", "Sessions that this process serves", counts.sessions),
            ("sessions_without_workspace", "Those of them that have no workspace", counts.without_workspace),
            ("exchanges_in_flight", "Requests in flight", counts.in_flight),
            ("calls_parked", "Calls that wait for input from their client", counts.suspended),
            ("streams", "Open event streams", counts.streams),
            ("draining", "1 while sessions are handed over", self._replica.is_draining),
            (
                "configuration_outdated",
                "1 while another replica has a newer configuration file",
                self._replica.is_outdated,
            ),
            ("loop_lag_seconds", "Delay of the event loop in the last second", metrics.loop_lag_s),
        ):
            yield _gauge(name, text, value)
        stalls = "How late the event loop was, measured 20 times a second"
        yield _histogram("mcp_gateway_loop_stall_seconds", stalls, [((), metrics.stalls)])
        yield _histogram(
            "mcp_gateway_collector_pause_seconds",
            "Time for which the garbage collector stopped the process, by generation",
            (((str(generation),), pause) for generation, pause in enumerate(metrics.collections)),
            "generation",
        )
        yield InfoMetricFamily("mcp_gateway_build", "Version of the gateway", value={"version": __version__})

    def _servers(self) -> Iterator[Metric]:
        upstreams = self._replica.upstreams
        processes = [((server,), count) for server, count in self._counted.processes.items()]
        yield _gauge("server_processes", "Server processes", processes, "server")
        up = [((u.name,), u.has_answered) for u in upstreams]
        yield _gauge("server_up", "Whether the server has answered the gateway", up, "server")
        # With those that have not happened: of what begins at 1 the increase is not seen.
        restarts = [((u.name, why), u.restarts[why]) for u in upstreams for why in LOSSES | u.restarts.keys()]
        yield _counter("server_restarts", "Restarts of servers by reason", restarts, "server", "reason")
        yield _counter(
            "server_starts",
            "Starts of servers: those that answered, and those that failed before",
            [((u.name, outcome), u.starts[outcome]) for u in upstreams for outcome in get_args(Start)],
            *("server", "outcome"),
        )
        yield _counter(
            "cache_hits",
            "Lists and resources that clients got from results kept within their ttlMs",
            [
                ((u.name, method), u.server_lists.results.hits[method])
                for u in upstreams
                for method in sorted(CACHEABLE)
            ],
            *("server", "method"),
        )

    def _memory(self) -> Iterator[Metric]:
        memory, state = self._replica.memory.by_server(), self._replica.memory.state()
        taken = [((u.name,), memory[u.name]) for u in self._replica.upstreams]
        yield _gauge("server_memory_bytes", "Memory of server processes, estimated", taken, "server")
        yield _gauge("memory_bytes", "Memory of the gateway and its server processes, estimated", state.used)
        if state.most:
            yield _gauge("memory_limit_bytes", "What these may have now", state.most)
        yield _gauge("memory_short", "1 while too little of it is left", self._replica.memory.is_short)

    def _store(self) -> Iterator[Metric]:
        yield _gauge("store_up", "1 while the session store accepts writes", self._store_s is not None)
        if self._store_s is not None:
            yield _gauge("store_ping_seconds", "Response time of the store's last write of a probe", self._store_s)
        yield _gauge("replicas", "Live replicas on the store", self._replicas)


def _gauge(name: str, text: str, value: float | Iterable[Row], *labels: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"mcp_gateway_{name}", text, labels=labels)
    for values, number in [((), value)] if isinstance(value, int | float) else value:
        family.add_metric(values, float(number))
    return family


def _counter(name: str, text: str, rows: Iterable[Row], *labels: str) -> CounterMetricFamily:
    family = CounterMetricFamily(f"mcp_gateway_{name}", text, labels=labels)
    for values, count in rows:
        family.add_metric(values, count)
    return family


def _histogram(
    name: str, text: str, rows: Iterable[tuple[tuple[str, ...], Histogram]], *labels: str
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, one in rows:
        ends = (*map(repr, one.bounds), "+Inf")  # each with the count of all values up to it
        family.add_metric(values, [*zip(ends, accumulate(one.counts), strict=True)], one.total)
    return family
