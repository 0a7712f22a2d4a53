"""Serve an ASGI app on Unix sockets that are opened and closed while the process runs."""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import uvicorn
from uvicorn.server import ServerState

from transports.inbound.connections import Connections
from transports.inbound.http_connection import HttpConnection
from transports.inbound.unauthenticated_limits import Limits, Refusals

PEER_PID: Final = "peer_pid"
"""Key in `scope["state"]` for the process id of the client. It is missing if the system does not report the id."""

OF_SOCKET: Final = "of_socket"
"""Key in `scope["state"]` for the value that was passed to `listen` for the socket on which the request came."""

_OF_ONE_SOCKET: Final = 64
"""Maximum number of connections to one socket. A child process needs one or a few, and its code is not trusted."""


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
    """Accept a connection only if a process of this user or of root has opened it; abort any other."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if (process := process_behind(transport.get_extra_info("socket"))) is None:
            return
        self.app_state[PEER_PID] = process[0]
        if not may_connect(process[1]):
            cast("asyncio.Transport", transport).abort()


class UnixAppServer:
    """Serve one ASGI app on many sockets. `scope["state"][OF_SOCKET]` tells the app on which socket a request came."""

    def __init__(self, app: Any, limits: Limits, refusals: Refusals) -> None:
        self._config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="off")
        self._connections = Connections(replace(limits, peer_connections=_OF_ONE_SOCKET), refusals)

    async def listen(self, path: str, of_socket: Any) -> Callable[[], None]:
        """Listen at `path`, which only this user may open. Each request gets `of_socket` in its state. Return a
        function that stops listening and ends every connection.

        Raises:
            OSError: the path cannot be used.
        """
        if not self._config.loaded:
            self._config.load()
        served = _Socket(path, of_socket, self._config, self._connections)
        served.server = await asyncio.get_running_loop().create_unix_server(served.protocol, path, start_serving=False)
        os.chmod(path, 0o600)
        await served.server.start_serving()
        return served.close


@dataclass(slots=True, eq=False)
class _Socket:
    """One listening socket. Most sockets never get a connection, so what serves connections is made for the first
    one."""

    path: str
    of_socket: Any
    config: uvicorn.Config
    connections: Connections
    server: asyncio.Server = field(init=False)
    served: ServerState | None = None

    def protocol(self) -> HttpConnection:
        served = self.served = self.served or ServerState()
        state, loop = {OF_SOCKET: self.of_socket}, asyncio.get_running_loop()
        return _OwnUsers(self.config, served, state, loop, connections=self.connections, place=self.path)

    def close(self) -> None:
        self.server.close()
        for connection in () if self.served is None else tuple(self.served.connections):
            connection.transport.abort()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
