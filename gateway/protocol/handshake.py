"""Translate, merge and negotiate the results of the legacy `initialize` and the modern `server/discover`. Pure."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from gateway.protocol.cache_hints import PRIVATE, PUBLIC, hints_of
from gateway.protocol.extensions import SKILLS, object_of, passed_on
from transports.era import HANDSHAKE_VERSIONS, LOG_LEVELS, MODERN_VERSIONS
from transports.jsonrpc import UNREADABLE, InvalidMessage, Object, decode_exact, encode


class HandshakeRefused(Exception):
    """The server answered `initialize` with an error. `error` is the server's error, as JSON."""

    def __init__(self, error: msgspec.Raw) -> None:
        super().__init__("the server refused the handshake")
        self.error = error


def with_known_version(params: Object) -> Object:
    """Return the params of `initialize` with a protocol version of the legacy era.

    The newest legacy version replaces an unknown or modern one (MCP 2025-11-25, Lifecycle §Version Negotiation).
    """
    version = params.get("protocolVersion")
    if version is not None and bytes(version).strip(b'"').decode("ascii", "replace") in HANDSHAKE_VERSIONS:
        return params
    return params | {"protocolVersion": msgspec.Raw(encode(HANDSHAKE_VERSIONS[-1]))}


def limit_version(result: bytes, version: str) -> bytes:
    """Return an `initialize` result for a client whose protocol version is `version`: a newer legacy version in it is
    replaced by `version`. A server may have negotiated a newer one with another client, if its process is shared or was
    started earlier."""
    decoded = msgspec.json.decode(result, type=Object)
    negotiated = msgspec.json.decode(decoded.get("protocolVersion", b'""'))
    if version not in HANDSHAKE_VERSIONS or negotiated not in HANDSHAKE_VERSIONS or negotiated <= version:
        return result
    return encode(decoded | {"protocolVersion": msgspec.Raw(encode(version))})


def version_of(result: bytes) -> str:
    """Return the protocol version in an `initialize` result; empty if it has none."""
    return bytes(object_of(result).get("protocolVersion", b"")).strip(b'"').decode("ascii", "replace")[:32]


SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
_OF_HANDSHAKES: Final = frozenset({"protocolVersion", "capabilities", "serverInfo", "instructions", "_meta"})
_OF_DISCOVERIES: Final = _OF_HANDSHAKES | {"supportedVersions", "resultType", "ttlMs", "cacheScope"}
"""Members of `initialize` and `server/discover` results that are translated or merged. All other members are passed
unchanged."""


def discovery_of(result: bytes) -> bytes:
    """Make a `server/discover` result from the `initialize` result of a server that does not have `server/discover`."""
    shaken = object_of(result)
    info = shaken.get("serverInfo", msgspec.Raw(b"{}"))
    body: dict[str, Any] = {
        "resultType": "complete",
        "supportedVersions": list(MODERN_VERSIONS),
        "capabilities": _common(shaken),
        "serverInfo": info,
        **_instructions([shaken]),
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {**object_of(shaken.get("_meta")), SERVER_INFO: info},
    }
    return encode({**body, **{key: raw for key, raw in shaken.items() if key not in _OF_DISCOVERIES}})


def discovery_for_all(result: bytes, name: str) -> bytes:
    """Return the part of a `server/discover` result that all sessions may see: versions and capabilities. One session
    has got the result with its credentials, so other members, such as instructions, may be for this session alone.
    `name` is the server's name in the gateway."""
    discovered = object_of(result)
    body: dict[str, Any] = {
        "resultType": "complete",
        "supportedVersions": _supported(discovered, [*MODERN_VERSIONS]),
        "capabilities": object_of(discovered.get("capabilities")),
        "ttlMs": 0,
        "cacheScope": PRIVATE,
        "_meta": {SERVER_INFO: {"name": name, "version": "unknown"}},
    }
    return encode(body)


