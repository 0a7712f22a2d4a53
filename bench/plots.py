"""A picture of each table: small, and made of nothing but the runs."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bench.load import Run

__all__ = ["plot"]


def plot(name: str, results: Mapping[str, Sequence[Run]], file: Path) -> None:
    """Bars of the median rates, with what the rounds spread over."""
    rows = list(results)
    rates = [statistics.median(run.rate for run in results[row]) for row in rows]
    below = [rate - min(run.rate for run in results[row]) for row, rate in zip(rows, rates, strict=True)]
    above = [max(run.rate for run in results[row]) - rate for row, rate in zip(rows, rates, strict=True)]
    figure = Figure(figsize=(7, 0.9 + 0.35 * len(rows)), dpi=90)
    axes = figure.add_subplot()
    axes.barh(rows, rates, xerr=[below, above], color="#3b6ea5", ecolor="#222222")
    axes.invert_yaxis()
    axes.set_xlabel("calls per second")
    axes.set_title(name)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(file)
