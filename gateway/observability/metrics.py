"""Count and time the requests of this process, for the console and for Prometheus. A call costs a few additions.

Pure: no I/O. Labels are names of configured servers, known methods, eras and outcomes, so that clients cannot add any.
"""

import gc
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, get_args

import msgspec

from gateway.errors import ArgumentFault
from gateway.observability.request_outcomes import FAILURES, Kind
from gateway.protocol.methods import METHODS, metric_label
from transports.inbound.connection_handover import OUTCOMES as HAND_OVERS
from transports.inbound.head_cache import OUTCOMES
from transports.inbound.unauthenticated_limits import Limited, Refusals

BUCKETS_S: Final = (
    *(0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""Upper bounds of the buckets for durations of requests, in seconds. They are close together for fast servers."""


LIFETIMES_S: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 3_600.0, 10_800.0, 43_200.0, 86_400.0, 259_200.0)
"""Upper bounds of the buckets for the ages of sessions, in seconds."""


CALLS: Final = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 10_000.0)
"""Upper bounds of the buckets for the number of calls in a session."""


PAUSES_S: Final = (*(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05), *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0))
"""Upper bounds of the buckets for pauses of the event loop, in seconds."""


class CounterRow(msgspec.Struct, frozen=True):
    """The description of a counter that has one label."""

    help: str
    label: str
    """The name of its label."""
    known: tuple[str, ...] = ()
    """The values of the label that are exported from the start, as 0. Others are exported once they are counted."""


TASK_EVENTS: Final = (
    *("made", "completed", "tool error", "failed", "cancelled", "unknown", "followed", "run again", "left", "refused"),
)
"""Events of tasks.

`tool error`: completed with a result that says that the tool failed. `unknown`: failed, because its gateway died.
`followed`: its gateway died, and another one follows the task that the server made for the call. `left`: its gateway
stopped, and another one decides. `refused`: a slow call did not become a task, because its client has reached a limit.
"""

SANDBOX_REFUSALS: Final = ("connect", "socket", "listen", "name", "file", "process", "processes", "memory", "other")
"""Kinds of access that a sandbox refuses: connecting to an address, a Unix socket, listening on a port, resolving a
name, attributes of a file, access to another process, more processes, more memory, and others."""

COUNTERS: Final[Mapping[str, CounterRow]] = {
    "argument_errors": CounterRow(
        "Tool calls that were answered because of their arguments, by what is wrong", "fault", get_args(ArgumentFault)
    ),
    "claims": CounterRow(
        "Sessions that this replica has claimed, by whether a copy of the store had the claim soon",
        "outcome",
        ("copied", "not copied"),
    ),
    "connection_memory": CounterRow(
        "POSTs of MCP, by what the memory of their connection could do for them", "outcome", OUTCOMES
    ),
    "connection_hand_overs": CounterRow(
        "Connections handed to the worker that owns their session, and received from others",
        "outcome",
        HAND_OVERS,
    ),
    "forwarded": CounterRow("Requests forwarded to the replica that owns the session, by outcome", "outcome"),
    "limited": CounterRow(
        "Connections and requests refused or closed because of a limit", "limit", tuple(kind.value for kind in Limited)
    ),
    "changed_tools": CounterRow(
        "Tools that have changed since sessions were shown them, each form counted once, by what their calls get",
        "calls",
        ("allow", "tell", "refuse"),
    ),
    "lock_refusals": CounterRow(
        "Listed items that the lock hides from clients, each counted once, by kind",
        "kind",
        ("tools", "prompts", "templates"),
    ),
    "sandbox_refusals": CounterRow("What sandboxes refused to servers, by kind", "kind", SANDBOX_REFUSALS),
    "tasks": CounterRow("Tasks made of calls, by outcome", "event", TASK_EVENTS),
}
"""Counters with one label, exported as `mcp_gateway_NAME_total`. To add one, add a row here, and count with
`metrics.counters[NAME][VALUE] += 1`."""

_GENERATIONS: Final = len(gc.get_threshold())
STREAMS: Final = frozenset(row.name for row in METHODS.values() if row.is_stream)


class Histogram:
    """Count values by size: durations in seconds, or calls. `bounds`: the upper bounds of its buckets."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LIFETIMES_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def include(self, other: "Histogram") -> None:
        """Count the values of another histogram with the same bounds, too."""
        self.counts = [count + more for count, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class Series(Histogram):
    """The number and the durations of all requests with one server, method, era and outcome."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        super().__init__(BUCKETS_S)
        self.count = 0


def quantile(counts: Sequence[int], q: float) -> float:
    """Return the quantile `q` (0 to 1) of durations in seconds, interpolated within its bucket; 0 if there are none.
    `counts`: the number of durations in each bucket of `BUCKETS_S`."""
    wanted, seen = sum(counts) * q, 0
    if not wanted:
        return 0.0
    for place, count in enumerate(counts):
        if seen + count >= wanted and count:
            low = BUCKETS_S[place - 1] if place else 0.0
            high = BUCKETS_S[min(place, len(BUCKETS_S) - 1)]
            return low + (high - low) * (wanted - seen) / count
        seen += count
    return BUCKETS_S[-1]


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """The figures of the requests that were answered in one second."""

    at: float
    """The Unix time at which the second ended."""
    calls: int
    """The number of answered requests, failed ones included. Streams are left out."""
    failed: int
    p50_s: float
    """The median of the durations."""
    p99_s: float
    """The 99th percentile of the durations."""


class Metrics:
    """The counters and durations of this process since its start."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str, str, Kind], Series] = {}  # by server, method, era and outcome
        self._longest_s = 0.0  # the longest request of the current second
        self.loop_lag_s = 0.0  # how late the event loop was in the last second
        self.stalls = Histogram(PAUSES_S)  # how late each beat of `gateway.observability.event_loop_watch` was
        self.collections = [Histogram(PAUSES_S) for _ in range(_GENERATIONS)]
        self.counters: dict[str, Counter[Any]] = {name: Counter() for name in COUNTERS}
        self.samples: deque[Sample] = deque(maxlen=300)  # one for each second
        self._counts_before: list[int] = []  # those of the last sample
        self._failed_before = 0

    def answered(self, server: str, method: str, era: str, kind: Kind, took_s: float) -> None:
        """Count a request that was answered after `took_s` seconds. `server`: empty if the gateway answered it itself.
        `era`: that of the client. `kind`: how the request ended."""
        series = self.series.get((server, method, era, kind))
        if series is None:
            series = self.series.setdefault((server, metric_label(method), era, kind), Series())
        series.count += 1
        if method not in STREAMS:  # a stream lasts as long as its client likes
            series.counts[bisect_left(BUCKETS_S, took_s)] += 1
            series.total += took_s
            if took_s > self._longest_s:
                self._longest_s = took_s

    def end_second(self, at: float) -> None:
        """Add a sample to `samples`: the figures since the last call of this method. Called each second. `at`: the Unix
        time now."""
        counts, failed = self.counts, self.failed
        came = [now - before for now, before in zip_longest(counts, self._counts_before, fillvalue=0)]
        newly = failed - self._failed_before
        self._counts_before, self._failed_before = counts, failed
        # A bucket is wide: no request took longer than the longest.
        longest_s, self._longest_s = self._longest_s or BUCKETS_S[-1], 0.0
        p50_s, p99_s = (round(min(quantile(came, q), longest_s), 6) for q in (0.5, 0.99))
        self.samples.append(Sample(round(at, 1), sum(came), newly, p50_s, p99_s))

    @property
    def forwarded(self) -> Counter[str]:
        """Return the number of requests that were forwarded to other replicas, by outcome."""
        return self.counters["forwarded"]

    @property
    def limited(self) -> Refusals:
        """Return the number of connections and requests that a limit refused or closed, by limit."""
        return self.counters["limited"]

    def record_loop_lag(self, seconds: float) -> None:
        """Record the delay of the event loop in the last second, in seconds."""
        self.loop_lag_s = max(0.0, seconds)

    @property
    def calls(self) -> int:
        """Return the number of answered requests."""
        return sum(series.count for series in self.series.values())

    @property
    def failed(self) -> int:
        """Return the number of answered requests that failed."""
        return sum(series.count for (*_, kind), series in self.series.items() if kind in FAILURES)

    @property
    def counts(self) -> list[int]:
        """Return the number of answered requests in each bucket of `BUCKETS_S`."""
        return [sum(column) for column in zip(*(series.counts for series in self.series.values()), strict=True)]
