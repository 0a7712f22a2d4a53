"""Hand a connection to the process that owns its session, if that is a sibling: a process on the same port.

A connection moves only between requests, when its socket is its whole state. docs/adr/0028-handed-over-connections.md
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

ANSWERED_BY: Final = "mcp.answered_by"
"""The key in the scope of a request that holds the name of the process to which it was forwarded."""

MOST_MOVES: Final = 3
"""The most moves of one connection: those of proxies carry requests of many sessions, and would move all the time."""

GIVEN: Final = "given"
KEPT: Final = "kept"
TAKEN: Final = "taken"
RETURNED: Final = "returned"
OUTCOMES: Final = (GIVEN, KEPT, TAKEN, RETURNED)
"""The outcomes for a connection: `given` to a sibling; `kept`, because it could not be sent; `taken` from a sibling;
`returned` to the sibling, because there is no room here, or this process drains."""


class Siblings(Protocol):
    """Reach the other processes that listen on the same port. Each has a number from 0 on, its place."""

    def place_of(self, owner: str) -> int | None:
        """Return the place of the process with that name; None if it is no sibling."""

    def give(self, descriptor: int, place: int, moves: int) -> bool:
        """Send a connected socket, which has moved so often, to a sibling. Return False if this process keeps it."""


class ConnectionHandover:
    """Choose the sibling to which one connection moves, and send it there. `moves` is how often it has moved."""

    __slots__ = ("_siblings", "moves")

    def __init__(self, siblings: Siblings, moves: int = 0) -> None:
        self._siblings = siblings
        self.moves = moves

    def place_for(self, scope: Mapping[str, Any]) -> int | None:
        """Return the place of the sibling that has answered this request and gets the connection; None if it stays."""
        owner = scope.get(ANSWERED_BY)
        return None if owner is None or self.moves >= MOST_MOVES else self._siblings.place_of(owner)

    def give(self, transport: asyncio.Transport, place: int) -> bool:
        """Send the socket of a connection between requests to a sibling. Return False if the connection stays.

        After True, the caller aborts the transport, which closes the descriptor here and sends nothing.
        """
        if transport.get_write_buffer_size() or transport.get_extra_info("sslcontext") is not None:
            return False  # the rest of the response, and the state of TLS, are in this process
        return self._siblings.give(transport.get_extra_info("socket").fileno(), place, self.moves + 1)
