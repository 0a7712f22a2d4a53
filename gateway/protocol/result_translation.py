"""Translate results and errors between the eras, and name the servers that a merged result lacks. Pure."""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gateway.protocol.cache_hints import PRIVATE, most_private, ttl_ms
from gateway.protocol.handshake import SERVER_INFO
from gateway.protocol.methods import CACHEABLE, METHODS
from gateway.protocol.reserved_meta import RESERVED
from transports.era import Era
from transports.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    Object,
    decode_object,
    encode,
    error_code,
)

MISSING_KEY: Final = f"{RESERVED}/missing"


class Missing(msgspec.Struct, frozen=True):
    """A server whose part of a merged result is missing."""

    server: str
    reason: str
    since: float
    """Unix time since which the server has given no part."""
    retry_s: float | None = None
    """Seconds until the gateway tries the server again: 0 if it tries now, infinite if it never does. None while the
    server is starting."""


def missing_meta(missing: Iterable[Missing]) -> list[dict[str, Any]]:
    """Return the missing servers as the value of `MISSING_KEY` in a result's `_meta`."""
    return [
        {
            "server": entry.server,
            "reason": entry.reason,
            "since": datetime.fromtimestamp(entry.since, UTC).isoformat(timespec="seconds"),
        }
        | ({} if entry.retry_s in (None, math.inf) else {"retryAfterMs": max(1, round(entry.retry_s * 1_000))})
        for entry in missing
    ]


_NO_INFO: Final = b"{}"
COMPLETE: Final = b'"complete"'
_MODERN_ONLY: Final = frozenset({"resultType", "ttlMs", "cacheScope"})
_objects: Final = msgspec.json.Decoder(Object)
_URLS_REQUIRED: Final = -32042
_RESERVED: Final = range(-32099, -32019)


def list_result(
    era: Era,
    body: dict[str, Any],
    pages: Sequence[dict[str, Any]],
    missing: Sequence[Missing] = (),
    *,
    is_filtered: bool = False,
) -> dict[str, Any]:
    """Complete and return `body`, the result of a list request that was merged from several servers' `pages`. Name the
    `missing` servers in its `_meta`.

    A modern result gets cache hints: the shortest time and the most private scope of all pages (MCP 2026-07-28,
    Caching). `is_filtered`: policy hides some items, so the scope is private. An incomplete list must not be cached.
    """
    if missing:
        body = body | {"_meta": {MISSING_KEY: missing_meta(missing)}}
    if era is Era.LEGACY:
        return body
    ttl = 0 if missing else min((ttl_ms(page.get("ttlMs")) for page in pages), default=0)
    scope = PRIVATE if missing or is_filtered else most_private(pages)
    return body | {"resultType": "complete", "ttlMs": ttl, "cacheScope": scope}


def tool_result(era: Era, text: str, content: dict[str, Any]) -> bytes:
    """Return the result of a tool call as JSON, with `text` for the model and `content` for programs (MCP,
    CallToolResult)."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "structuredContent": content}
    return encode(result if era is Era.LEGACY else result | {"resultType": "complete"})


def tool_error(era: Era, text: str) -> bytes:
    """Return the result of a failed tool call as JSON; `text` is for the model (MCP, CallToolResult)."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
    return encode(result if era is Era.LEGACY else result | {"resultType": "complete"})


# -- from a legacy server, for a modern client


def modern_result(method: str, result: Object, server_info: bytes) -> Object:
    """Return a legacy server's result of `method` with the fields that MCP 2026-07-28 requires, and with `server_info`
    (JSON) in its `_meta`, unless that is `{}`. The cache hints in it forbid caching, because it is unknown how long the
    result is valid."""
    more: Object = {"resultType": msgspec.Raw(COMPLETE)}
    if server_info != _NO_INFO:
        meta: Object = _objects.decode(result["_meta"]) if "_meta" in result else {}
        more["_meta"] = msgspec.Raw(encode({SERVER_INFO: msgspec.Raw(server_info)} | meta))
    if method in CACHEABLE:
        more |= {"ttlMs": msgspec.Raw(b"0"), "cacheScope": msgspec.Raw(b'"private"')}
    if method == "tools/list":
        tools = msgspec.json.decode(result.get("tools", b"[]"), type=list[Object])
        # Tasks are an extension in the modern era, which a legacy server does not implement.
        plain = [{key: value for key, value in tool.items() if key != "execution"} for tool in tools]
        more["tools"] = msgspec.Raw(encode(plain))
    if method not in METHODS and "resultType" in result:
        del more["resultType"]  # an extension may have types of its own
    return result | more


