"""Events that are alike and follow each other, as one row of a list. Pure."""

from collections.abc import Iterable
from typing import Any, Final

__all__ = ["folded"]

_OWN: Final = frozenset({"at", "took_s", "correlation", "count"})
"""What alike events may differ in."""


def folded(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put neighbours that are alike together. `events` come newest first, with `at` in seconds since the epoch.

    The row has the newest `at`, the sum of `count`, the longest `took_s`, and `since`: the oldest `at`.
    """
    rows: list[dict[str, Any]] = []
    last: dict[str, Any] | None = None
    for event in events:
        kind = {name: value for name, value in event.items() if name not in _OWN}
        if kind != last:
            rows.append(event)
            last = kind
            continue
        row = rows[-1]
        rows[-1] = row | {"count": row["count"] + event["count"], "since": event["at"]}
        if "took_s" in row or "took_s" in event:
            rows[-1]["took_s"] = max(row.get("took_s", 0.0), event.get("took_s", 0.0))
    return rows
