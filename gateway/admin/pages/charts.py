"""Draw numbers over time as small SVG charts. Pure. Colours are those of the style sheet."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup, escape
from starlette.requests import Request

from gateway.admin.formatting import readable, span, took
from gateway.admin.report_types import RANGES, HistoryView, Range, ReplicaReport

_WIDTH: Final = 600
_HEIGHT: Final = 120
_SECONDS: Final = 300
_COLUMNS: Final = 60
"""The most columns of a chart; each shows its values as a tooltip."""

RANGE_WORDS: Final[dict[Range, str]] = {
    "5m": "5 min",
    "15m": "15 min",
    "1h": "1 hour",
    "6h": "6 hours",
    "24h": "24 hours",
}
RANGE_CHOICES: Final = tuple(RANGE_WORDS.items())


@dataclass(frozen=True, slots=True)
class Chart:
    """A line chart, drawn as SVG. All its lines have equally many values, the newest value at the right."""

    title: str
    unit: str
    """The unit of the values, as `gateway.admin.formatting.readable` takes it."""
    lines: Sequence[tuple[str, Sequence[float]]]
    """The name and the values of each line."""
    now: str
    """The text beside the title, such as the newest value."""
    tone: str = ""
    """A class of the style sheet; empty for the usual colours."""
    over: str = "5 min"
    """The period of the chart in words."""
    step_s: float = 1.0
    """The seconds between two values."""

    @property
    def svg(self) -> Markup:
        """Return the lines as SVG. The area below the first line is filled."""
        scale = _HEIGHT / self._top if self._top else 0.0
        parts = []
        for place, (name, values) in enumerate(self.lines):
            points = " ".join(f"{self._step * i:.1f},{_HEIGHT - v * scale:.1f}" for i, v in enumerate(values))
            if place == 0:
                parts.append(f'<polygon class="area" points="0.0,{_HEIGHT} {points} {_WIDTH},{_HEIGHT}"/>')
            title = f"<title>{escape(name)}</title>"
            parts.append(f'<polyline class="line line{place}" points="{points}">{title}</polyline>')
        words = escape(f"{self.title}, last {self.over}: now {self.now}, at most {self.top}")
        rules = "".join(
            f'<line class="rule" x1="0" y1="{y}" x2="{_WIDTH}" y2="{y}"/>' for y in (0, _HEIGHT // 2, _HEIGHT)
        )
        return Markup(
            f'<svg role="img" aria-label="{words}" viewBox="0 -4 {_WIDTH} {_HEIGHT + 8}" preserveAspectRatio="none">'
            f"{rules}{''.join(parts)}{''.join(self._columns())}</svg>"
        )

    def _columns(self) -> Iterator[str]:
        """Yield invisible SVG columns over the chart, at most `_COLUMNS`. The tooltip of a column has the highest value
        of each line there."""
        count, step = len(self.lines[0][1]), self._step
        steps = -(-count // _COLUMNS)
        most = "at most " if steps > 1 else ""
        for first in range(0, count, steps):
            end = min(first + steps, count)
            found = [f"{name} {most}{readable(max(values[first:end]), self.unit)}" for name, values in self.lines]
            left, right = max(step * (first - 0.5), 0.0), min(step * (end - 0.5), _WIDTH)
            yield (
                f'<rect class="column" x="{left:.1f}" y="-4" width="{right - left:.1f}" height="{_HEIGHT + 8}">'
                f"<title>{escape(', '.join(found))}, {span((count - end) * self.step_s)} ago</title></rect>"
            )

    @property
    def _step(self) -> float:
        return _WIDTH / max(len(self.lines[0][1]) - 1, 1)

    @property
    def _top(self) -> float:
        return max(max(values) for _, values in self.lines)

    @property
    def top(self) -> str:
        """Return the highest value in the chart, with its unit."""
        return readable(self._top, self.unit)

    @property
    def names(self) -> list[str]:
        """Return the names of the lines; empty if there is only one."""
        return [name for name, _ in self.lines] if len(self.lines) > 1 else []


def charts_of(reports: Iterable[ReplicaReport], now: float) -> list[Chart]:
    """Return charts of the last five minutes before the Unix time `now`, of all replicas together. In each second,
    calls and failures are the sums of all replicas, and the durations are the longest of any replica."""
    end = int(now) - 1
    calls, failed, p50, p99 = ([0.0] * _SECONDS for _ in range(4))
    for report in reports:
        for sample in report.history:
            place = _SECONDS - 1 - (end - int(sample.at))
            if 0 <= place < _SECONDS:
                calls[place] += sample.calls
                failed[place] += sample.failed
                p50[place] = max(p50[place], sample.p50_s)
                p99[place] = max(p99[place], sample.p99_s)
    now_per_s = [readable(values[-1], "/s") for values in (calls, failed)]
    return _charts("/s", (calls, failed, p50, p99), now_per_s)


def charts_of_history(view: HistoryView) -> list[Chart]:
    """Return charts of a range of the history: calls and failures per minute, and the durations of calls."""
    points, each = view.points, 60 / view.step_s
    calls, failed = [point.calls * each for point in points], [point.failed * each for point in points]
    times = [point.p50_s for point in points], [point.p99_s for point in points]
    totals = [f"{sum(point.calls for point in points):,}", f"{sum(point.failed for point in points):,}"]
    return _charts("/min", (calls, failed, *times), totals, over=RANGE_WORDS[view.range], step_s=view.step_s)


def _charts(unit: str, lines: Sequence[Sequence[float]], now: Sequence[str], **common: Any) -> list[Chart]:
    """Return three charts: calls, failures, and latency with p50 and p99. `unit`: that of calls and failures. `lines`:
    the values of calls, failures, p50 and p99, in this order. `now`: the texts beside the titles of calls and failures.
    `common`: arguments that all charts get."""
    calls, failed, p50, p99 = lines
    latency = "no calls" if not any(calls) else f"p99 {took(p99[-1])}" if calls[-1] else "none now"
    return [
        Chart("Calls", unit, [("calls", calls)], now[0], **common),
        Chart("Failures", unit, [("failures", failed)], now[1], tone="tone-bad", **common),
        Chart("Latency", "s", [("p50", p50), ("p99", p99)], latency, **common),
    ]


def range_of(request: Request, usual: Range) -> Range:
    """Return the range of the history that the URL's query names. Return `usual` if it names no valid range."""
    given = request.query_params.get("range", "")
    return next((over for over in RANGES if over == given), usual)