def modern_error(error: msgspec.Raw) -> msgspec.Raw:
    """Return a legacy server's error with a code that the modern era permits.

    A legacy server may use -32020 to -32099 for errors of its own, but the modern era has given these codes meanings:
    on -32020 a client sends its call again (MCP 2026-07-28, Error Codes). So replace them, except a -32021 that names
    missing capabilities: servers of both eras send it with its modern meaning.
    """
    code = error_code(error)
    if code == MISSING_CAPABILITY and _names_capabilities(error):
        return error
    if code == RESOURCE_NOT_FOUND:
        permitted = INVALID_PARAMS
    elif code in _RESERVED:
        permitted = INTERNAL_ERROR
    else:
        return error
    return msgspec.Raw(encode(msgspec.json.decode(error, type=Object) | {"code": msgspec.Raw(encode(permitted))}))


def _names_capabilities(error: msgspec.Raw) -> bool:
    data = msgspec.json.decode(error).get("data")
    return isinstance(data, dict) and isinstance(data.get("requiredCapabilities"), dict)


def urls_required(error: msgspec.Raw) -> list[Object] | None:
    """Return the elicitations in an error that asks the user to visit URLs first (MCP 2025-11-25); None for any other
    error."""
    if error_code(error) != _URLS_REQUIRED:
        return None
    try:
        data = msgspec.json.decode(error)["data"]
        return [msgspec.json.decode(encode(e), type=Object) for e in data["elicitations"] if isinstance(e, dict)]
    except (KeyError, TypeError):
        return None


# -- from a modern server, for a legacy client


def legacy_result(method: str, result: Object) -> Object:
    """Return a modern server's result of `method` without the fields that legacy MCP (up to 2025-11-25) does not have.
    A result of an extension's method loses only a `resultType` of `complete` and the server's info in `_meta`."""
    is_extension = method not in METHODS
    dropped = _MODERN_ONLY
    if is_extension:
        dropped = frozenset({"resultType"} if bytes(result.get("resultType", b"")) == COMPLETE else ())
    plain = {key: value for key, value in result.items() if key not in dropped}
    if "_meta" in plain and SERVER_INFO in (meta := decode_object(plain["_meta"], "_meta")):
        del meta[SERVER_INFO], plain["_meta"]  # a legacy client has it from the handshake
        if meta:
            plain["_meta"] = msgspec.Raw(encode(meta))
    if not is_extension and "structuredContent" in plain and bytes(plain["structuredContent"])[:1] != b"{":
        del plain["structuredContent"]  # the legacy era allows objects only; the content has the same data
    return plain


def legacy_error(method: str, params: Object, error: msgspec.Raw) -> msgspec.Raw:
    """Return a modern server's error for a legacy client. If it says that a resource does not exist, it gets the legacy
    error code for that. `method` and `params` are those of the request.

    The modern code, -32602, also has other meanings. So replace it only if the error names the URI of the request, or
    says that the resource was not found (SEP-2164).
    """
    row = METHODS.get(method)
    if row is None or row.named != "uri" or row.extension or error_code(error) != INVALID_PARAMS:
        return error
    found = decode_object(error, "error")
    if not _is_not_found(found, params.get("uri", msgspec.Raw(b"null"))):
        return error
    return msgspec.Raw(encode(found | {"code": msgspec.Raw(encode(RESOURCE_NOT_FOUND))}))


def _is_not_found(error: Object, wanted: msgspec.Raw) -> bool:
    uri = msgspec.json.decode(wanted)
    try:
        data = msgspec.json.decode(error.get("data", b"null"))
        text = msgspec.json.decode(error.get("message", b'""'), type=str).lower()
    except msgspec.MsgspecError:
        return False
    if isinstance(data, dict) and "uri" in data:
        return bool(data["uri"] == uri)
    return text.startswith("resource not found") or text == f"resource {uri} not found".lower()
