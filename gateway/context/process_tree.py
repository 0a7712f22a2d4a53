"""The processes of one server: those below its reaper, as the kernel tells them (proc(5))."""

import asyncio
from typing import Final

from transports.upstream.process_tree import parent

__all__ = ["ProcessTree"]

_START_S: Final = 10.0
"""How long a process is waited for that has connected before its start was reported."""

_MOST_LEVELS: Final = 256


class ProcessTree:
    """Of a server that is about to start. Whatever the server starts has its reaper as an ancestor, also what has left
    its parent: the reaper adopts it."""

    def __init__(self) -> None:
        self._top: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def started(self, pid: int | None) -> None:
        """The server has that process id. None: it may hand its work to processes that are not below it, as a client
        of a container engine does."""
        if not self._top.done():
            self._top.set_result(None if pid is None else parent(pid) or 0)

    async def has(self, pid: int) -> bool:
        """Whether a process is the server's, or its reaper, which connects in the name of a walled server. True for all
        if the server's processes are not known."""
        try:
            top = await asyncio.wait_for(asyncio.shield(self._top), _START_S)
        except TimeoutError:
            return False
        if top is None:
            return True
        for _ in range(_MOST_LEVELS):
            if pid <= 1 or top <= 1:
                return False
            if pid == top:
                return True
            pid = parent(pid) or 0
        return False
