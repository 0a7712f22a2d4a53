"""Write output from a thread with a bounded queue, so that a reader that stops blocks only this thread.

Stderr is a pipe or a terminal, and its reader may stop (Ctrl-S, `| less`, a log collector that hangs). Lines then wait
in the queue. If the queue is full, further lines are dropped and counted. When the reader has caught up, one log line
says how many were dropped.
"""

import atexit
import contextlib
import io
import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 1 << 20
"""The maximum size in bytes of the queue for stderr: some thousands of lines."""

EXIT_WITHIN_S: Final = 1.0
"""The maximum time in seconds that the exit of the process waits for the reader of stderr."""


class OutputQueue:
    """Pass pieces of output to `write`, in order, in a daemon thread that the first piece starts.

    `write` may block. If it raises `OSError`, the piece is lost. After each piece, the thread calls `written` with the
    piece, the error or None, and True if the queue is now empty.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        most_bytes: int,
        written: Callable[[bytes, OSError | None, bool], None],
    ) -> None:
        self._write = write
        self._most_bytes = most_bytes
        self._written = written
        self._waiting: deque[bytes] = deque()
        self._bytes = 0  # of those that wait and the one that is being written
        # Reentrant: a handler of a signal may log while the thread it interrupts does.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None

    def offer(self, piece: bytes) -> bool:
        """Queue the piece and return True, or return False if there is no room. An empty queue accepts any size."""
        with self._changed:
            if not self._has_room(piece):
                return False
            self._put(piece)
            return True

    def put(self, piece: bytes) -> None:
        """Queue the piece, and block until there is room. Never call this in an event loop."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(piece))
            self._put(piece)

    def _has_room(self, piece: bytes) -> bool:
        return not self._bytes or self._bytes + len(piece) <= self._most_bytes

    def _put(self, piece: bytes) -> None:
        self._waiting.append(piece)
        self._bytes += len(piece)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="output", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def drain(self, within_s: float) -> bool:
        """Wait until the queue is empty, and return True; or return False after `within_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes, within_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                piece = self._waiting.popleft()
            failure: OSError | None = None
            try:
                self._write(piece)
            except OSError as error:
                failure = error
            with self._changed:
                self._bytes -= len(piece)
                is_last = not self._bytes
            self._written(piece, failure, is_last)
            with self._changed:
                self._changed.notify_all()


class QueuedStderr(io.RawIOBase):
    """A stream that writes to a file descriptor through a queue, and never blocks.

    `dropped`: the number of lines that were dropped, because the queue was full or writing failed. `queue`: that queue;
    lines that must not be dropped are put into it directly.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.dropped = 0
        self._untold = 0
        self._skips = False
        self._lock = threading.RLock()
        self._descriptor = descriptor
        self.queue = OutputQueue(self._write_all, MOST_BYTES, self._written)

    def write(self, data: "ReadableBuffer", /) -> int:
        """Queue lines, or drop them if there is no room. After a drop, drop all further lines until the queue is empty,
        so that there is only one gap. Return the size of `data`."""
        lines = bytes(data)
        with self._lock:
            if self._skips or not self.queue.offer(lines):
                self._skips = True
                self._drop(lines)
        return len(lines)

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def _drop(self, lines: bytes) -> None:
        count = max(1, lines.count(b"\n"))
        self.dropped += count
        self._untold += count

    def _write_all(self, lines: bytes) -> None:
        while lines:
            try:
                lines = lines[os.write(self._descriptor, lines) :]
            except BlockingIOError:  # somebody who shares the pipe or terminal has made it so
                select.select([], [self._descriptor], [])

    def _written(self, lines: bytes, failure: OSError | None, is_last: bool) -> None:
        with self._lock:
            if failure is not None:
                self._drop(lines)
            if not is_last:
                return
            self._skips = False
            # If writing fails, do not log it here: that line could not be written either, and so on.
            untold = self._untold if failure is None else 0
            self._untold -= untold
        if untold:
            logger.error("%d lines of the log were dropped: they were not read", untold)


def queue_stderr() -> None:
    """Replace `sys.stderr` with a queued stream, so that writing to it never waits for whoever reads it. When the
    process exits, it waits up to `EXIT_WITHIN_S` seconds until the queue is written. Does nothing if called again, or
    if `sys.stderr` is not a file."""
    stream = sys.stderr
    if isinstance(stream.buffer, QueuedStderr):
        return
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
        queued = QueuedStderr(stream.fileno())
        # As Python's own: a line goes on as soon as it ends, and nothing that is written raises for its characters.
        sys.stderr = io.TextIOWrapper(queued, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
        atexit.register(drain_stderr)


def put_on_stderr(lines: str) -> None:
    """Write lines to stderr that must not be dropped. Blocks while the queue is full, so never call it in an event
    loop."""
    queued = getattr(sys.stderr, "buffer", None)
    if isinstance(queued, QueuedStderr):
        queued.queue.put(lines.encode("utf-8", "backslashreplace"))
    else:
        sys.stderr.write(lines)
        sys.stderr.flush()


def drain_stderr() -> None:
    """Wait until all queued output is written to stderr, for at most `EXIT_WITHIN_S` seconds."""
    queued = getattr(sys.stderr, "buffer", None)
    if isinstance(queued, QueuedStderr):
        for handler in logging.getLogger().handlers:
            handler.flush()  # the handler of `gateway.observability.logs` buffers lines
        queued.queue.drain(EXIT_WITHIN_S)


def dropped_lines() -> int:
    """Return how many lines for stderr this process has dropped since its start."""
    queued = getattr(sys.stderr, "buffer", None)
    return queued.dropped if isinstance(queued, QueuedStderr) else 0
