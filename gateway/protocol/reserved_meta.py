"""Remove the `_meta` keys that only the gateway may set from messages of clients and servers. Pure."""

from typing import Any, Final

import msgspec
import re2

from gateway.protocol.params import meta_of
from transports.json_part_counts import REQUEST_PARTS, has_more_parts
from transports.jsonrpc import INVALID_REQUEST, InvalidMessage, Message, Object, decode_exact, decode_object, encode

RESERVED: Final = "io.github.mcp-session-gateway"
"""Prefix of the keys that only the gateway may set. Matched in any case, with or without a slash after it."""

_REPORTS: Final = tuple(f"{RESERVED}/{name}" for name in ("missing", "restarted", "trace"))
_WRITTEN: Final = RESERVED.encode()
_CHARACTERS: Final = (rf"(?i:{re2.escape(each)}|\\u00(?:{ord(each):02x}|{ord(each.upper()):02x}))" for each in RESERVED)
_KEY: Final = re2.compile(rf'[{{,\s]"{"".join(_CHARACTERS)}'.encode())
"""Matches the beginning of a reserved key in JSON. Each of its characters may be written as an escape sequence (RFC
8259 §7)."""

_MOST_BYTES: Final = 256 << 10
"""Maximum bytes of a member of a message that is decoded to remove reserved keys from it."""


def without_reserved(meta: Object) -> Object:
    """Return the entries of a `_meta` without the gateway's reserved keys."""
    for key in meta:
        if _is_reserved(key):
            return {name: value for name, value in meta.items() if not _is_reserved(name)}
    return meta


def without_reserved_in(message: Message) -> Message:
    """Return a message without the gateway's reserved keys in any `_meta`, at any depth; the same object if it has
    none.

    Raises:
        msgspec.MsgspecError, InvalidMessage: a body with a reserved key is invalid, or the member with it is too large.
    """
    changes: dict[str, msgspec.Raw] = {}
    for field, raw in (("result", message.result), ("params", message.params), ("error", message.error)):
        if isinstance(raw, msgspec.Raw) and (found := without_reserved_below(raw)) is not raw:
            changes[field] = found
    return msgspec.structs.replace(message, **changes) if changes else message


def with_reports_only(message: Message) -> Message:
    """Return a message of a server that is another gateway, without the reserved keys, except that gateway's reports in
    the `_meta` of a result. The reports are missing servers, a restart, and the ids of the request in its log. Raises
    the same errors as `without_reserved_in`."""
    cleaned = without_reserved_in(message)
    if cleaned is message or not isinstance(message.result, msgspec.Raw) or not isinstance(cleaned.result, msgspec.Raw):
        return cleaned
    received = meta_of(decode_object(message.result, "result"))
    result = decode_object(cleaned.result, "result")
    meta = meta_of(result) | {key: received[key] for key in _REPORTS if key in received}
    return msgspec.structs.replace(cleaned, result=msgspec.Raw(encode(result | {"_meta": msgspec.Raw(encode(meta))})))


def without_reserved_below(raw: msgspec.Raw) -> msgspec.Raw:
    """Return a raw JSON value without the gateway's reserved keys in any `_meta`, at any depth; the same object if it
    has none. Raises the same errors as `without_reserved_in`."""
    data = bytes(raw)
    if not may_name_reserved(data):
        return raw
    if not data.lstrip().startswith(b"{"):
        return _member_without_reserved("", raw)
    members = decode_object(raw, "a body")
    kept = {name: _member_without_reserved(name, value) for name, value in members.items()}
    return raw if all(kept[name] is members[name] for name in members) else msgspec.Raw(encode(kept))


def _member_without_reserved(name: str, raw: msgspec.Raw) -> msgspec.Raw:
    """Return the value `raw` of an object's member without the gateway's reserved keys in any `_meta`; the same object
    if it has none. Only a value with a reserved key is decoded. Raises `InvalidMessage`, with the member's `name`, if
    the value is so large that decoding would block the event loop."""
    data = bytes(raw)
    if not may_name_reserved(data) or _KEY.search(data) is None:
        return raw
    if len(data) > _MOST_BYTES or has_more_parts(data, REQUEST_PARTS):
        raise InvalidMessage(INVALID_REQUEST, f"{name[:64]!r} is large, and has keys that only the gateway may set")
    holder = {name: decode_exact(raw)}
    _remove(holder)
    return msgspec.Raw(encode(holder[name]))


def _is_reserved(key: str) -> bool:
    return key[: len(RESERVED)].lower() == RESERVED


def may_name_reserved(body: bytes) -> bool:
    """Return True if a `_meta` in the bytes of a message may have a reserved key. Return False if it is certain,
    without decoding them, that none has."""
    return b"\\u00" in body or _WRITTEN in body.lower()


def _remove(value: Any) -> None:
    """Remove the reserved keys from each `_meta` within a decoded value, at any depth."""
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