def handshake_of(result: bytes, version: str) -> bytes:
    """Make an `initialize` result for a legacy client from a server's `server/discover` result. `version` is the
    client's protocol version. If it is no legacy version, the newest legacy version replaces it."""
    discovered = object_of(result)
    meta = object_of(discovered.get("_meta"))
    info = meta.pop(SERVER_INFO, None)
    body: dict[str, Any] = {
        "protocolVersion": version if version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
        "capabilities": _common(discovered),
        "serverInfo": discovered.get("serverInfo") or info or {"name": "unknown", "version": "0"},
        **_instructions([discovered]),
        **({"_meta": meta} if meta else {}),
    }
    return encode({**body, **{key: raw for key, raw in discovered.items() if key not in _OF_DISCOVERIES}})


def _common(result: Object) -> Object:
    """Return those capabilities in the result of `initialize` or `server/discover` that clients of either era may
    see."""
    return passed_on(object_of(result.get("capabilities")))


def _instructions(results: Iterable[Object]) -> dict[str, str]:
    """Join the instructions of all results into one. Return them as a member of a result; empty if there are none."""
    texts: list[str] = []
    for result in results:
        with contextlib.suppress(msgspec.MsgspecError):
            texts.append(msgspec.json.decode(result.get("instructions", b'""'), type=str))
    together = "\n\n".join(filter(None, texts))
    return {"instructions": together} if together else {}


def capabilities_of(result: bytes | None) -> dict[str, Any]:
    """Return the capabilities in the `initialize` result of a legacy server; empty if `result` is None or has none."""
    return _part(result, "capabilities")


def lowest_level(levels: Iterable[str]) -> str:
    """Return the lowest of `levels`. Texts that are no log levels are ignored; empty if none is left."""
    return min((level for level in levels if level in LOG_LEVELS), key=LOG_LEVELS.index, default="")


def is_lower(level: str, present: str, initialize_result: bytes | None) -> bool:
    """Return True if a legacy server must be set to the log level `level` before a call is sent. `present` is the level
    to which it is set; empty if it is not set. Each call of a modern client has its own level, but a server has only
    one: the lowest requested so far. Messages are filtered later for each call."""
    if level not in LOG_LEVELS or "logging" not in capabilities_of(initialize_result):
        return False
    return not present or LOG_LEVELS.index(level) < LOG_LEVELS.index(present)


def capabilities_json(result: bytes | None) -> bytes:
    """Return the capabilities in the result of `initialize` or `server/discover` as JSON, as the server has written
    them; `{}` if there are none."""
    return bytes(object_of(result).get("capabilities", b"{}"))


def server_info_of(result: bytes | None) -> bytes:
    """Return the `serverInfo` in the `initialize` result of a legacy server, as JSON; `{}` if there is none."""
    return encode(_part(result, "serverInfo"))


def _part(result: bytes | None, name: str) -> dict[str, Any]:
    try:
        part = decode_exact(object_of(result).get(name, b"null"))
    except (InvalidMessage, *UNREADABLE):
        return {}
    return part if isinstance(part, dict) else {}


_LISTED: Final = ("tools", "prompts", "resources")
"""Kinds of lists that the gateway merges. The gateway itself notifies clients when a merged list changes."""


_BY_NAME: Final = frozenset({"experimental", "extensions"})
"""Capabilities whose members are declared by name. If several servers declare the same name, the merged result has the
settings of the first server, which also gets the extension's methods. The settings of `SKILLS` are merged instead."""


def merge_handshakes(results: Sequence[bytes], version: str, *, incomplete: bool = False) -> bytes:
    """Merge the `initialize` results of several servers into one. Return a single result unchanged, unless
    `incomplete`. `version` is that of the gateway's software.

    `incomplete`: other servers have not answered yet. So declare every kind of list, including skills: the gateway
    answers requests for it, and notifies the client when another server has answered.
    """
    if len(results) == 1 and not incomplete:
        return results[0]
    shaken = [object_of(result) for result in results]
    versions = [version_of(result) for result in results]
    body = {
        "protocolVersion": min([v for v in versions if v in HANDSHAKE_VERSIONS] or [HANDSHAKE_VERSIONS[-1]]),
        **_merged(shaken, incomplete=incomplete),
        "serverInfo": {"name": "mcp-session-gateway", "version": version},
    }
    return encode({**body, **_others(shaken, _OF_HANDSHAKES)})


