"""`gateway.admin.pages.charts`: what the pictures show of the last five minutes."""

import re

from gateway.admin.pages.charts import Chart, charts_of, charts_of_history
from gateway.admin.report_types import HistoryPoint, HistoryView, ReplicaReport
from gateway.observability.metrics import Sample

NOW = 1_000.5


def report(*samples: Sample) -> ReplicaReport:
    return ReplicaReport(replica="a", history=list(samples))


def test_calls_of_all_replicas_add_up_and_the_slowest_is_shown() -> None:
    one = report(Sample(999.9, 3, 1, 0.010, 0.020))
    other = report(Sample(999.1, 4, 0, 0.001, 2.0))
    calls, failures, latency = charts_of([one, other], NOW)
    assert (calls.now, failures.now, latency.now) == ("7/s", "1/s", "p99 2 s")
    assert latency.names == ["p50", "p99"] and calls.names == []
    calls, _, latency = charts_of([report(Sample(600.0, 9, 9, 1.0, 1.0))], NOW)
    assert calls.now == "0/s" and calls.top == "0/s" and latency.now == "no calls", "of more than five minutes ago"


def test_the_highest_value_touches_the_top_and_names_are_text() -> None:
    chart = Chart("<Calls>", "/s", [("<b>", [0.0, 5.0, 10.0])], "10/s")
    assert chart.top == "10/s"
    assert 'points="0.0,120.0 300.0,60.0 600.0,0.0"' in chart.svg
    assert "<b>" not in chart.svg and "&lt;b&gt;" in chart.svg and "&lt;Calls&gt;" in chart.svg


def test_a_range_is_shown_as_calls_in_a_minute_and_counted_as_a_whole() -> None:
    points = [HistoryPoint(at=0, calls=50, p99_s=0.5), HistoryPoint(at=600, calls=100, failed=3, p99_s=0.25)]
    calls, failures, latency = charts_of_history(HistoryView(range="24h", step_s=600, points=points))
    assert (calls.now, failures.now, latency.now) == ("150", "3", "p99 250 ms")
    assert calls.top == "10/min" and calls.over == "24 hours"
    assert 'points="0.0,60.0 600.0,0.0"' in calls.svg


def test_the_pointer_finds_the_values_of_each_time() -> None:
    chart = Chart("Latency", "s", [("p50", [0.001, 0.002]), ("<p99>", [0.5, 2.0])], "2 s", step_s=600)
    titles = re.findall(r'<rect class="column" x="([\d.]+)"[^>]* width="([\d.]+)"[^>]*><title>([^<]*)', chart.svg)
    assert titles == [
        ("0.0", "300.0", "p50 1 ms, &lt;p99&gt; 500 ms, 10 min 0 s ago"),
        ("300.0", "300.0", "p50 2 ms, &lt;p99&gt; 2 s, 0 s ago"),
    ]
    many = Chart("Calls", "/s", [("calls", [float(n) for n in range(300)])], "299/s")
    titles = re.findall(r"<rect [^>]*><title>([^<]*)", many.svg)
    assert len(titles) == 60 and titles[0] == "calls at most 4/s, 4 min 55 s ago"
