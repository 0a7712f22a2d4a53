"""Hand a client's connection to the gateway process that owns its session, if that process listens on the same port (a
*sibling*). A connection moves only between requests, when nothing but its socket has to move.
docs/adr/0028-handed-over-connections.md"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

ANSWERED_BY: Final = "mcp.answered_by"
"""The key in the ASGI scope of a request that holds the name of the process to which the request was forwarded."""

MOST_MOVES: Final = 3
"""How often one connection may move. A proxy's connection carries requests of many sessions: without a limit, it would
move all the time."""

GIVEN: Final = "given"
KEPT: Final = "kept"
TAKEN: Final = "taken"
RETURNED: Final = "returned"
OUTCOMES: Final = (GIVEN, KEPT, TAKEN, RETURNED)
"""The outcomes for a connection, for metrics: `given` to a sibling; `kept`, because it could not be sent; `taken` from
a sibling; `returned` to that sibling, because this process has no room or is shutting down."""


class Siblings(Protocol):
    """Send connections to the other processes that listen on the same port. Each process has a number, its place, from
    0 on."""

    def place_of(self, owner: str) -> int | None:
        """Return the place of the process named `owner`; None if that process is no sibling."""

    def give(self, descriptor: int, place: int, moves: int) -> bool:
        """Send the connected socket `descriptor` to the sibling at `place`. `moves` counts the moves of the connection,
        including this one. Return False if the socket was not sent."""


class ConnectionHandover:
    """Choose the sibling to which one connection moves, and send it there. `moves` counts its moves so far."""

    __slots__ = ("_siblings", "moves")

    def __init__(self, siblings: Siblings, moves: int = 0) -> None:
        self._siblings = siblings
        self.moves = moves

    def place_for(self, scope: Mapping[str, Any]) -> int | None:
        """Return the place of the sibling that has answered the request in `scope`: the connection should move there.
        Return None if it should stay."""
        owner = scope.get(ANSWERED_BY)
        return None if owner is None or self.moves >= MOST_MOVES else self._siblings.place_of(owner)

    def give(self, transport: asyncio.Transport, place: int) -> bool:
        """Send the socket of an idle connection to the sibling at `place`. Return False if the connection stays here.
        After True, the caller aborts the transport, which closes the descriptor here and sends nothing."""
        if transport.get_write_buffer_size() or transport.get_extra_info("sslcontext") is not None:
            return False  # the rest of the response, and the state of TLS, are in this process
        return self._siblings.give(transport.get_extra_info("socket").fileno(), place, self.moves + 1)
