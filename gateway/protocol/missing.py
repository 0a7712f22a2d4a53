"""What an answer of several servers says of those it comes without. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gateway.protocol.reserved_meta import RESERVED

__all__ = ["MISSING_KEY", "Missing", "missing_meta"]

MISSING_KEY: Final = f"{RESERVED}/missing"


class Missing(msgspec.Struct, frozen=True):
    """A server whose part is missing. `since`: seconds since 1970. `retry_s`: seconds until the gateway tries it again,
    0 if it tries now; None while the server is starting."""

    server: str
    reason: str
    since: float
    retry_s: float | None = None


def missing_meta(missing: Iterable[Missing]) -> list[dict[str, Any]]:
    """The value of `MISSING_KEY` in the `_meta` of a result."""
    return [
        {
            "server": entry.server,
            "reason": entry.reason,
            "since": datetime.fromtimestamp(entry.since, UTC).isoformat(timespec="seconds"),
        }
        | ({} if entry.retry_s is None else {"retryAfterMs": max(1, round(entry.retry_s * 1_000))})
        for entry in missing
    ]
