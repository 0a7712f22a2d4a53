"""The results of the legacy `initialize` and the modern `server/discover`: translated, merged, negotiated. Pure."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from transports.era import HANDSHAKE_VERSIONS, MODERN_VERSIONS
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


class HandshakeRefused(Exception):
    """The server answered `initialize` with an error. `error` is that error, as JSON."""

    def __init__(self, error: msgspec.Raw) -> None:
        super().__init__("the server refused the handshake")
        self.error = error


def negotiable(params: Object) -> Object:
    """The params of `initialize` with a version of the legacy era.

    An unknown or a modern version is replaced by the newest one (MCP 2025-11-25, Lifecycle §Version Negotiation).
    """
    version = params.get("protocolVersion")
    if version is not None and bytes(version).strip(b'"').decode("ascii", "replace") in HANDSHAKE_VERSIONS:
        return params
    return params | {"protocolVersion": msgspec.Raw(encode(HANDSHAKE_VERSIONS[-1]))}


def at_most(result: bytes, version: str) -> bytes:
    """An `initialize` result whose version is no newer than the one that the client asked for.

    The process may be shared, or older than this request: then it has negotiated its version with another client.
    """
    decoded = msgspec.json.decode(result, type=Object)
    negotiated = msgspec.json.decode(decoded.get("protocolVersion", b'""'))
    if version not in HANDSHAKE_VERSIONS or negotiated not in HANDSHAKE_VERSIONS or negotiated <= version:
        return result
    return encode(decoded | {"protocolVersion": msgspec.Raw(encode(version))})


def version_of(result: bytes) -> str:
    """The protocol version in an `initialize` result; empty if it has none."""
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
        "capabilities": _common(decoded),
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
        "capabilities": _common(decoded),
        "serverInfo": decoded.get("serverInfo")
        or decoded.get("_meta", {}).get("io.modelcontextprotocol/serverInfo", {"name": "unknown", "version": "0"}),
    }
    return encode(body | ({"instructions": decoded["instructions"]} if decoded.get("instructions") else {}))


def _common(decoded: dict[str, Any]) -> dict[str, Any]:
    """The capabilities that both eras have. `tasks` is left out: it differs between the eras."""
    declared = decoded.get("capabilities", {})
    return {name: declared[name] for name in _MODERN_CAPABILITIES if name in declared}


def capabilities_of(result: bytes | None) -> dict[str, Any]:
    """The capabilities in the `initialize` result of a legacy server."""
    return _part(result, "capabilities")


def server_info_of(result: bytes | None) -> bytes:
    """The `serverInfo` of a legacy server, as JSON."""
    return encode(_part(result, "serverInfo"))


def _part(result: bytes | None, name: str) -> dict[str, Any]:
    part = msgspec.json.decode(result).get(name) if result else None
    return part if isinstance(part, dict) else {}


_LISTED: Final = ("tools", "prompts", "resources")
"""The kinds of lists that the gateway merges, and of whose changes it notifies clients itself."""


def merge_handshakes(results: Sequence[bytes], version: str, *, incomplete: bool = False) -> bytes:
    """One `initialize` result for several servers. A single result is returned as it is. `version` is the gateway's.

    `incomplete`: further servers may come. As nobody knows what they have, every list is declared: the gateway answers
    it, and notifies the client when a server has come.
    """
    if len(results) == 1 and not incomplete:
        return results[0]
    decoded = [msgspec.json.decode(result) for result in results]
    versions = [str(d.get("protocolVersion", "")) for d in decoded]
    return encode(
        _merged(decoded, incomplete=incomplete)
        | {
            "protocolVersion": min([v for v in versions if v in HANDSHAKE_VERSIONS] or [HANDSHAKE_VERSIONS[-1]]),
            "serverInfo": {"name": "mcp-session-gateway", "version": version},
        }
    )


def merge_discoveries(results: Sequence[bytes], version: str, *, incomplete: bool = False) -> bytes:
    """One `server/discover` result for several servers. A single result is returned as it is. `version` and
    `incomplete` are as for `merge_handshakes`; an incomplete result must not be cached."""
    if len(results) == 1 and not incomplete:
        return results[0]
    decoded = [msgspec.json.decode(result) for result in results]
    first = decoded[0] if decoded else {"resultType": "complete", "supportedVersions": [*MODERN_VERSIONS]}
    versions = [
        v for v in first.get("supportedVersions", []) if all(v in d.get("supportedVersions", []) for d in decoded)
    ]
    info = {"name": "mcp-session-gateway", "version": version}
    return encode(
        first
        | _merged(decoded, incomplete=incomplete)
        | {
            "supportedVersions": versions,
            "serverInfo": info,
            "ttlMs": 0 if incomplete else min(int(d.get("ttlMs", 0)) for d in decoded),
            "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": info},
        }
    )


def _merged(decoded: Sequence[dict[str, Any]], *, incomplete: bool) -> dict[str, Any]:
    capabilities: dict[str, Any] = {name: {} for name in _LISTED} if incomplete else {}
    for result in decoded:
        for name, value in result.get("capabilities", {}).items():
            known = capabilities.get(name)
            if isinstance(known, dict) and isinstance(value, dict):
                value = _union(known, value)
            capabilities[name] = value
    for name in _LISTED:
        if isinstance(capabilities.get(name), dict):
            capabilities[name] = capabilities[name] | {"listChanged": True}
    instructions = "\n\n".join(d["instructions"] for d in decoded if d.get("instructions"))
    merged: dict[str, Any] = {"capabilities": capabilities}
    return merged | {"instructions": instructions} if instructions else merged


def _union(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Merge capabilities. A flag such as `listChanged` or `subscribe` is set if any server sets it."""
    return {key: (a.get(key) or b.get(key)) for key in a | b}