def merge_discoveries(
    results: Sequence[bytes], version: str, *, incomplete: bool = False, is_filtered: bool = False
) -> bytes:
    """Merge the `server/discover` results of several servers into one. Return a single result unchanged, unless
    `incomplete` or `is_filtered`. For `version` and `incomplete`, see `merge_handshakes`; an incomplete result must not
    be cached. `is_filtered`: other sessions may see other servers, so the result is private, even a single one."""
    if len(results) == 1 and not incomplete:
        return encode(object_of(results[0]) | {"cacheScope": PRIVATE}) if is_filtered else results[0]
    discovered = [object_of(result) for result in results]
    supported = [_supported(d, []) for d in discovered] or [[*MODERN_VERSIONS]]
    hints = [hints_of(result) for result in results]
    is_public = not incomplete and not is_filtered and all(hint.is_public for hint in hints)
    info = {"name": "mcp-session-gateway", "version": version}
    body = {
        "resultType": "complete",
        "supportedVersions": [v for v in supported[0] if all(v in others for others in supported)],
        **_merged(discovered, incomplete=incomplete),
        "serverInfo": info,
        "ttlMs": 0 if incomplete else min(hint.ttl_ms for hint in hints),
        "cacheScope": PUBLIC if is_public else PRIVATE,
        "_meta": {SERVER_INFO: info},
    }
    return encode({**body, **_others(discovered, _OF_DISCOVERIES)})


def _supported(discovered: Object, default: list[str]) -> list[str]:
    try:
        return msgspec.json.decode(discovered.get("supportedVersions", b"null"), type=list[str])
    except msgspec.MsgspecError:
        return default


def _others(results: Sequence[Object], known: frozenset[str]) -> Object:
    """Return those members of the results that are not in `known`, the members that the gateway merges itself. If
    several results have the same member, that of the first result counts."""
    return {key: raw for result in reversed(results) for key, raw in result.items() if key not in known}


def _merged(results: Sequence[Object], *, incomplete: bool) -> dict[str, Any]:
    capabilities: dict[str, Object | msgspec.Raw] = {}
    if incomplete:
        skills: Object = {SKILLS: msgspec.Raw(b'{"directoryRead":true}')}
        capabilities = {**{name: Object() for name in _LISTED}, "extensions": skills}
    for result in results:
        for name, raw in object_of(result.get("capabilities")).items():
            value: Object | msgspec.Raw = object_of(raw) if bytes(raw)[:1] == b"{" else raw
            known = capabilities.get(name)
            if isinstance(known, dict) and isinstance(value, dict):
                value = _by_name(known, value) if name in _BY_NAME else _flagged(known, value)
            capabilities[name] = value
    for name in _LISTED:
        if isinstance(listed := capabilities.get(name), dict):
            listed["listChanged"] = msgspec.Raw(b"true")
    return {"capabilities": capabilities, **_instructions(results)}


_UNSET: Final = (b"false", b"null", b"0", b'""', b"{}", b"[]")


def _flagged(first: Object, value: Object) -> Object:
    """Merge two objects. If both have a member, the value in `first` counts, unless that is false or empty. So a flag
    such as `listChanged`, `subscribe` or `directoryRead` is set if either object sets it."""
    return {**value, **{key: raw for key, raw in first.items() if key not in value or bytes(raw) not in _UNSET}}


def _by_name(first: Object, value: Object) -> Object:
    joined = {**value, **first}
    if SKILLS in first and SKILLS in value:
        joined[SKILLS] = msgspec.Raw(encode(_flagged(object_of(first[SKILLS]), object_of(value[SKILLS]))))
    return joined
