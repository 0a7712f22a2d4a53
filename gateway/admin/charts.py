"""Numbers over time as small SVG pictures. Pure. Colours are the style sheet's."""

from collections.abc import Iterable, Sequence
from typing import Final

from markupsafe import Markup, escape

from gateway.admin.formatting import readable
from gateway.admin.reports import ReplicaReport

__all__ = ["Chart", "charts_of"]

_WIDTH: Final = 600
_HEIGHT: Final = 120
_SECONDS: Final = 300


class Chart:
    """Lines over the last five minutes, the newest second at the right; `now` is the number beside it."""

    def __init__(self, title: str, unit: str, lines: Sequence[tuple[str, Sequence[float]]], now: str) -> None:
        self.title = title
        self.unit = unit
        self.now = now
        self._lines = lines

    @property
    def svg(self) -> Markup:
        """For a page."""
        top = max((max(values, default=0.0) for _, values in self._lines), default=0.0)
        scale = _HEIGHT / top if top else 0.0
        parts = []
        for place, (name, values) in enumerate(self._lines):
            step = _WIDTH / (_SECONDS - 1)
            start = _WIDTH - step * (len(values) - 1) if values else 0.0
            points = " ".join(f"{start + step * i:.1f},{_HEIGHT - v * scale:.1f}" for i, v in enumerate(values))
            parts.append(f'<polyline class="line{place}" points="{points}"><title>{escape(name)}</title></polyline>')
        words = escape(f"{self.title}, last five minutes: now {self.now}, at most {readable(top, self.unit)}")
        return Markup(
            f'<svg role="img" aria-label="{words}" viewBox="0 -4 {_WIDTH} {_HEIGHT + 8}" preserveAspectRatio="none">'
            f'<line class="ground" x1="0" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}"/>{"".join(parts)}</svg>'
        )

    @property
    def top(self) -> str:
        """The highest value shown."""
        return readable(max((max(values, default=0.0) for _, values in self._lines), default=0.0), self.unit)

    @property
    def names(self) -> list[str]:
        """Names of the lines, if there are several."""
        return [name for name, _ in self._lines] if len(self._lines) > 1 else []


def charts_of(reports: Iterable[ReplicaReport], now: float) -> list[Chart]:
    """Of all replicas together: calls and failures add up, of times the worst replica's is shown."""
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
    latency = f"{readable(p50[-1], 's')} · p99 {readable(p99[-1], 's')}" if calls[-1] else "no calls"
    return [
        Chart("Calls", "/s", [("calls", calls)], readable(calls[-1], "/s")),
        Chart("Failures", "/s", [("failures", failed)], readable(failed[-1], "/s")),
        Chart("Latency", "s", [("p50", p50), ("p99", p99)], latency),
    ]
