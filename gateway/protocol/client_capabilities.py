"""Read the capabilities that a client declares, in the legacy handshake or with every modern request. Pure."""

import functools
import hashlib
from typing import Any, Final

import msgspec

from gateway.protocol.extensions import SPEC, Declared, object_of, passed_on
from gateway.protocol.tasks import with_tasks
from transports.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Object, encode, splice

_MODERN: Final = "2026-07-28"
_LEGACY: Final = "2025-11-25"
_ASKED: Final = {"elicitation": ("form", "url"), "sampling": ("context", "tools"), "roots": ()}
"""The client capabilities that a server's questions may need, with the modes of each."""
_TOOL_USE: Final = frozenset({"tools", "toolChoice"})
"""Params of a sampling request that need `sampling.tools` (MCP 2025-11-25, Sampling §Tools in Sampling)."""
_ONE_ERA: Final = frozenset({"listChanged"})
"""Members of these capabilities that MCP 2026-07-28 does not have. They are removed before a server of the other era
gets the capabilities."""

MAX_INFO_BYTES: Final = 32 << 10
"""Size limit for `clientInfo`, whose icons may be images. A longer one is reduced to name, title and version."""
_MAX_NAME, _MAX_VERSION = 128, 64
_SHORT: Final = 256
"""Maximum bytes of capabilities that are used as a key unchanged. The key of longer ones is their hash."""
_CACHED: Final = 1_024
_MAX_CACHED_BYTES: Final = 2_048


class ClientDeclaration(msgspec.Struct, frozen=True, dict=True):
    """The identity and the capabilities that a client has declared, in a form for servers of the other era."""

    info: bytes
    """The client's own `clientInfo` as JSON, completed or shortened if it is not valid."""
    capabilities: bytes
    """The client's own capabilities as JSON, without members that the other era does not have."""
    log_level: str = ""
    """The lowest level of log messages that a modern client wants; empty for none."""

    @property
    def is_declared(self) -> bool:
        """Return True if the client has declared any capability."""
        return self.capabilities != b"{}"

    @functools.cached_property
    def declared(self) -> Declared:
        """Return the extensions that the client has declared. Cached, because many messages need them."""
        return Declared.of(self.capabilities)

    @property
    def key(self) -> bytes:
        """Return the capabilities as a short key for caches and stores: their JSON, or its hash if the JSON is long."""
        declared = self.capabilities
        return declared if len(declared) <= _SHORT else hashlib.sha256(declared).hexdigest().encode()

    def initialize_params(self) -> bytes:
        """Return the params of an `initialize` request that declares this client to a legacy server."""
        return encode(
            {
                "protocolVersion": _LEGACY,
                "capabilities": msgspec.Raw(self.capabilities),
                "clientInfo": msgspec.Raw(self.info),
            }
        )

    def meta(self, log_level: str, *, takes_tasks: bool = False) -> Object:
        """Return the `_meta` by which a request to a modern server declares this client. Callers must not change it.
        `log_level` is the lowest level of log messages to ask for; empty for none. `takes_tasks`: the gateway accepts a
        task in place of a result (`gateway.protocol.tasks.with_tasks`)."""
        meta = self._meta_with_tasks if takes_tasks else self._meta
        return meta | {f"{SPEC}logLevel": msgspec.Raw(encode(log_level))} if log_level else meta

    @functools.cached_property
    def _meta(self) -> Object:
        return {
            f"{SPEC}protocolVersion": msgspec.Raw(encode(_MODERN)),
            f"{SPEC}clientInfo": msgspec.Raw(self.info),
            f"{SPEC}clientCapabilities": msgspec.Raw(self.capabilities),
        }

    @functools.cached_property
    def _meta_with_tasks(self) -> Object:
        return with_tasks(self._meta)


class _Meta(
    msgspec.Struct,
    rename={
        "info": f"{SPEC}clientInfo",
        "capabilities": f"{SPEC}clientCapabilities",
        "log_level": f"{SPEC}logLevel",
    },
):
    info: msgspec.Raw = msgspec.Raw(b"null")
    capabilities: msgspec.Raw = msgspec.Raw(b"null")
    log_level: Any = ""


class _Params(msgspec.Struct):
    clientInfo: msgspec.Raw = msgspec.Raw(b"null")
    capabilities: msgspec.Raw = msgspec.Raw(b"null")


_metas = msgspec.json.Decoder(_Meta)
_params = msgspec.json.Decoder(_Params)


def declaration_in_meta(meta: msgspec.Raw | bytes) -> ClientDeclaration:
    """Return the declaration of a modern client, from the `_meta` of its request. Raises `msgspec.MsgspecError` if
    `meta` is not an object."""
    said = _metas.decode(meta)
    declaration = _declaration(bytes(said.info), bytes(said.capabilities))
    level = said.log_level
    return msgspec.structs.replace(declaration, log_level=level) if level and isinstance(level, str) else declaration


