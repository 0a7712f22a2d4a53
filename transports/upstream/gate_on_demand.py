"""The gate of a server, opened when the first call is announced. For `fork_server.py`.

Most servers announce no call while they start, and many never do. A gate takes a thread and half a megabyte, so until
then the reaper itself watches the listener of the filter. The server's calls wait meanwhile.
"""

import select
import socket
from collections.abc import Callable, Container
from typing import Final

from transports.upstream.walls.gate import Gate
from transports.upstream.walls.spec import Walls

__all__ = ["GateOnDemand"]

_LAST_REFUSALS_S: Final = 1.0


class GateOnDemand:
    """The gate of a server. `walls` returns those that it is behind. `channel` leads to the gateway: at most one
    descriptor. Without one nobody hears what is refused, or resolves names. `poller` is the reaper's, `last` as for
    `Gate`. Owns the channel and the listener."""

    def __init__(
        self,
        walls: Callable[[], Walls],
        channel: list[int],
        poller: select.poll,
        last: Callable[[], tuple[str, str, str] | None] | None = None,
    ) -> None:
        self.listener: int | None = None
        """The descriptor that is watched while the gate is closed: if it is ready, call `look`."""
        self._walls = walls
        self._channel = channel
        self._poller = poller
        self._last = last
        self._unopened: int | None = None  # the listener
        self._gate: Gate | None = None

    def watch(self, listener: int) -> None:
        """Take the listener of the server's filter."""
        self.listener = self._unopened = listener
        self._poller.register(listener, select.POLLIN)

    def look(self, event: int) -> None:
        """Open the gate if a call waits for it. Else no process with the filter is left."""
        if event & select.POLLIN:
            self._open()
        else:
            self._unwatch()

    def has_failed(self, ready: Container[int]) -> bool:
        """Whether the gate answers no more: then the server must be ended. `ready` is what the poller has found."""
        return self._gate is not None and self._gate.failed in ready

    def refuse(self, kind: str, what: str, why: str) -> None:
        """Tell what the reaper itself refuses."""
        self._open()
        if self._gate is not None:
            self._gate.refuse(kind, what, why)

    def finish(self) -> None:
        """Wait until the last refusals have been sent. Called once every process with the filter has ended."""
        if self._last is not None and self._last() is not None:
            self._open()
        if self._gate is not None:
            self._gate.finish(_LAST_REFUSALS_S)

    def _open(self) -> None:
        self._unwatch()
        if self._unopened is None:
            return
        if self._channel:
            channel = socket.socket(fileno=self._channel.pop())
        else:
            channel, nobody = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            nobody.close()
        self._gate = Gate(self._unopened, self._walls(), channel, self._last)
        self._unopened = None
        self._poller.register(self._gate.failed, select.POLLIN)
        self._gate.start()

    def _unwatch(self) -> None:
        if self.listener is not None:
            self._poller.unregister(self.listener)
            self.listener = None
