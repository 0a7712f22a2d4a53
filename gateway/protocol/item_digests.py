"""Compute digests of the tools, prompts and resource templates that servers list. Equal items have equal digests,
however a server orders or spaces their JSON (RFC 8785). Pure: no I/O."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from cachetools import LRUCache

from transports.jsonrpc import encode

_OF_APPS: Final = ("ui", "ui/resourceUri")
"""The keys in `_meta` that say which app shows a tool's results (`gateway.protocol.merged_lists.app_of`)."""
_EXACT: Final = 2**53 - 1
"""The largest integer of which every reader of JSON has the exact value (RFC 8785, section 3.2.2.3)."""

# Sessions get the same items again and again. The key is a hash of the item as it was received.
_known: LRUCache[bytes, str] = LRUCache(16_384)


def compared_part(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an item that its digest covers: all but icons and `_meta`. The app of a tool is covered,
    although it is in `_meta`."""
    part = {key: value for key, value in item.items() if key not in ("_meta", "icons")}
    meta = item.get("_meta")
    if isinstance(meta, dict) and (app := {key: meta[key] for key in _OF_APPS if key in meta}):
        part["_meta"] = app
    return part


def digest_of(item: Mapping[str, Any]) -> str:
    """Return the digest of an item, as `sha256:HEX`; empty if it has no canonical form. Numbers beyond 2**53 count as
    the nearest float, as most readers of JSON read them."""
    try:
        key = hashlib.sha256(encode(item)).digest()
        found = _known.get(key)
        if found is None:
            import rfc8785  # only locks need it

            canonical = rfc8785.dumps(_as_floats(compared_part(item)))
            found = _known[key] = f"sha256:{hashlib.sha256(canonical).hexdigest()}"
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return ""
    return found


def _as_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_floats(inner) for inner in value]
    if isinstance(value, int) and not -_EXACT <= value <= _EXACT:
        return float(value)
    return value
