"""Formats numbers, sizes and time spans for people. Pure."""

from datetime import UTC, datetime

__all__ = ["amount", "clock", "readable", "span"]


def readable(value: float, unit: str) -> str:
    """A number with its unit: of seconds (`s`) milliseconds where they are few."""
    if unit == "s":
        return f"{value * 1_000:.2f} ms" if value < 0.1 else f"{value:.2f} s"
    return f"{value:,.0f}{unit}"


def span(seconds: float) -> str:
    """Format a time span, in at most two units."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def amount(count: float) -> str:
    """Bytes."""
    if count < 1_024:
        return f"{count:.0f} B"
    return f"{count / 1_024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


def clock(at: float) -> str:
    """A time, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
