"""Counters, quantiles and the history of each second."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.metrics import BUCKETS_S, Metrics, quantile
from tests.requirements import requirement


@given(st.lists(st.floats(min_value=0, max_value=400), min_size=1))
def test_quantiles_lie_in_the_bucket_of_the_true_one(times: list[float]) -> None:
    metrics = Metrics()
    for took in times:
        metrics.answered("s", "tools/call", "legacy", "ok", took)
    for q in (0.5, 0.99):
        true = sorted(times)[max(0, -(-int(len(times) * q * 100) // 100) - 1)]
        told = quantile(metrics.counts, q)
        ends = (0.0, *BUCKETS_S, float("inf"))
        near = [(low, high) for low, high in pairwise(ends) if low <= told <= high]
        assert min(true, BUCKETS_S[-1]) <= max(high for _, high in near) + 1e-9
    assert sum(metrics.counts) == len(times)


@requirement("ops.console")
def test_the_history_has_each_second_once_and_none_is_slower_than_its_slowest_request() -> None:
    metrics = Metrics()
    metrics.answered("s", "tools/call", "legacy", "ok", 0.00025)
    metrics.end_second(1.0)
    metrics.answered("s", "tools/call", "legacy", "tool error", 0.02)
    metrics.answered("s", "subscriptions/listen", "modern", "cancelled", 3_600.0)
    metrics.end_second(2.0)
    metrics.end_second(3.0)
    for took in (4.19, 5.42):
        metrics.answered("s", "tools/call", "legacy", "ok", took)
    metrics.end_second(4.0)
    metrics.answered("s", "tools/call", "legacy", "ok", 0.3)
    metrics.end_second(5.0)
    first, second, third, slow, faster = metrics.samples
    assert (first.calls, first.failed) == (1, 0) and 0.0002 <= first.p50_s <= 0.0003
    assert (second.calls, second.failed) == (1, 1) and 0.01 <= second.p99_s <= 0.025
    assert (third.calls, third.p50_s, third.p99_s) == (0, 0.0, 0.0)
    assert (slow.p99_s, faster.p99_s) == (5.42, 0.3)
