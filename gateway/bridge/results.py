"""Results as each era has them. Pure."""

from collections.abc import Sequence
from typing import Any

from transports.base import Era

__all__ = ["list_result"]


def list_result(era: Era, body: dict[str, Any], pages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A list made of several servers' pages. In the modern era it says how long it may be cached: as long as the part
    that is good for the shortest time, and only by the client itself (MCP 2026-07-28, Caching)."""
    if era is Era.LEGACY:
        return body
    ttl_ms = min((int(page.get("ttlMs", 0)) for page in pages), default=0)
    return body | {"resultType": "complete", "ttlMs": ttl_ms, "cacheScope": "private"}
