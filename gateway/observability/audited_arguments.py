"""Prepare arguments of calls for the audit trail: only names, or also values without credentials. Pure: no I/O.

The call waits while its arguments are prepared, so the sizes that are read and redacted are limited.
"""

import re
from typing import Any, Final

import msgspec

from session_store.redaction import REDACTED, may_be_secret_name, scrubbed_argument
from transports.jsonrpc import InvalidMessage, decode_exact

_MOST_READ: Final = 8 << 10
"""Maximum number of bytes of arguments that are read. If they are longer, only their size is shown."""
_MOST_SHOWN: Final = 2_000
"""Maximum number of bytes of memory for the text in one event: many events are buffered while the store is down."""

_NAMING: Final = frozenset({"name", "key", "header"})
_NAMED: Final = frozenset({"value", "values"})
"""In an object such as `{"name": "TOKEN", "value": …}`, a member in `_NAMING` has a name, and a member in `_NAMED` has
the value of what is named. Headers and variables are often lists of such objects."""
_NAME_ITEM: Final = re.compile(r"[\w.-]{1,64}(?: \w{1,64})?:?")
"""Matches an item of a list that may be a name or an option, but not a sentence."""


def shown_arguments(raw: bytes, *, with_values: bool) -> str:
    """Return the arguments of a call (`raw`: their JSON) as JSON for the audit trail: only their names, or
    `with_values` also the values. Credentials are redacted, and the text is cut at `_MOST_SHOWN` (bytes of memory). If
    the arguments are too large or invalid, return a note in parentheses."""
    if len(raw) > _MOST_READ:
        return f"({len(raw)} bytes)"
    walk = _Walk()
    try:
        found = decode_exact(raw)
        if not isinstance(found, dict):
            return "(no object)"
        text = msgspec.json.encode(walk.of(found) if with_values else walk.names(found)).decode()
    except (msgspec.MsgspecError, InvalidMessage, ValueError, RecursionError):
        return "(unreadable)"
    kept = text[:_MOST_SHOWN]
    widest = max(kept)  # Python stores all characters of a text in the size of the widest one
    kept = kept[: _MOST_SHOWN // (1 if widest < "\u0100" else 2 if widest < "\U00010000" else 4)]
    return kept if kept == text and not walk.is_over else f"{kept}..."


class _Walk:
    """Redact one JSON value, given to `of` or `names`, and leave out what follows once the result has `_MOST_SHOWN`
    characters."""

    def __init__(self) -> None:
        self._left = _MOST_SHOWN

    @property
    def is_over(self) -> bool:
        """Return True if the result exceeds the limit: what follows in the value is left out."""
        return self._left < 0

    def names(self, members: dict[str, Any]) -> list[str]:
        """Return the redacted names of the members, until the limit is reached."""
        found = []
        for name in members:
            if self.is_over:
                break
            found.append(self._text(name))
        return found

    def of(self, value: Any) -> Any:
        """Return a copy of the value with credentials redacted, up to the limit."""
        if isinstance(value, str):
            return self._text(value)
        self._left -= 2
        if isinstance(value, list):
            return self._items(value)
        return self._members(value) if isinstance(value, dict) else value

    def _text(self, text: str) -> str:
        shown = scrubbed_argument(text)
        self._left -= len(shown) + 3  # quotation marks, and a comma or colon
        return shown

    def _items(self, items: list[Any]) -> list[Any]:
        found, is_secret = list[Any](), False
        for item in items:
            if self.is_over:
                break
            found.append(REDACTED if is_secret else self.of(item))
            is_secret = isinstance(item, str) and _NAME_ITEM.fullmatch(item) is not None and may_be_secret_name(item)
        return found

    def _members(self, members: dict[str, Any]) -> dict[str, Any]:
        is_secret_pair = any(
            name.lower() in _NAMING and isinstance(value, str) and may_be_secret_name(value)
            for name, value in members.items()
        )
        found = dict[str, Any]()
        for name, value in members.items():
            if self.is_over:
                break
            is_secret = may_be_secret_name(name) or (is_secret_pair and name.lower() in _NAMED)
            found[self._text(name)] = REDACTED if is_secret else self.of(value)
        return found
