"""Results and errors as each era has them. Pure."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.protocol.methods import CACHEABLE
from transports.era import Era
from transports.jsonrpc import INVALID_PARAMS, Object, encode, error_code

__all__ = ["legacy_result", "list_result", "modern_error", "modern_result", "urls_required"]

_SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
_RESOURCE_NOT_FOUND: Final = -32002
_URLS_REQUIRED: Final = -32042


def list_result(era: Era, body: dict[str, Any], pages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A list made of several servers' pages. In the modern era it says how long it may be cached: as long as the part
    that is good for the shortest time, and only by the client itself (MCP 2026-07-28, Caching)."""
    if era is Era.LEGACY:
        return body
    ttl_ms = min((int(page.get("ttlMs", 0)) for page in pages), default=0)
    return body | {"resultType": "complete", "ttlMs": ttl_ms, "cacheScope": "private"}


# -- a legacy server's, for a modern client


def modern_result(method: str, result: Object, server_info: bytes) -> Object:
    """A result with what the modern era wants beside it. How long it may be cached is not known: not at all."""
    meta = msgspec.json.decode(result.get("_meta", b"{}"), type=Object)
    more: Object = {
        "resultType": msgspec.Raw(b'"complete"'),
        "_meta": msgspec.Raw(encode({_SERVER_INFO: msgspec.Raw(server_info)} | meta)),
    }
    if method in CACHEABLE:
        more |= {"ttlMs": msgspec.Raw(b"0"), "cacheScope": msgspec.Raw(b'"private"')}
    if method == "tools/list":
        tools = msgspec.json.decode(result.get("tools", b"[]"), type=list[Object])
        # Tasks went to an extension, which a legacy server does not speak.
        plain = [{key: value for key, value in tool.items() if key != "execution"} for tool in tools]
        more["tools"] = msgspec.Raw(encode(plain))
    return result | more


def modern_error(error: msgspec.Raw) -> msgspec.Raw:
    """An error with the code the modern era has for it."""
    if error_code(error) != _RESOURCE_NOT_FOUND:
        return error
    return msgspec.Raw(encode(msgspec.json.decode(error, type=Object) | {"code": msgspec.Raw(encode(INVALID_PARAMS))}))


def urls_required(error: msgspec.Raw) -> list[Object] | None:
    """The elicitations of a call that cannot go on before the user has been to some URLs (MCP 2025-11-25), or None."""
    if error_code(error) != _URLS_REQUIRED:
        return None
    try:
        data = msgspec.json.decode(error)["data"]
        return [msgspec.json.decode(encode(e), type=Object) for e in data["elicitations"] if isinstance(e, dict)]
    except (KeyError, TypeError):
        return None


# -- a modern server's, for a legacy client


def legacy_result(result: Object) -> Object:
    """A result without what the handshake era does not know."""
    plain = {key: value for key, value in result.items() if key not in ("resultType", "ttlMs", "cacheScope")}
    if "structuredContent" in plain and bytes(plain["structuredContent"])[:1] != b"{":
        del plain["structuredContent"]  # had to be an object; what it says stands in the content too
    return plain
