"""Keep the lists of tools, prompts and resources that one conversation has received from its server."""

from collections.abc import Callable
from typing import Any, Final

from gateway.protocol.merged_lists import Names, Tools
from gateway.protocol.methods import lists_of
from transports.jsonrpc import encode

Listed = Tools | Names


_LATE_BYTES: Final = 1 << 20
"""Maximum bytes of a list that is kept although it came too late for its own answer."""


class Lists:
    """The lists that a conversation has received from its server, each by the method that requests it. A server may
    send each session a different list. `on_change` is called when a list becomes different or unknown."""

    __slots__ = ("_on_change", "announced", "asked_at", "changed", "known", "late", "passed")

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.known: dict[str, Listed] = {}
        """The complete lists."""
        self.changed: set[str] = set()
        """The methods of lists that are out of date, and that were not requested again since."""
        self.asked_at: dict[str, float] = {}
        self.late: dict[str, list[dict[str, Any]]] = {}
        """The items of lists that came too late for the answer that needed them."""
        self.announced: set[str] = set()
        """The kinds of lists (such as tools) of which the server has ever notified a change."""
        self.passed: dict[str, Names] = {}
        """The names in the pages that clients have requested, perhaps not of the whole list."""

    def keep(self, method: str, found: Listed) -> None:
        """Store a complete list from the server."""
        if self.known.get(method) is not found:
            self.known[method] = found
            self._on_change()

    def list_requested(self, method: str) -> None:
        """Record that a list is being requested. The answer is valid unless the server notifies of a change after this
        call."""
        if method in self.changed:
            self.changed.discard(method)
            self._on_change()

    def process_ended(self) -> None:
        """Drop the list of tools: the server's next process may be another program."""
        if self.known.pop("tools/list", None) is not None:
            self.asked_at.pop("tools/list", None)
            self.changed.add("tools/list")
            self._on_change()

    def keep_late(self, method: str, items: list[dict[str, Any]]) -> None:
        """Keep the items of a list that came too late for the answer that needed it. Later answers use them while the
        server is slow. Drop them if they are larger than `_LATE_BYTES`."""
        if len(encode(items)) <= _LATE_BYTES:
            self.late[method] = items
        else:
            self.late.pop(method, None)

    def forget(self, kind: str) -> None:
        """Drop the lists of a kind (tools, prompts, resources), because the server has notified of a change. Do nothing
        if they are dropped already, because a shared server notifies each of its sessions of the same change."""
        names, stores = [row.name for row in lists_of(kind)], (self.known, self.late, self.passed, self.asked_at)
        has_any = any(name in store for store in stores for name in names)
        if kind in self.announced and self.changed.issuperset(names) and not has_any:
            return
        self.announced.add(kind)
        self._on_change()
        self.changed.update(names)
        for name in names:
            for store in stores:
                store.pop(name, None)
