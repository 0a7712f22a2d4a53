"""Format numbers, sizes and time spans for people. Pure."""

from datetime import UTC, datetime

from markupsafe import Markup


def readable(value: float, unit: str) -> str:
    """Format a number with `unit` behind it and no decimals, such as `12/s`. If the unit is `s` (seconds), use
    `took`."""
    if unit == "s":
        return took(value)
    return f"{value:,.0f}{unit}"


def took(seconds: float) -> str:
    """Format a duration in seconds, from microseconds to days, with about three digits."""
    if seconds < 0.001:
        return f"{seconds * 1_000_000:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1_000:.3g} ms" if seconds < 0.0995 else f"{seconds * 1_000:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 59.95 else span(seconds)


def span(seconds: float) -> str:
    """Format a time span in seconds, in at most two units, such as `3 h 20 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def amount(count: float) -> str:
    """Format a number of bytes, such as `1.5 MiB`."""
    if count < 1_024:
        return f"{count:.0f} B"
    if count < 1 << 20:
        return f"{count / 1_024:.1f} KiB"
    return f"{count / (1 << 20):.1f} MiB" if count < 1 << 30 else f"{count / (1 << 30):.1f} GiB"


def clock(at: float) -> str:
    """Format a Unix time in UTC, such as `2026-07-28 14:30:00`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def moment(at: float) -> Markup:
    """Return a Unix time as an HTML element in UTC. The console's script changes it to local time."""
    return Markup('<time datetime="{}Z">{} UTC</time>').format(clock(at).replace(" ", "T"), clock(at))
