"""What this gateway process counts and times: on the hot path a few additions, read by the console and by Prometheus.

Pure: no I/O. Labels are names of configured servers, known methods, eras and outcomes, so that no client can add one.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

__all__ = ["BUCKETS_S", "History", "Metrics", "Outcome", "Sample", "Timing"]

BUCKETS_S: Final = (
    *(0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""Upper bounds in seconds: close to each other where a call of a fast server ends, up to what clients wait at most."""

Outcome = Literal["ok", "tool error", "error", "refused", "cancelled", "input required"]
"""How a request ends: `error` is an answer in error, of a server or of ours, `refused` one that reached no server."""

FAILURES: Final = frozenset({"tool error", "error", "refused"})

_METHODS: Final = frozenset(
    "initialize ping server/discover tools/list tools/call prompts/list prompts/get resources/list "
    "resources/templates/list resources/read resources/subscribe resources/unsubscribe completion/complete "
    "logging/setLevel subscriptions/listen".split()
)
_STREAMS: Final = "subscriptions/listen"


class Timing:
    """How often something took how long."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total_s = 0.0

    def add(self, took_s: float) -> None:
        self.counts[bisect_left(BUCKETS_S, took_s)] += 1
        self.total_s += took_s


def quantile(counts: Sequence[int], q: float) -> float:
    """Seconds below which that part of the counted lies, as well as the buckets tell; 0 when nothing was counted."""
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


class Metrics:
    """Since this process began."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str, str]] = Counter()
        self.timings: dict[tuple[str, str, str], Timing] = {}
        self.all = Timing()
        self.failed = 0
        self.loop_lag_s = 0.0  # how late the event loop was with the last second
        self.forwarded: Counter[str] = Counter()
        self.history = History(self)

    def answered(self, server: str, method: str, era: str, outcome: Outcome, took_s: float) -> None:
        """A request has its answer."""
        if method not in _METHODS:
            method = "other"
        self.requests[server, method, era, outcome] += 1
        if outcome in FAILURES:
            self.failed += 1
        if method == _STREAMS:
            return  # it lasts as long as its client likes
        timing = self.timings.get((server, method, era))
        if timing is None:
            timing = self.timings[server, method, era] = Timing()
        timing.add(took_s)
        self.all.add(took_s)


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One second: when it ended, requests answered in it, how many failed, and how long they took, in seconds."""

    at: float
    calls: int
    failed: int
    p50_s: float
    p99_s: float


class History:
    """The last minutes, second by second."""

    def __init__(self, metrics: Metrics, seconds: int = 300) -> None:
        self._metrics = metrics
        self._counts = list(metrics.all.counts)
        self._failed = 0
        self.samples: deque[Sample] = deque(maxlen=seconds)

    def take(self, at: float) -> None:
        """End a second."""
        metrics, counts = self._metrics, list(self._metrics.all.counts)
        came = [now - before for now, before in zip(counts, self._counts, strict=True)]
        failed = metrics.failed - self._failed
        self._counts, self._failed = counts, metrics.failed
        self.samples.append(
            Sample(round(at, 1), sum(came), failed, round(quantile(came, 0.5), 6), round(quantile(came, 0.99), 6))
        )
