"""Protect the process against a lack of epoll watches: uvloop would end it if the kernel refuses a watch.

The kernel counts these watches by user, and a sandboxed server of the same user can use up all of them. So the loop
here reserves a watch before uvloop needs it. If the kernel has none left, only the new connection is closed.
"""

import contextlib
import errno
import logging
import os
import select
import time
from typing import Any, Final, Self

import uvloop

logger = logging.getLogger(__name__)

_TOLD_EVERY_S: Final = 10.0
_EPOLL: Final = "anon_inode:[eventpoll]"


class GuardedLoop(uvloop.Loop):
    """An event loop that survives a lack of epoll watches. For Linux only."""

    def __new__(cls) -> Self:
        """Return a new loop. It keeps a duplicate of its epoll descriptor, in which `reserve` reserves watches."""
        before = _epolls()
        loop = super().__new__(cls)
        loop._own = [select.epoll.fromfd(os.dup(fd)) for fd in _epolls() - before]
        return loop

    def __init__(self) -> None:
        super().__init__()
        self._own: list[select.epoll]
        self._probe = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._told_at = -_TOLD_EVERY_S

    def reserve(self, fd: int) -> bool:
        """Reserve an epoll watch for the new connection with the descriptor `fd`, so that uvloop gets it later. Return
        False if the kernel has no watch left; the caller then has to close the connection."""
        try:
            for own in self._own:
                with contextlib.suppress(FileExistsError):
                    own.register(fd, select.EPOLLIN)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            if time.monotonic() - self._told_at >= _TOLD_EVERY_S:
                self._told_at = time.monotonic()
                logger.error(
                    "connections are dropped: the kernel has no more watches of epoll for this user, and a server of "
                    "the same user may hold them all; end its session, or raise fs.epoll.max_user_watches"
                )
            return False
        return True

    async def create_connection(self, *given: Any, **named: Any) -> Any:
        """Open a connection as asyncio does. Raises `OSError` (ENOSPC) if the kernel has no epoll watch left for it."""
        if not self.reserve(self._probe):
            raise OSError(errno.ENOSPC, "no more watches of epoll for this user (fs.epoll.max_user_watches)")
        for own in self._own:
            own.unregister(self._probe)
        return await super().create_connection(*given, **named)

    def close(self) -> None:
        """Close the loop, the duplicate of its epoll descriptor, and the descriptor by which `create_connection` finds
        out whether a watch is free."""
        super().close()
        while self._own:
            self._own.pop().close()
            if not self._own:
                os.close(self._probe)


def _epolls() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            if os.readlink(f"/proc/self/fd/{name}") == _EPOLL:
                found.add(int(name))
    return found
