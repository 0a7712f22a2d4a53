"""What a client declares that servers may ask it: in the legacy handshake, or with every modern request. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from transports.jsonrpc import Object, encode

__all__ = ["Caller", "caller_of_meta", "caller_of_params", "may_be_asked"]

_SPEC: Final = "io.modelcontextprotocol/"
_MODERN: Final = "2026-07-28"
_LEGACY: Final = "2025-11-25"
_ASKED: Final = {"elicitation": ("form", "url"), "sampling": ("context", "tools"), "roots": ()}
"""Capabilities of clients, and the kinds of each."""


class Caller(msgspec.Struct, frozen=True):
    """A client's identity and capabilities, for servers of the other era. `capabilities` is canonical JSON, so
    that equal ones are equal bytes; `log_level` is the lowest level of messages that it wants, empty for none."""

    name: str
    version: str
    capabilities: bytes
    log_level: str = ""

    def initialize_params(self) -> bytes:
        """The params of `initialize` for a legacy server."""
        return encode(
            {
                "protocolVersion": _LEGACY,
                "capabilities": msgspec.Raw(self.capabilities),
                "clientInfo": {"name": self.name, "version": self.version},
            }
        )

    def meta(self, log_level: str) -> Object:
        """The `_meta` of every request to a modern server."""
        meta: dict[str, Any] = {
            f"{_SPEC}protocolVersion": _MODERN,
            f"{_SPEC}clientInfo": {"name": self.name, "version": self.version},
            f"{_SPEC}clientCapabilities": msgspec.Raw(self.capabilities),
        }
        if log_level:
            meta[f"{_SPEC}logLevel"] = log_level
        return {key: msgspec.Raw(encode(value)) for key, value in meta.items()}


def caller_of_meta(meta: Mapping[str, Any]) -> Caller:
    """A modern client, from the `_meta` of its request."""
    info = meta.get(f"{_SPEC}clientInfo")
    level = meta.get(f"{_SPEC}logLevel")
    return _caller(info, meta.get(f"{_SPEC}clientCapabilities"), level if isinstance(level, str) else "")


def caller_of_params(initialize_params: bytes) -> Caller:
    """A legacy client, from the params of its `initialize`."""
    params = msgspec.json.decode(initialize_params or b"{}")
    return _caller(params.get("clientInfo"), params.get("capabilities"), "")


def may_be_asked(capabilities: bytes, method: str, params: Object) -> bool:
    """Whether the client has declared the capability that a server's request needs."""
    declared = msgspec.json.decode(capabilities)
    if method == "elicitation/create":
        mode = msgspec.json.decode(params.get("mode", b'"form"'))
        return mode in declared.get("elicitation", ())
    return method.partition("/")[0] in declared


def _caller(info: Any, declared: Any, log_level: str) -> Caller:
    info = info if isinstance(info, Mapping) else {}
    declared = declared if isinstance(declared, Mapping) else {}
    known: dict[str, Any] = {}
    for name, kinds in _ASKED.items():
        value = declared.get(name)
        if not isinstance(value, Mapping):
            continue
        known[name] = {kind: {} for kind in kinds if kind in value}
        if name == "elicitation" and not known[name]:
            known[name] = {"form": {}}  # an empty object means forms, as before URLs came (MCP 2025-11-25, Elicitation)
    return Caller(
        str(info.get("name") or "unknown")[:128], str(info.get("version") or "0")[:64], encode(known), log_level
    )
