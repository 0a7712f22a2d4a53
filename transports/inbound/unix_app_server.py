"""Serve an ASGI app on Unix sockets that are opened and closed while the process runs."""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

import uvicorn
from uvicorn.server import ServerState

from transports.inbound.connections import Connections
from transports.inbound.http_connection import HttpConnection
from transports.inbound.unauthenticated_limits import Limits, Refusals

PEER_PID: Final = "peer_pid"
"""Key of `scope["state"]`: the process id of the client, if the system reports it."""

_OF_ONE_SOCKET: Final = 64
"""The most connections to one socket: a child needs one or a few, and its code is not trusted."""


def process_behind(peer: socket.socket) -> tuple[int, int] | None:
    """Return the ids of the connected process and of its user. Return None if the system does not report them: only
    Linux does (unix(7), SO_PEERCRED)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid


def may_connect(uid: int) -> bool:
    """Return True if `uid` is this process's own user, or root. The mode of the socket's file is no sufficient check,
    because it can change."""
    return uid in (os.geteuid(), 0)


class _OwnUsers(HttpConnection):
    """Serve a connection only if a process of this user or of root has opened it; abort any other."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if (process := process_behind(transport.get_extra_info("socket"))) is None:
            return
        self.app_state[PEER_PID] = process[0]
        if not may_connect(process[1]):
            cast("asyncio.Transport", transport).abort()


class UnixAppServer:
    """Serve one ASGI app on many sockets. `scope["state"]` tells the app on which socket a request came."""

    def __init__(self, app: Any, limits: Limits, refusals: Refusals) -> None:
        self._config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="off")
        self._connections = Connections(replace(limits, peer_connections=_OF_ONE_SOCKET), refusals)

    def _protocols(self, path: str, state: Mapping[str, Any]) -> tuple[Callable[[], HttpConnection], ServerState]:
        if not self._config.loaded:
            self._config.load()
        config, server_state, loop = self._config, ServerState(), asyncio.get_running_loop()
        return (
            lambda: _OwnUsers(config, server_state, dict(state), loop, connections=self._connections, place=path),
            server_state,
        )

    async def listen(self, path: str, state: Mapping[str, Any]) -> Callable[[], None]:
        """Listen at `path`, which only this user may open. Return a function that stops this and ends every connection.

        Raises:
            OSError: the path cannot be used.
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
