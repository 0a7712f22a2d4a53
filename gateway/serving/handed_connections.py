"""Serves the connections that sibling workers hand to this one, as those that its listener accepts."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import uvicorn

from gateway.serving.sibling_workers import Received, SiblingWorkers
from transports.inbound.connections import Connections
from transports.inbound.hand_over import MOST_MOVES, TAKEN
from transports.tasks import Tasks

__all__ = ["HandedConnections"]

logger = logging.getLogger(__name__)


class HandedConnections:
    """Receives connections. One for which there is no room here, or not while `may_serve` is False, goes back to the
    worker that sent it, and stays there."""

    def __init__(self, siblings: SiblingWorkers, connections: Connections, may_serve: Callable[[], bool]) -> None:
        self._siblings = siblings
        self._connections = connections
        self._may_serve = may_serve
        self._tasks = Tasks("handed connections")
        self._server: uvicorn.Server | None = None

    def start(self, server: uvicorn.Server, replica: str) -> None:
        """Receive connections for a server that has started, as that replica."""
        self._server = server
        self._siblings.join(replica)
        self._wait()

    def stop(self) -> None:
        """Receive nothing any more."""
        self._server = None
        asyncio.get_running_loop().remove_reader(self._siblings.inbox)

    def _wait(self) -> None:
        if self._server is not None:
            asyncio.get_running_loop().add_reader(self._siblings.inbox, self._arrived)

    def _arrived(self) -> None:
        # One after the other: each is counted before the next one is looked at.
        asyncio.get_running_loop().remove_reader(self._siblings.inbox)
        self._tasks.spawn(self._receive())

    async def _receive(self) -> None:
        try:
            while self._server is not None and (received := self._siblings.receive()) is not None:
                await self._take(received, self._server)
        finally:
            self._wait()

    async def _take(self, received: Received, server: uvicorn.Server) -> None:
        connection, moves = received.connection, received.moves
        try:
            peer = connection.getpeername()[0]
        except OSError:  # the client has gone meanwhile
            connection.close()
            return
        has_room = self._may_serve() and self._connections.has_room(peer)
        # One that comes back is accepted or refused as any other.
        if not has_room and moves <= MOST_MOVES and self._siblings.give_back(received, MOST_MOVES + 1):
            return
        self._siblings.counts[TAKEN] += 1
        loop, config = asyncio.get_running_loop(), server.config
        made: Any = config.http_protocol_class  # a factory (`http_connections`)
        connection.setblocking(False)
        try:
            await loop.connect_accepted_socket(
                lambda: made(
                    config=config,
                    server_state=server.server_state,
                    app_state=server.lifespan.state,
                    _loop=loop,
                    moves=moves,
                ),
                connection,
            )
        except OSError:
            logger.debug("a connection from another worker failed", exc_info=True)
            connection.close()
