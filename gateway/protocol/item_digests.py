"""Compute digests of the tools, prompts and resource templates that servers list. Equal items have equal digests,
however a server orders or spaces their JSON (RFC 8785). Pure: no I/O."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from cachetools import LRUCache

from transports.jsonrpc import encode

_OF_APPS: Final = ("ui", "ui/resourceUri")
"""The keys in a tool's `_meta` that name the MCP App which shows the tool's results
(`gateway.protocol.merged_lists.app_of`)."""
_EXACT: Final = 2**53 - 1
"""The largest integer that every JSON reader reads exactly (RFC 8785, section 3.2.2.3)."""

FORM_BYTES: Final = 20
"""Length in bytes of a form, the hash that `form_of` computes. Nobody can find two items with the same one."""

_MOST_SLOW: Final = 256 << 10
"""Maximum bytes of a list that are brought into their canonical form by slow Python code: this takes a third of a
second."""

_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_EXPONENT: Final = re.compile(rb"[0-9]e")
_LONG: Final = re.compile(rb"[0-9]{16}")
_ASTRAL: Final = re.compile(rb"[\xf0-\xf4]")

# Sessions get the same items again and again. The key is a hash of the item as it was received.
_known: LRUCache[bytes, str] = LRUCache(16_384)


def compared_part(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the digest of an item covers: all members but `icons` and `_meta`. Of `_meta`, it covers only what
    names the app of a tool."""
    part = {key: value for key, value in item.items() if key not in ("_meta", "icons")}
    meta = item.get("_meta")
    if isinstance(meta, dict) and (app := {key: meta[key] for key in _OF_APPS if key in meta}):
        part["_meta"] = app
    return part


def form_of(item: Mapping[str, Any]) -> bytes:
    """Return the form of an item: a hash of the part that its digest covers; empty if the item cannot be encoded. A
    form costs less to compute than a digest. But the form of an item changes if its server writes the same number in
    another way, and the digest does not."""
    try:
        return hashlib.sha256(msgspec.json.encode(compared_part(item), order="sorted")).digest()[:FORM_BYTES]
    except (OverflowError, RecursionError, msgspec.MsgspecError):
        return b""


def digest_of(item: Mapping[str, Any]) -> str:
    """Return the digest of an item, as `sha256:HEX`; empty if the item has no canonical form. A number beyond 2**53
    counts as the nearest float, because most JSON readers read it so."""
    return digests_of((item,))[0]


def digests_of(items: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the digests of a list's items, in their order, each as `digest_of` returns it. Some items need slow code.
    After `_MOST_SLOW` bytes of such items, all further items get an empty digest unless theirs is cached, so that no
    server's list delays other calls."""
    left, found = _MOST_SLOW, []
    for item in items:
        try:
            digest, cost = _digest(item, left)
        except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            digest, cost = "", 0
        left -= cost
        found.append(digest)
    return found


def _digest(item: Mapping[str, Any], left: int) -> tuple[str, int]:
    """Return the digest of an item, and how many bytes to subtract from `left`: 0 if the slow code was not needed.
    `left` is how many bytes may still take the slow code. The digest is empty if it is not cached and `left` is used
    up, or too small for an item that needs that code."""
    key = hashlib.sha256(encode(item)).digest()
    if (known := _known.get(key)) is not None or left <= 0:
        return known or "", 0
    part, cost = compared_part(item), 0
    canonical = msgspec.json.encode(part, order="sorted")
    # This is canonical already, unless a number is written otherwise, or keys are sorted otherwise.
    if (not canonical.isascii() and _ASTRAL.search(canonical)) or _has_other_number(_TEXT.sub(b"", canonical)):
        import rfc8785  # only locks need it

        cost = len(canonical)
        if cost > left:
            return "", cost
        canonical = rfc8785.dumps(_as_floats(part))
    found = _known[key] = f"sha256:{hashlib.sha256(canonical).hexdigest()}"
    return found, cost


def _has_other_number(rest: bytes) -> bool:
    """Return True if a JSON text has a number that ECMAScript may write in another way. `rest` is the text without its
    strings."""
    return b"." in rest or _EXPONENT.search(rest) is not None or _LONG.search(rest) is not None


def _as_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_floats(inner) for inner in value]
    if isinstance(value, int) and not -_EXACT <= value <= _EXACT:
        return float(value)
    return value
