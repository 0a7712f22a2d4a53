"""Numbers over time as small SVG pictures. Pure. Colours are the style sheet's."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from markupsafe import Markup, escape
from starlette.requests import Request

from gateway.admin.formatting import readable, span, took
from gateway.admin.reports import RANGES, HistoryView, Range, ReplicaReport

__all__ = ["RANGE_CHOICES", "Chart", "charts_of", "charts_of_history", "range_of"]

_WIDTH: Final = 600
_HEIGHT: Final = 120
_SECONDS: Final = 300
_COLUMNS: Final = 60
"""At most so many parts of a picture say their values under the pointer."""

RANGE_WORDS: Final[dict[Range, str]] = {
    "5m": "5 min",
    "15m": "15 min",
    "1h": "1 hour",
    "6h": "6 hours",
    "24h": "24 hours",
}
RANGE_CHOICES: Final = tuple(RANGE_WORDS.items())


class Chart:
    """Lines over the last minutes or hours (`over`, in words), the newest at the right; `now` is the number beside the
    title. `tone` is a class of the style sheet. A line with fewer values than `steps`, each of `step_s` seconds,
    begins later."""

    def __init__(
        self,
        title: str,
        unit: str,
        lines: Sequence[tuple[str, Sequence[float]]],
        now: str,
        *,
        tone: str = "",
        over: str = "5 min",
        steps: int = 0,
        step_s: float = 1.0,
    ) -> None:
        self.title = title
        self.unit = unit
        self.now = now
        self.tone = tone
        self.over = over
        self._step_s = step_s
        self._steps = steps or max((len(values) for _, values in lines), default=0)
        self._lines = lines

    @property
    def svg(self) -> Markup:
        """For a page. The first line has its area filled."""
        top = self._top
        scale = _HEIGHT / top if top else 0.0
        parts = []
        for place, (name, values) in enumerate(self._lines):
            step = _WIDTH / max(self._steps - 1, 1)
            start = _WIDTH - step * (len(values) - 1) if values else 0.0
            points = " ".join(f"{start + step * i:.1f},{_HEIGHT - v * scale:.1f}" for i, v in enumerate(values))
            if place == 0 and values:
                ground = f"{start:.1f},{_HEIGHT} {points} {_WIDTH},{_HEIGHT}"
                parts.append(f'<polygon class="area" points="{ground}"/>')
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
        """Draw what the pointer is over: a part of the time, with the values that the lines have there as its title."""
        steps = -(-self._steps // _COLUMNS)
        step = _WIDTH / max(self._steps - 1, 1)
        most = "at most " if steps > 1 else ""
        for first in range(0, self._steps, max(steps, 1)):
            end = min(first + steps, self._steps)
            found = []
            for name, values in self._lines:
                missing = self._steps - len(values)
                if here := values[max(first - missing, 0) : max(end - missing, 0)]:
                    found.append(f"{name} {most}{readable(max(here), self.unit)}")
            left, right = max(step * (first - 0.5), 0.0), min(step * (end - 0.5), _WIDTH)
            if found:
                ago = span((self._steps - end) * self._step_s)
                yield (
                    f'<rect class="column" x="{left:.1f}" y="-4" width="{right - left:.1f}" height="{_HEIGHT + 8}">'
                    f"<title>{escape(', '.join(found))}, {ago} ago</title></rect>"
                )

    @property
    def _top(self) -> float:
        return max((max(values, default=0.0) for _, values in self._lines), default=0.0)

    @property
    def top(self) -> str:
        """Return the highest value shown."""
        return readable(self._top, self.unit)

    @property
    def names(self) -> list[str]:
        """Names of the lines, if there are several."""
        return [name for name, _ in self._lines] if len(self._lines) > 1 else []


def charts_of(reports: Iterable[ReplicaReport], now: float) -> list[Chart]:
    """Draw all replicas together: calls and failures add up, of times the worst replica's is shown."""
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
    return [
        Chart("Calls", "/s", [("calls", calls)], readable(calls[-1], "/s"), steps=_SECONDS),
        Chart("Failures", "/s", [("failures", failed)], readable(failed[-1], "/s"), tone="tone-bad", steps=_SECONDS),
        Chart("Latency", "s", [("p50", p50), ("p99", p99)], _p99_now(calls, p99), steps=_SECONDS),
    ]


def charts_of_history(view: HistoryView) -> list[Chart]:
    """Draw a range, as calls in a minute."""
    over, step_s, each = RANGE_WORDS[view.range], view.step_s, 60 / view.step_s
    calls = [point.calls * each for point in view.points]
    failed = [point.failed * each for point in view.points]
    p50, p99 = [point.p50_s for point in view.points], [point.p99_s for point in view.points]
    total = sum(point.calls for point in view.points)
    lost = sum(point.failed for point in view.points)
    return [
        Chart("Calls", "/min", [("calls", calls)], f"{total:,}", over=over, step_s=step_s),
        Chart("Failures", "/min", [("failures", failed)], f"{lost:,}", tone="tone-bad", over=over, step_s=step_s),
        Chart("Latency", "s", [("p50", p50), ("p99", p99)], _p99_now(calls, p99), over=over, step_s=step_s),
    ]


def _p99_now(calls: Sequence[float], p99: Sequence[float]) -> str:
    """Return the head of a chart of latency."""
    if not any(calls):
        return "no calls"
    return f"p99 {took(p99[-1])}" if calls[-1] else "none now"


def range_of(request: Request, usual: Range) -> Range:
    """Return the range that the query of the URL names, otherwise the usual one."""
    given = request.query_params.get("range", "")
    return next((over for over in RANGES if over == given), usual)
