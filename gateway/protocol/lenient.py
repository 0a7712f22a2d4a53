"""Readings of arguments that do not fit their schema, but that many servers take. Pure.

The official Python SDK, and others that validate with pydantic, read "3" as 3 and "true" as true. `null` stands for an
argument that is left out. Containers in strings are never read: what is in them would be read once more.
"""

from collections.abc import Sequence
from typing import Any, Final

import jsonschema_rs
import msgspec

__all__ = ["read_leniently"]

_MOST_CHARS: Final = 64
_KINDS: Final = (
    jsonschema_rs.ValidationErrorKind.Type,
    jsonschema_rs.ValidationErrorKind.AnyOf,
    jsonschema_rs.ValidationErrorKind.OneOfNotValid,
)
"""Errors that say that a value has another type. The others are about the value itself."""

_scalars = msgspec.json.Decoder(int | float | bool)


def read_leniently(arguments: Any, path: Sequence[str | int], kind: Any) -> bool:
    """Replace the value at `path`, of which a schema error of that kind was found, by what a server may read there.
    `arguments` are changed. False if there is no other reading."""
    if not path or not isinstance(kind, _KINDS):
        return False
    try:
        parent = arguments
        for key in path[:-1]:
            parent = parent[key]
        value = parent[path[-1]]
    except (KeyError, IndexError, TypeError):
        return False  # another error of the same value was found before
    if value is None and isinstance(parent, dict):
        del parent[path[-1]]
        return True
    if isinstance(value, str) and len(value) <= _MOST_CHARS:
        try:
            parent[path[-1]] = _scalars.decode(value.lower() if value in ("True", "False") else value)
        except (msgspec.MsgspecError, UnicodeEncodeError):
            return False
        return True
    return False
