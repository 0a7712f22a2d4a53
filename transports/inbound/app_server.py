"""An ASGI app on Unix sockets that come and go while the process runs."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import uvicorn
from uvicorn.server import ServerState

from transports.inbound.connections import Connections
from transports.inbound.http_connection import HttpConnection
from transports.inbound.limits import Limits, Refusals

__all__ = ["AppServer"]


_OF_ONE_SOCKET: Final = 64
"""Connections: a child has one or a few, and may be anybody's."""


class AppServer:
    """Serves one app on many sockets; `scope["state"]` tells the app on which."""

    def __init__(self, app: Any, limits: Limits, refusals: Refusals) -> None:
        self._config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="off")
        self._connections = Connections(replace(limits, peer_connections=_OF_ONE_SOCKET), refusals)

    def _protocols(self, path: str, state: Mapping[str, Any]) -> tuple[Callable[[], HttpConnection], ServerState]:
        if not self._config.loaded:
            self._config.load()
        config, server_state, loop = self._config, ServerState(), asyncio.get_running_loop()
        return (
            lambda: HttpConnection(config, server_state, dict(state), loop, connections=self._connections, place=path),
            server_state,
        )

    async def listen(self, path: str, state: Mapping[str, Any]) -> Callable[[], None]:
        """Listen at `path`, which only this user may open; what is returned ends it, cutting every connection.

        Raises:
            OSError: the path cannot be had.
        """
        loop = asyncio.get_running_loop()
        protocols, server_state = self._protocols(path, state)
        server = await loop.create_unix_server(protocols, path, start_serving=False)
        os.chmod(path, 0o600)
        await server.start_serving()

        def close() -> None:
            server.close()
            for connection in tuple(server_state.connections):
                connection.transport.abort()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

        return close
