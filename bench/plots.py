"""A picture of each table: small, and made of nothing but the runs."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bench.load import Run


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


def plot_growth(what: str, counts: Sequence[int], panels: Mapping[str, Sequence[float]], file: Path) -> None:
    """Each figure over the number of sessions, servers or tools."""
    figure = Figure(figsize=(3.2 * len(panels), 2.6), dpi=90)
    for place, (title, values) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), place)
        axes.plot(counts, values, marker="o", color="#3b6ea5")
        axes.set_ylim(bottom=0, top=max(values) * 1.2)
        axes.set_xlabel(what)
        axes.set_title(title)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(file)
