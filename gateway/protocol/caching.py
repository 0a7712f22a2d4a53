"""How long a result may be kept, and for whom (MCP 2026-07-28, Caching). Pure.

Servers send both hints, and may send anything in their place: what cannot be read counts as "not at all" and "for
nobody else".
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from transports.jsonrpc import Object, encode

__all__ = [
    "PRIVATE",
    "PUBLIC",
    "Hints",
    "hints_of",
    "is_answer_to_input",
    "most_private",
    "of_one_session",
    "ttl_ms",
    "with_ttl",
]

PUBLIC: Final = "public"
PRIVATE: Final = "private"

_MOST_MS: Final = 3_600_000
"""An hour. A server that says more may be wrong, and nothing tells clients that it was replaced."""


class Hints(msgspec.Struct, frozen=True):
    """`ttl_ms`: how long the result is fresh after it came; 0: it may not be kept. `is_public`: it is the same for
    every caller."""

    ttl_ms: int
    is_public: bool


class _Head(msgspec.Struct):
    ttlMs: Any = 0
    cacheScope: Any = PRIVATE
    resultType: Any = "complete"


_heads = msgspec.json.Decoder(_Head)


def ttl_ms(value: object) -> int:
    """Return the time that a server gives as `ttlMs`, within 0 and one hour."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return 0
    return int(min(value, _MOST_MS))


def hints_of(result: msgspec.Raw | bytes) -> Hints:
    """Return the hints of a result. One that asks its client for input may not be kept."""
    try:
        head = _heads.decode(result)
    except (msgspec.MsgspecError, RecursionError):
        return Hints(0, False)
    return Hints(ttl_ms(head.ttlMs) if head.resultType == "complete" else 0, head.cacheScope == PUBLIC)


def most_private(pages: Iterable[Mapping[str, Any]]) -> str:
    """Return the scope of a result that is made from these: public if each of them is, and there is one."""
    scopes = [page.get("cacheScope") for page in pages]
    return PUBLIC if scopes and all(scope == PUBLIC for scope in scopes) else PRIVATE


def with_ttl(result: bytes, left_ms: int) -> bytes:
    """Return a result that is fresh for so long from now on."""
    return encode(msgspec.json.decode(result, type=Object) | {"ttlMs": msgspec.Raw(encode(left_ms))})


def of_one_session(result: Object) -> Object:
    """Return a result to which a fact of one session was added: it is for nobody else, and not true for long."""
    if "cacheScope" not in result:
        return result
    return result | {"ttlMs": msgspec.Raw(b"0"), "cacheScope": msgspec.Raw(b'"private"')}


def is_answer_to_input(params: Mapping[str, Any]) -> bool:
    """Return whether a request answers questions of the server: its result may not be kept (MCP 2026-07-28,
    Caching)."""
    return "inputResponses" in params or "requestState" in params
