"""Which apps of MCP Apps a session has open, so that what they ask reaches the server that they come from.

An app knows its server's own names: its HTML calls the tool `refresh`, never `a__refresh`. A request does not name the
app that it comes from, so the gateway goes by what the session has done (docs/adr/0022-apps.md). Pure.
"""

from collections.abc import Iterable
from typing import Final
from weakref import WeakKeyDictionary

from cachetools import LRUCache

from gateway.calls.live_session import LiveSession

__all__ = ["OpenApps"]

_MOST_APPS: Final = 64
"""Apps that are remembered of one session."""
_MOST_TOOLS: Final = 4_096
"""Tools with apps that are compared, of all servers together."""


class OpenApps:
    """Remembers the apps that sessions have opened.

    `contested` has the apps that several servers have under one URI, by server and tool. Such an app is opened by a
    call of its tool. Reading it opens none, because the request does not say which of them it means.
    """

    def __init__(self) -> None:
        self.contested: dict[tuple[str, str], str] = {}
        self._tools: dict[str, set[tuple[str, str]]] = {}  # servers and their tools, by the URI of the app
        self._known: set[tuple[str, str, str]] = set()
        self._called: WeakKeyDictionary[LiveSession, LRUCache[str, str]] = WeakKeyDictionary()
        self._opened: WeakKeyDictionary[LiveSession, set[str]] = WeakKeyDictionary()

    def listed(self, server: str, apps: Iterable[tuple[str, str]]) -> None:
        """Note that a server lists tools with apps. `apps`: the names of tools, and the URIs of their apps."""
        for tool, uri in apps:
            if (server, tool, uri) in self._known or len(self._known) >= _MOST_TOOLS:
                continue
            self._known.add((server, tool, uri))
            tools = self._tools.setdefault(uri, set())
            tools.add((server, tool))
            if len({name for name, _ in tools}) > 1:
                self.contested |= dict.fromkeys(tools, uri)

    def called(self, live: LiveSession | None, server: str, tool: str) -> None:
        """Note that the session calls a tool. Its host will show the result in the app of that server."""
        uri = self.contested.get((server, tool))
        if uri is not None and live is not None:
            self._called.setdefault(live, LRUCache(_MOST_APPS))[uri] = server
            self.opened(live, server)

    def server_of(self, live: LiveSession | None, uri: str) -> str:
        """Return the server whose tool with that app the session has called last; empty if none is remembered."""
        called = None if live is None else self._called.get(live)
        return "" if called is None else called.get(uri, "")

    def opened(self, live: LiveSession | None, server: str) -> None:
        """Note that the session reads an app that only this server has, or calls a tool whose result the app will
        show."""
        if live is not None:
            self._opened.setdefault(live, set()).add(server)

    def open_in(self, live: LiveSession | None) -> frozenset[str]:
        """Return the servers of which the session has opened apps."""
        return frozenset() if live is None else frozenset(self._opened.get(live, ()))
