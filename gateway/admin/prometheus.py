"""Metrics for Prometheus, collected when they are asked for."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from gateway.admin.replica import Replica
from gateway.calls.link_lifecycle import LOSSES
from gateway.observability.audit import Audit
from gateway.observability.metrics import BUCKETS_S
from gateway.version import __version__
from transports.inbound.limits import Limited

__all__ = ["PrometheusExporter"]

_EVENTS = frozenset({"created", "resumed", "expired", "evicted", "ended", "refused"})
_ENDS = (*(repr(bound) for bound in BUCKETS_S), "+Inf")


class PrometheusExporter:
    """What `/metrics` says."""

    def __init__(self, replica: Replica, audit: Audit) -> None:
        self._replica = replica
        self._audit = audit
        self._replicas = 0
        self._store_s: float | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, accept: str, store_s: float | None, replicas: int) -> tuple[bytes, str]:
        """The text, and its media type. `store_s`: how long the store took to answer, None when it does not."""
        self._store_s, self._replicas = store_s, replicas
        encoder, kind = choose_encoder(accept)
        return encoder(self._registry), kind

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client."""
        yield from self._requests()
        yield from self._held()
        yield from self._servers()
        yield from self._store()

    def _requests(self) -> Iterator[Metric]:
        metrics = self._replica.metrics
        requests = CounterMetricFamily(
            "mcp_gateway_requests",
            "Requests of clients, by how they ended",
            labels=["server", "method", "era", "outcome"],
        )
        for labels, series in metrics.series.items():
            for ended, count in series.outcomes.items():
                requests.add_metric([*labels, ended.replace(" ", "_")], count)
        yield requests
        durations = HistogramMetricFamily(
            "mcp_gateway_request_duration_seconds",
            "From a request's arrival to its answer; subscriptions excepted",
            labels=["server", "method", "era"],
        )
        for labels, series in metrics.series.items():
            buckets = list(zip(_ENDS, accumulate(series.counts), strict=True))
            durations.add_metric([*labels], buckets, series.total_s)
        yield durations
        forwarded = CounterMetricFamily(
            "mcp_gateway_forwarded",
            "Requests passed to the owner of their session, by what became of it",
            labels=["outcome"],
        )
        for outcome, count in metrics.forwarded.items():
            forwarded.add_metric([outcome], count)
        yield forwarded
        limited = CounterMetricFamily(
            "mcp_gateway_limited", "Connections and requests refused or cut at a limit, by its kind", labels=["limit"]
        )
        for kind in Limited:
            limited.add_metric([kind.value], metrics.limited[kind])
        yield limited
        events = CounterMetricFamily(
            "mcp_gateway_session_events", "What happened to sessions, and refusals", labels=["event"]
        )
        for event in _EVENTS | self._audit.told.keys():
            events.add_metric([event], self._audit.told[event])
        yield events
        yield CounterMetricFamily(
            "mcp_gateway_audit_lost", "Audit events that could not be kept", value=self._audit.lost
        )

    def _held(self) -> Iterator[Metric]:
        held, flight, suspended, streams = self._replica.sessions()
        yield GaugeMetricFamily("mcp_gateway_sessions", "Sessions that this process serves", value=held)
        yield GaugeMetricFamily("mcp_gateway_exchanges_in_flight", "Requests under way", value=flight)
        yield GaugeMetricFamily("mcp_gateway_calls_parked", "Calls that wait for their client", value=suspended)
        yield GaugeMetricFamily("mcp_gateway_streams", "Event streams of sessions that are open", value=streams)
        yield GaugeMetricFamily(
            "mcp_gateway_draining", "1 while sessions are handed over", value=int(self._replica.is_draining)
        )
        lag = self._replica.metrics.loop_lag_s
        yield GaugeMetricFamily("mcp_gateway_loop_lag_seconds", "How late the event loop was, last time", value=lag)
        yield InfoMetricFamily("mcp_gateway_build", "What runs", value={"version": __version__})

    def _servers(self) -> Iterator[Metric]:
        processes = GaugeMetricFamily("mcp_gateway_server_processes", "Processes of servers", labels=["server"])
        for server, count in self._replica.processes().items():
            processes.add_metric([server], count)
        yield processes
        restarts = CounterMetricFamily(
            "mcp_gateway_server_restarts", "Servers that were started again, and why", labels=["server", "reason"]
        )
        for upstream in self._replica.upstreams:
            # With those that have not happened: of what begins at 1 the increase is not seen.
            for reason in LOSSES | upstream.restarts.keys():
                restarts.add_metric([upstream.name, reason], upstream.restarts[reason])
        yield restarts

    def _store(self) -> Iterator[Metric]:
        is_up = self._store_s is not None
        yield GaugeMetricFamily("mcp_gateway_store_up", "1 while the session store answers", value=int(is_up))
        if self._store_s is not None:
            yield GaugeMetricFamily(
                "mcp_gateway_store_ping_seconds", "The store's last answer took", value=self._store_s
            )
        yield GaugeMetricFamily("mcp_gateway_replicas", "Live replicas on the store", value=self._replicas)
