"""Whether a connection is handed to the process that owns its session, a sibling that listens on the same port.

A connection moves only between requests: then its socket is all of it. docs/adr/0028-handed-over-connections.md
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

__all__ = ["ANSWERED_BY", "GIVEN", "KEPT", "MOST_MOVES", "OUTCOMES", "RETURNED", "TAKEN", "HandOver", "Siblings"]

ANSWERED_BY: Final = "mcp.answered_by"
"""Where the scope of a request has the name of the process that it was forwarded to."""

MOST_MOVES: Final = 3
"""How often one connection moves: those of proxies carry requests of many sessions, and would move all the time."""

GIVEN: Final = "given"
KEPT: Final = "kept"
TAKEN: Final = "taken"
RETURNED: Final = "returned"
OUTCOMES: Final = (GIVEN, KEPT, TAKEN, RETURNED)
"""What becomes of connections. `given` to a sibling; `kept`, because it could not be sent; `taken` from a sibling;
`returned` to it, because there is no room here, or this process drains."""


class Siblings(Protocol):
    """The other processes that listen on the same port, by their places from 0."""

    def place_of(self, owner: str) -> int | None:
        """Return the place of the sibling with that name; None: it is none."""

    def give(self, descriptor: int, place: int, moves: int) -> bool:
        """Send a sibling a connected socket that has moved so often. False: this process keeps it."""


class HandOver:
    """What one connection knows of its moves."""

    __slots__ = ("_siblings", "moves")

    def __init__(self, siblings: Siblings, moves: int = 0) -> None:
        self._siblings = siblings
        self.moves = moves

    def place_for(self, scope: Mapping[str, Any]) -> int | None:
        """Return the sibling that has answered this request and may have its connection; None: the connection stays."""
        owner = scope.get(ANSWERED_BY)
        return None if owner is None or self.moves >= MOST_MOVES else self._siblings.place_of(owner)

    def give(self, transport: asyncio.Transport, place: int) -> bool:
        """Send the socket of a connection that is between requests. False: the connection stays.

        If it is True, the caller aborts the transport, which closes the descriptor here and sends nothing.
        """
        if transport.get_write_buffer_size() or transport.get_extra_info("sslcontext") is not None:
            return False  # the rest of the response, and the state of TLS, are in this process
        return self._siblings.give(transport.get_extra_info("socket").fileno(), place, self.moves + 1)