def declaration_in_params(initialize_params: bytes) -> ClientDeclaration:
    """Return the declaration of a legacy client, from the params of its `initialize` request. Raises
    `msgspec.MsgspecError` if they are invalid."""
    said = _params.decode(initialize_params or b"{}")
    return _declaration(bytes(said.clientInfo), bytes(said.capabilities))


def may_be_asked(capabilities: bytes, method: str, params: Object) -> bool:
    """Return True if a server may send the client this request: `capabilities`, which the client has declared (JSON),
    have the capability or extension that the request needs. Raises `msgspec.MsgspecError` if the mode of an elicitation
    is not a string."""
    declared, name, kind = object_of(capabilities), method.partition("/")[0], _kind(method, params)
    if kind:
        return kind in object_of(declared.get(name))
    return name in declared or Declared.of(capabilities).match(method) > 0


def refusal(capabilities: bytes, method: str, params: Object) -> tuple[int, str] | None:
    """Return the error code and message with which to answer a server's request to a client, if the client has not
    declared that it can be asked this (MCP 2025-11-25, Elicitation and Roots §Error Handling). Return None if it has.
    `capabilities` are what the client has declared (JSON). Raises the same errors as `may_be_asked`."""
    if may_be_asked(capabilities, method, params):
        return None
    (name, parts), *_ = capability_for(method, params).items()
    text = f"The client has not declared {'.'.join((name, *parts))}, which this {method} needs."
    return INVALID_PARAMS if name == "elicitation" or name in object_of(capabilities) else METHOD_NOT_FOUND, text


def capability_for(method: str, params: Object) -> dict[str, Any]:
    """Return the capability that a client must declare before a server may send it this request, in the form in which
    clients declare it."""
    name, kind = method.partition("/")[0], _kind(method, params)
    if name in _ASKED:
        return {name: {kind: {}} if kind else {}}
    return {"extensions": {"/".join(method.split("/")[:2]): {}}}


def _kind(method: str, params: Object) -> str:
    """Return the part of a capability that a server's request needs, such as `url` of elicitation or `tools` of
    sampling; empty if it needs no part."""
    if method == "elicitation/create":
        return msgspec.json.decode(params.get("mode", b"null"), type=str | None) or "form"
    is_tool_use = any(bytes(params.get(name, b"null")) != b"null" for name in _TOOL_USE)
    return "tools" if method == "sampling/createMessage" and is_tool_use else ""


def _new_declaration(info: bytes, declared: bytes) -> ClientDeclaration:
    passed = passed_on(object_of(splice(declared)))
    known: dict[str, Any] = {}
    for name, kinds in _ASKED.items():
        if name not in passed or bytes(passed[name])[:1] != b"{":
            continue
        value = {kind: raw for kind, raw in object_of(passed[name]).items() if bytes(raw) != b"null"}
        known[name] = {kind: {} for kind in kinds if kind in value}
        known[name] |= {kind: raw for kind, raw in value.items() if kind not in kinds and kind not in _ONE_ERA}
        if name == "elicitation" and known[name].keys().isdisjoint(kinds):
            # No mode means forms, as before URLs came (MCP 2025-11-25, Elicitation), whatever else an SDK declares.
            known[name] = {"form": {}} | known[name]
    known |= {name: raw for name, raw in passed.items() if name not in _ASKED}
    return ClientDeclaration(_info(splice(info)), encode(known))


_cached_declaration = functools.lru_cache(maxsize=_CACHED)(_new_declaration)


def _declaration(info: bytes, declared: bytes) -> ClientDeclaration:
    # A client sends the same with each request. Longer texts would only fill the cache.
    return (_cached_declaration if len(info) + len(declared) <= _MAX_CACHED_BYTES else _new_declaration)(info, declared)


def _info(raw: bytes) -> bytes:
    """Return a valid `clientInfo`: with a name and a version, and shortened if it is too long."""
    info = object_of(raw)
    name, version = _text(info.get("name")), _text(info.get("version"))
    if 0 < len(name) <= _MAX_NAME and 0 < len(version) <= _MAX_VERSION and len(raw) <= MAX_INFO_BYTES:
        return raw
    if len(raw) > MAX_INFO_BYTES:
        title = _text(info.get("title"))[:_MAX_NAME]
        info = {"title": msgspec.Raw(encode(title))} if title else {}
    return encode({**info, "name": name[:_MAX_NAME] or "unknown", "version": version[:_MAX_VERSION] or "0"})


def _text(raw: msgspec.Raw | None) -> str:
    try:
        return "" if raw is None else msgspec.json.decode(raw, type=str)
    except msgspec.MsgspecError:
        return ""
