"""Read and set how long a result may be cached, and for whom (MCP 2026-07-28, Caching). Pure.

Servers are not trusted to send valid hints. An invalid time counts as 0, an invalid scope as private.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from transports.jsonrpc import UNREADABLE, Object, encode

PUBLIC: Final = "public"
PRIVATE: Final = "private"

_MOST_MS: Final = 3_600_000
"""The longest `ttlMs` that is accepted from a server: an hour. A longer time may be a mistake, and clients would not
notice that a server was replaced."""


class Hints(msgspec.Struct, frozen=True):
    """Cache hints of a result. `ttl_ms` is how many milliseconds the result is fresh; 0 if it must not be cached.
    `is_public`: the result is the same for every caller."""

    ttl_ms: int
    is_public: bool


class _Head(msgspec.Struct):
    ttlMs: Any = 0
    cacheScope: Any = PRIVATE
    resultType: Any = "complete"


_heads = msgspec.json.Decoder(_Head)


def ttl_ms(value: object) -> int:
    """Return a server's `ttlMs` as an integer of milliseconds, at most one hour; 0 if it is not a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return 0
    return int(min(value, _MOST_MS))


def hints_of(result: msgspec.Raw | bytes) -> Hints:
    """Return the cache hints of a result. A result that asks its client for input gets a `ttl_ms` of 0."""
    try:
        head = _heads.decode(result)
    except UNREADABLE:
        return Hints(0, False)
    return Hints(ttl_ms(head.ttlMs) if head.resultType == "complete" else 0, head.cacheScope == PUBLIC)


def most_private(pages: Iterable[Mapping[str, Any]]) -> str:
    """Return the cache scope for a result that is merged from `pages`: public if all pages are public (and there is
    one), else private."""
    scopes = [page.get("cacheScope") for page in pages]
    return PUBLIC if scopes and all(scope == PUBLIC for scope in scopes) else PRIVATE


def with_ttl(result: bytes, left_ms: int) -> bytes:
    """Return the result with `left_ms`, the milliseconds for which it is still fresh, as its `ttlMs`."""
    return encode(msgspec.json.decode(result, type=Object) | {"ttlMs": msgspec.Raw(encode(left_ms))})


def of_one_session(result: Object) -> Object:
    """Return a result marked as private and not cacheable, because it contains a fact of one session. A result without
    cache hints is returned unchanged."""
    if "cacheScope" not in result:
        return result
    return result | {"ttlMs": msgspec.Raw(b"0"), "cacheScope": msgspec.Raw(b'"private"')}


def is_answer_to_input(params: Mapping[str, Any]) -> bool:
    """Return True if a request carries answers to a server's questions, so that its result must not be cached (MCP
    2026-07-28, Caching)."""
    return "inputResponses" in params or "requestState" in params
