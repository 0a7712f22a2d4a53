"""Export the metrics to Prometheus. They are collected for each scrape."""

from collections import defaultdict
from collections.abc import Iterator
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
from gateway.observability.outcome import FAILURES
from gateway.observability.queued_output import dropped_lines
from gateway.protocol.methods import CACHEABLE
from gateway.upstreams.link_opener import Start
from gateway.version import __version__
from session_store.ports.accounting import StepName

_EVENTS = frozenset(get_args(StepName)) - {"operated"}


class PrometheusExporter:
    """Collect and write the content of `/metrics`."""

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
        """Return the metrics as text, and its media type. `store_s`: the seconds until the store answered; None if it
        did not. `replicas`: the number of replicas."""
        held = await self._replica.held()
        # No await from here on: the collector reads these.
        self._store_s, self._replicas, self._counted = store_s, replicas, held
        encoder, kind = choose_encoder(accept)
        return encoder(self._registry), kind

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families; `prometheus_client` calls this for each scrape."""
        yield from self._requests()
        yield from self._held()
        yield from self._servers()
        yield from self._memory()
        yield from self._store()

    def _requests(self) -> Iterator[Metric]:
        metrics = self._replica.metrics
        requests = CounterMetricFamily(
            "mcp_gateway_requests",
            "Requests of clients by outcome",
            labels=["server", "method", "era", "outcome"],
        )
        own: dict[tuple[str, ...], Histogram] = defaultdict(lambda: Histogram(BUCKETS_S))
        conventional: dict[tuple[str, ...], Histogram] = defaultdict(lambda: Histogram(BUCKETS_S))
        for (*labels, kind), series in metrics.series.items():
            ended = kind.replace(" ", "_")
            requests.add_metric([*labels, ended], series.count)
            own[*labels].include(series)
            conventional[*labels, ended if kind in FAILURES else ""].include(series)
        yield requests
        durations = HistogramMetricFamily(
            "mcp_gateway_request_duration_seconds",
            "Time from the arrival of a request to its answer, without subscriptions",
            labels=["server", "method", "era"],
        )
        operations = HistogramMetricFamily(
            "mcp_server_operation_duration_seconds",
            "The same times under OpenTelemetry's name, by failure",
            labels=["server", "mcp_method_name", "era", "error_type"],
        )
        for family, found in ((durations, own), (operations, conventional)):
            for values, took in found.items():
                family.add_metric(values, _buckets(took), took.total)
            yield family
        for name, row in COUNTERS.items():
            counted = CounterMetricFamily(f"mcp_gateway_{name}", row.help, labels=[row.label])
            for value in dict.fromkeys([*row.known, *metrics.counters[name]]):
                counted.add_metric([value], metrics.counters[name][value])
            yield counted
        events = CounterMetricFamily(
            "mcp_gateway_session_events", "Session events and refusals by kind", labels=["event"]
        )
        for event in _EVENTS | self._audit.counts.keys():
            events.add_metric([event], self._audit.counts[event])
        yield events
        ages = HistogramMetricFamily(
            "mcp_server_session_duration_seconds", "Ages at which sessions ended, by how they ended", labels=["event"]
        )
        for how, lasted in self._audit.durations.items():
            ages.add_metric([how], _buckets(lasted), lasted.total)
        yield ages
        each = self._audit.calls_each
        yield HistogramMetricFamily(
            "mcp_gateway_session_calls",
            "Calls answered in sessions that ended here",
            buckets=_buckets(each),
            sum_value=each.total,
        )
        yield CounterMetricFamily("mcp_gateway_audit_lost", "Audit events that were dropped", value=self._audit.lost)
        yield CounterMetricFamily(
            "mcp_gateway_log_lines_dropped", "Lines for stderr that were dropped", value=dropped_lines()
        )

    def _held(self) -> Iterator[Metric]:
        held = self._counted
        yield GaugeMetricFamily("mcp_gateway_sessions", "Sessions that this process serves", value=held.sessions)
        yield GaugeMetricFamily(
            "mcp_gateway_sessions_without_workspace",
            "Those of them that have no workspace",
            value=held.without_workspace,
        )
        yield GaugeMetricFamily("mcp_gateway_exchanges_in_flight", "Requests in flight", value=held.in_flight)
        yield GaugeMetricFamily(
            "mcp_gateway_calls_parked", "Calls that wait for input from their client", value=held.suspended
        )
        yield GaugeMetricFamily("mcp_gateway_streams", "Open event streams", value=held.streams)
        yield GaugeMetricFamily(
            "mcp_gateway_draining", "1 while sessions are handed over", value=int(self._replica.is_draining)
        )
        yield GaugeMetricFamily(
            "mcp_gateway_configuration_outdated",
            "1 while another replica has a newer configuration file",
            value=int(self._replica.is_outdated),
        )
        lag = self._replica.metrics.loop_lag_s
        yield GaugeMetricFamily("mcp_gateway_loop_lag_seconds", "Delay of the event loop in the last second", value=lag)
        stalls = self._replica.metrics.stalls
        yield HistogramMetricFamily(
            "mcp_gateway_loop_stall_seconds",
            "How late the event loop was, measured 20 times a second",
            buckets=_buckets(stalls),
            sum_value=stalls.total,
        )
        pauses = HistogramMetricFamily(
            "mcp_gateway_collector_pause_seconds",
            "Time for which the garbage collector stopped the process, by generation",
            labels=["generation"],
        )
        for generation, pause in enumerate(self._replica.metrics.collections):
            pauses.add_metric([str(generation)], _buckets(pause), pause.total)
        yield pauses
        yield InfoMetricFamily("mcp_gateway_build", "Version of the gateway", value={"version": __version__})

    def _servers(self) -> Iterator[Metric]:
        processes = GaugeMetricFamily("mcp_gateway_server_processes", "Server processes", labels=["server"])
        for server, count in self._counted.processes.items():
            processes.add_metric([server], count)
        yield processes
        up = GaugeMetricFamily(
            "mcp_gateway_server_up", "Whether the server has answered the gateway", labels=["server"]
        )
        for upstream in self._replica.upstreams:
            up.add_metric([upstream.name], float(upstream.has_answered))
        yield up
        restarts = CounterMetricFamily(
            "mcp_gateway_server_restarts", "Restarts of servers by reason", labels=["server", "reason"]
        )
        for upstream in self._replica.upstreams:
            # With those that have not happened: of what begins at 1 the increase is not seen.
            for reason in LOSSES | upstream.restarts.keys():
                restarts.add_metric([upstream.name, reason], upstream.restarts[reason])
        yield restarts
        starts = CounterMetricFamily(
            "mcp_gateway_server_starts",
            "Starts of servers: those that answered, and those that failed before",
            labels=["server", "outcome"],
        )
        for upstream in self._replica.upstreams:
            for outcome in get_args(Start):
                starts.add_metric([upstream.name, outcome], upstream.starts[outcome])
        yield starts
        hits = CounterMetricFamily(
            "mcp_gateway_cache_hits",
            "Lists and resources that clients got from results kept within their ttlMs",
            labels=["server", "method"],
        )
        for upstream in self._replica.upstreams:
            for method in sorted(CACHEABLE):
                hits.add_metric([upstream.name, method], upstream.server_lists.results.hits[method])
        yield hits

    def _memory(self) -> Iterator[Metric]:
        memory, state = self._replica.memory.by_server(), self._replica.memory.state()
        taken = GaugeMetricFamily(
            "mcp_gateway_server_memory_bytes", "Memory of server processes, estimated", labels=["server"]
        )
        for upstream in self._replica.upstreams:
            taken.add_metric([upstream.name], memory[upstream.name])
        yield taken
        yield GaugeMetricFamily(
            "mcp_gateway_memory_bytes", "Memory of the gateway and its server processes, estimated", value=state.used
        )
        if state.most:
            yield GaugeMetricFamily("mcp_gateway_memory_limit_bytes", "What these may have now", value=state.most)
        is_short = self._replica.memory.is_short
        yield GaugeMetricFamily("mcp_gateway_memory_short", "1 while too little of it is left", value=int(is_short))

    def _store(self) -> Iterator[Metric]:
        is_up = self._store_s is not None
        yield GaugeMetricFamily("mcp_gateway_store_up", "1 while the session store accepts writes", value=int(is_up))
        if self._store_s is not None:
            yield GaugeMetricFamily(
                "mcp_gateway_store_ping_seconds",
                "Response time of the store's last write of a probe",
                value=self._store_s,
            )
        yield GaugeMetricFamily("mcp_gateway_replicas", "Live replicas on the store", value=self._replicas)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the upper bounds of a histogram, each with the count of all values up to it."""
    ends = (*map(repr, histogram.bounds), "+Inf")
    return [*zip(ends, accumulate(histogram.counts), strict=True)]
