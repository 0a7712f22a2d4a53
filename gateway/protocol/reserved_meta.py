"""The `_meta` keys that only the gateway sets: removes them from what clients and servers send. Pure."""

from typing import Any, Final

import msgspec
import re2

from transports.jsonrpc import Message, Object, decode_exact, encode

__all__ = ["RESERVED", "without_reserved", "without_reserved_below", "without_reserved_in"]

RESERVED: Final = "io.github.mcp-session-gateway"
"""How the keys begin that only the gateway sets, in any case, with a slash behind it or without."""

_WRITTEN: Final = RESERVED.encode()
_ESCAPED: Final = re2.compile(
    "".join(rf"(?i:{re2.escape(each)}|\\u00(?:{ord(each):02x}|{ord(each.upper()):02x}))" for each in RESERVED).encode()
)
"""The beginning with any of its characters as an escape of JSON (RFC 8259 §7)."""


def without_reserved(meta: Object) -> Object:
    """Remove the gateway's own keys from the entries of a `_meta`."""
    for key in meta:
        if _is_reserved(key):
            return {name: value for name, value in meta.items() if not _is_reserved(name)}
    return meta


def without_reserved_in(message: Message) -> Message:
    """Remove the gateway's own keys from each `_meta` in a message, at any depth. A message that names none of them is
    returned as it is.

    Raises:
        msgspec.MsgspecError, InvalidMessage: it names one, and its body cannot be read.
    """
    changes: dict[str, msgspec.Raw] = {}
    for field, raw in (("result", message.result), ("params", message.params), ("error", message.error)):
        if isinstance(raw, msgspec.Raw) and (found := without_reserved_below(raw)) is not raw:
            changes[field] = found
    return msgspec.structs.replace(message, **changes) if changes else message


def without_reserved_below(raw: msgspec.Raw) -> msgspec.Raw:
    """Remove the gateway's own keys from each `_meta` in a raw value, at any depth. Raises as `without_reserved_in`."""
    if not _names_reserved(bytes(raw)):
        return raw
    value = decode_exact(raw)
    _remove(value)
    return msgspec.Raw(encode(value))


def _is_reserved(key: str) -> bool:
    return key[: len(RESERVED)].lower() == RESERVED


def _names_reserved(body: bytes) -> bool:
    if b"\\u00" in body:
        return _ESCAPED.search(body) is not None
    return _WRITTEN in body.lower()


def _remove(value: Any) -> None:
    """Remove the keys from each `_meta` within a decoded value. Its depth is as large as its decoder allows."""
    rest = [value]
    while rest:
        found = rest.pop()
        if isinstance(found, dict):
            meta = found.get("_meta")
            if isinstance(meta, dict):
                for key in [key for key in meta if _is_reserved(key)]:
                    del meta[key]
            rest.extend(found.values())
        elif isinstance(found, list):
            rest.extend(found)
