"""Record which MCP Apps a session has opened, so that requests of the apps reach the right server.

An app uses its server's own names: it calls the tool `refresh`, not `a__refresh`. A request does not say which app
sends it, so the gateway decides by the session's earlier requests (docs/adr/0022-apps.md). Pure.
"""

from collections.abc import Iterable
from typing import Final
from weakref import WeakKeyDictionary

from cachetools import LRUCache

from gateway.calls.live_session import LiveSession

_MOST_APPS: Final = 64
"""Maximum number of apps that are recorded for one session."""
_MOST_TOOLS: Final = 4_096
"""Maximum number of tools with apps that are compared, over all servers."""


class OpenApps:
    """Record the apps that sessions have opened.

    `contested` has the apps whose URI several servers use, by server and tool. Such an app counts as opened when its
    tool is called. Reading its URI does not count, because the request does not say which server's app it means.
    """

    def __init__(self) -> None:
        self.contested: dict[tuple[str, str], str] = {}
        self._tools: dict[str, set[tuple[str, str]]] = {}  # servers and their tools, by the URI of the app
        self._known: set[tuple[str, str, str]] = set()
        self._called: WeakKeyDictionary[LiveSession, LRUCache[str, str]] = WeakKeyDictionary()
        self._opened: WeakKeyDictionary[LiveSession, set[str]] = WeakKeyDictionary()

    def listed(self, server: str, apps: Iterable[tuple[str, str]]) -> None:
        """Record that a server lists tools with apps: pairs of a tool's name and the URI of its app."""
        for tool, uri in apps:
            if (server, tool, uri) in self._known or len(self._known) >= _MOST_TOOLS:
                continue
            self._known.add((server, tool, uri))
            tools = self._tools.setdefault(uri, set())
            tools.add((server, tool))
            if len({name for name, _ in tools}) > 1:
                self.contested |= dict.fromkeys(tools, uri)

    def called(self, live: LiveSession | None, server: str, tool: str) -> None:
        """Record a tool call, if several servers use the URI of the tool's app. The host will show the result in the
        app."""
        uri = self.contested.get((server, tool))
        if uri is not None and live is not None:
            self._called.setdefault(live, LRUCache(_MOST_APPS))[uri] = server
            self.opened(live, server)

    def server_of(self, live: LiveSession | None, uri: str) -> str:
        """Return the server of the session's last call of a tool with that app; empty if no such call is recorded."""
        called = None if live is None else self._called.get(live)
        return "" if called is None else called.get(uri, "")

    def opened(self, live: LiveSession | None, server: str) -> None:
        """Record that the session has opened an app of this server."""
        if live is not None:
            self._opened.setdefault(live, set()).add(server)

    def open_in(self, live: LiveSession | None) -> frozenset[str]:
        """Return the servers whose apps the session has opened."""
        return frozenset() if live is None else frozenset(self._opened.get(live, ()))
