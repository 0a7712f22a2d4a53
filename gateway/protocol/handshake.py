"""The legacy handshake, and the modern discovery: what a client is told the server can do."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from transports.jsonrpc import Object, encode

__all__ = [
    "HANDSHAKE_VERSIONS",
    "MODERN_VERSIONS",
    "HandshakeRefused",
    "at_most",
    "capabilities_of",
    "discovery_of",
    "handshake_of",
    "merge_discoveries",
    "merge_handshakes",
    "negotiable",
    "server_info_of",
    "version_of",
]

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS: Final = ("2026-07-28",)


class HandshakeRefused(Exception):
    """The upstream answered `initialize` with an error, which is passed on as it is."""

    def __init__(self, error: msgspec.Raw) -> None:
        super().__init__("the server refused the handshake")
        self.error = error


def negotiable(params: Object) -> Object:
    """`initialize` params with a version that the handshake era knows.

    An unknown or a modern version is no error (MCP 2025-11-25, Lifecycle §Version Negotiation): the newest is offered.
    """
    version = params.get("protocolVersion")
    if version is not None and bytes(version).strip(b'"').decode("ascii", "replace") in HANDSHAKE_VERSIONS:
        return params
    return params | {"protocolVersion": msgspec.Raw(encode(HANDSHAKE_VERSIONS[-1]))}


def at_most(result: bytes, version: str) -> bytes:
    """An `initialize` result with no newer version than the client asked for.

    A process that is shared, or that a client comes back to, has negotiated with somebody else or at another time.
    """
    decoded = msgspec.json.decode(result, type=Object)
    negotiated = msgspec.json.decode(decoded.get("protocolVersion", b'""'))
    if version not in HANDSHAKE_VERSIONS or negotiated not in HANDSHAKE_VERSIONS or negotiated <= version:
        return result
    return encode(decoded | {"protocolVersion": msgspec.Raw(encode(version))})


def version_of(result: bytes) -> str:
    """What an `initialize` result says was negotiated; empty where it says nothing."""
    version = msgspec.json.decode(result, type=Object).get("protocolVersion", b"")
    return bytes(version).strip(b'"').decode("ascii", "replace")[:32]


_MODERN_CAPABILITIES: Final = ("completions", "experimental", "logging", "prompts", "resources", "tools")


def discovery_of(result: bytes) -> bytes:
    """The `server/discover` result of a server that supports only the handshake, made from its `initialize` result."""
    decoded = msgspec.json.decode(result)
    info = decoded.get("serverInfo", {})
    body: dict[str, Any] = {
        "resultType": "complete",
        "supportedVersions": list(MODERN_VERSIONS),
        "capabilities": _known(decoded),
        "serverInfo": info,
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": info},
    }
    return encode(body | ({"instructions": decoded["instructions"]} if decoded.get("instructions") else {}))


def handshake_of(result: bytes, version: str) -> bytes:
    """The `initialize` result for a legacy client, made from a server's `server/discover` result."""
    decoded = msgspec.json.decode(result)
    body: dict[str, Any] = {
        "protocolVersion": version if version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
        "capabilities": _known(decoded),
        "serverInfo": decoded.get("serverInfo")
        or decoded.get("_meta", {}).get("io.modelcontextprotocol/serverInfo", {"name": "unknown", "version": "0"}),
    }
    return encode(body | ({"instructions": decoded["instructions"]} if decoded.get("instructions") else {}))


def _known(decoded: dict[str, Any]) -> dict[str, Any]:
    """The capabilities both eras have; tasks are an extension in one, and something else in the other."""
    declared = decoded.get("capabilities", {})
    return {name: declared[name] for name in _MODERN_CAPABILITIES if name in declared}


def capabilities_of(result: bytes | None) -> dict[str, Any]:
    """What a legacy server said it can do."""
    return _part(result, "capabilities")


def server_info_of(result: bytes | None) -> bytes:
    """The `serverInfo` of a legacy server, as JSON."""
    return encode(_part(result, "serverInfo"))


def _part(result: bytes | None, name: str) -> dict[str, Any]:
    part = msgspec.json.decode(result).get(name) if result else None
    return part if isinstance(part, dict) else {}


def merge_handshakes(results: Sequence[bytes], version: str) -> bytes:
    """One `initialize` result for several servers; a single one is passed on as it is."""
    if len(results) == 1:
        return results[0]
    decoded = [msgspec.json.decode(result) for result in results]
    versions = [str(d.get("protocolVersion", "")) for d in decoded]
    return encode(
        _merged(decoded)
        | {
            "protocolVersion": min([v for v in versions if v in HANDSHAKE_VERSIONS] or [HANDSHAKE_VERSIONS[-1]]),
            "serverInfo": {"name": "mcp-session-gateway", "version": version},
        }
    )


def merge_discoveries(results: Sequence[bytes], version: str) -> bytes:
    """One `server/discover` result for several servers; a single one is passed on as it is."""
    if len(results) == 1:
        return results[0]
    decoded = [msgspec.json.decode(result) for result in results]
    first = decoded[0]
    versions = [
        v for v in first.get("supportedVersions", []) if all(v in d.get("supportedVersions", []) for d in decoded)
    ]
    info = {"name": "mcp-session-gateway", "version": version}
    return encode(
        first
        | _merged(decoded)
        | {
            "supportedVersions": versions,
            "serverInfo": info,
            "ttlMs": min(int(d.get("ttlMs", 0)) for d in decoded),
            "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": info},
        }
    )


def _merged(decoded: Sequence[dict[str, Any]]) -> dict[str, Any]:
    capabilities: dict[str, Any] = {}
    for result in decoded:
        for name, value in result.get("capabilities", {}).items():
            known = capabilities.get(name)
            if isinstance(known, dict) and isinstance(value, dict):
                value = _union(known, value)
            capabilities[name] = value
    instructions = "\n\n".join(d["instructions"] for d in decoded if d.get("instructions"))
    merged: dict[str, Any] = {"capabilities": capabilities}
    return merged | {"instructions": instructions} if instructions else merged


def _union(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Merge capabilities. A flag such as `listChanged` or `subscribe` is set if any server sets it."""
    return {key: (a.get(key) or b.get(key)) for key in a | b}
