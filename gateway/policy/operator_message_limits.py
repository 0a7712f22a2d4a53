"""Limit messages to operators about items that servers list: one for each item, and not too many in a minute."""

from typing import Final

from cachetools import LRUCache, TTLCache

MOST_NAME: Final = 128
"""Maximum number of characters of an item's name in messages."""
_MOST_LOGGED: Final = 16_384
_MOST_IN_A_MINUTE: Final = 100
"""Maximum number of log lines, and of audit events, about the items of one server in a minute. The metric counts
all."""

Key = tuple[str, str, str]
"""The kind, the name, and the digest or form (hash) of an item."""


class LoggedItems:
    """Remember of which items of servers the log has spoken, so that each item is logged once, and a server with many
    items does not fill the log."""

    def __init__(self) -> None:
        # For each server, so that none hides what others list.
        self._logged: dict[str, LRUCache[Key, None]] = {}
        self._recent: dict[str, TTLCache[Key, None]] = {}

    def is_new(self, server: str, key: Key) -> bool:
        """Return True if this method was not called with this server and `key` before, as far as it remembers: the last
        `_MOST_LOGGED` keys of each server."""
        logged = self._logged.setdefault(server, LRUCache(_MOST_LOGGED))
        is_new = key not in logged
        logged[key] = None
        return is_new

    def has_room(self, server: str, key: Key) -> bool:
        """Return True if the caller may log a line about this item, because few lines about the server's items were
        logged in the last minute. The line then counts as logged."""
        recent = self._recent.setdefault(server, TTLCache(_MOST_IN_A_MINUTE, 60.0))
        has_room = len(recent) < _MOST_IN_A_MINUTE
        if has_room:
            recent[key] = None
        return has_room
