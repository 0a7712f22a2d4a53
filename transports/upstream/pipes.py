"""One end of a pipe or socket on an event loop: reads a descriptor when it has data, or writes in the order of calls.

asyncio's own pipe transports are not used: opening them awaits, and closing them is finished a turn later, so a start
that is cancelled half-way could leak a descriptor. Here everything happens in the call. Knows neither lines nor
processes.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final

__all__ = ["Inbox", "Outbox"]

_CHUNK_BYTES: Final = (
    65_536  # what a pipe holds by default; one chunk per turn keeps a noisy child from starving others
)
_DRAIN_CHUNKS: Final = 256  # 16 MiB: the most a pipe's size can be set to is far less, unless somebody still writes


class Inbox:
    """Reads a descriptor, which it owns. Passes every chunk to `data`, and calls `end` once, at the end of the data."""

    __slots__ = ("_data", "_end", "_fd", "_loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, data: Callable[[bytes], None], end: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._data = data
        self._end = end
        os.set_blocking(fd, False)

    def start(self) -> None:
        """Read from now on."""
        self._loop.add_reader(self._fd, self._read)

    def drain(self) -> None:
        """Read what is available now, then close."""
        for _ in range(_DRAIN_CHUNKS):
            if self._fd < 0 or not self._read():
                break
        if self._fd >= 0:  # a process outside the child's family still holds the other end
            self.close()
            self._end()

    def close(self) -> None:
        """Stop reading; `end` is not called any more."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._loop.remove_reader(fd)
            os.close(fd)

    def _read(self) -> bool:
        if self._fd < 0:  # closed in the turn in which it became readable
            return False
        try:
            data = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # ECONNRESET of a socket: an end like any other
            data = b""
        if data:
            self._data(data)
        else:
            self.close()
            self._end()
        return bool(data)


class Outbox:
    """Writes a descriptor, which it closes if `owns`. What the descriptor does not take at once is written later."""

    __slots__ = ("_fd", "_finishing", "_loop", "_owns", "pending")

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, *, owns: bool = True) -> None:
        self._loop = loop
        self._fd = fd
        self._owns = owns
        self.pending = bytearray()
        """Bytes not yet taken by the reader."""
        self._finishing = False
        os.set_blocking(fd, False)

    def write(self, data: bytes) -> bool:
        """Write or keep all of the data. False, and nothing is written, after `finish` or if the reader is gone."""
        if self._fd < 0 or self._finishing:
            return False
        taken = 0
        if not self.pending:
            try:
                taken = os.write(self._fd, data)
            except BlockingIOError:
                pass
            except OSError:  # EPIPE
                self.close()
                return False
            if taken == len(data):
                return True
            self._loop.add_writer(self._fd, self._flush)
        self.pending += memoryview(data)[taken:]
        return True

    def finish(self) -> None:
        """Close when everything that was written has been read."""
        self._finishing = True
        if not self.pending:
            self.close()

    def close(self) -> None:
        """Close now; what has not been taken is lost."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._loop.remove_writer(fd)
            self.pending = bytearray()
            if self._owns:
                os.close(fd)

    def _flush(self) -> None:
        if self._fd < 0:
            return
        try:
            del self.pending[: os.write(self._fd, self.pending)]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not self.pending:
            self._loop.remove_writer(self._fd)
            if self._finishing:
                self.close()
