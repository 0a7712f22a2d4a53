"""Run a child process on an event loop: read and write its lines. Its reaper (`fork_server.py`) reports its end.

Knows nothing of MCP. Works on asyncio's own loop and on uvloop.
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Protocol

from transports.upstream.line_splitter import LineSplitter, StderrTail
from transports.upstream.walls.wall_specification import Walls

_CHUNK_BYTES: Final = 65_536
"""The most bytes of one read: the default size of a pipe. One read in each turn of the event loop keeps a noisy child
from delaying others."""
_LINES_AT_ONCE: Final = 128
"""Maximum number of lines of a chunk that are handled in one turn of the event loop: tens of thousands of short lines
would take half a second."""
_DRAIN_CHUNKS: Final = 256  # 16 MiB: more than a pipe can hold, unless somebody still writes


class Inbox:
    """Read a descriptor, and own it. `data` is called with every chunk; `end` is called once, at the end of the data.

    asyncio's own pipe transports are not used: they open asynchronously, and close one turn of the event loop later. So
    a start that is cancelled could leak a descriptor. This class opens and closes synchronously."""

    __slots__ = ("_data", "_end", "_fd", "_loop", "_rest")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, data: Callable[[bytes], None], end: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._data = data
        self._end = end
        self._rest = b""  # of the last chunk; nothing is read while there is one
        os.set_blocking(fd, False)

    def start(self) -> None:
        self._loop.add_reader(self._fd, self._read)

    def drain(self, drained: Callable[[], None], chunks: int = _DRAIN_CHUNKS) -> None:
        """Read the bytes that are available now, at most `chunks` chunks, a few lines in each turn of the event loop.
        Then close the descriptor, and call `end` and `drained`."""
        if self._rest:
            self._loop.call_soon(self.drain, drained, chunks)
        elif chunks and self._read():
            self._loop.call_soon(self.drain, drained, chunks - 1)
        else:
            if self._fd >= 0:  # a process outside the child's family still holds the other end
                self.close()
                self._end()
            drained()

    def close(self) -> None:
        """Stop reading, and close the descriptor without calling `end`."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._rest = b""
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
        if len(data) > _LINES_AT_ONCE:
            data = self._part(data)
        if data:
            self._data(data)
            return True
        self.close()
        self._end()
        return False

    def _part(self, data: bytes) -> bytes:
        """Return the beginning of a chunk, with at most `_LINES_AT_ONCE` lines. The rest is handled in the next turn of
        the event loop."""
        size = len(data)
        while data.count(b"\n", 0, size) > _LINES_AT_ONCE:
            size //= 2
        had_rest, self._rest = bool(self._rest), data[size:]
        if self._rest:
            if not had_rest:
                self._loop.remove_reader(self._fd)
            self._loop.call_soon(self._read_rest)
        elif had_rest:
            self.start()
        return data[:size]

    def _read_rest(self) -> None:
        if self._rest and self._fd >= 0:
            self._data(self._part(self._rest))


class PipeWriter:
    """Write to a descriptor without waiting. Bytes that do not fit into the pipe are written later. `owns`: the
    descriptor is closed at the end."""

    __slots__ = ("_fd", "_finishing", "_loop", "_owns", "pending", "taken_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, *, owns: bool = True) -> None:
        self._loop = loop
        self._fd = fd
        self._owns = owns
        self.pending = bytearray()
        """Bytes that do not fit into the pipe yet."""
        self.taken_at = 0.0
        """While bytes are pending: when the reader has last taken some, by the monotonic clock."""
        self._finishing = False
        os.set_blocking(fd, False)

    def write(self, data: bytes) -> bool:
        """Write all of the data, or buffer what does not fit. Return False and write nothing after `finish`, or if the
        reader is gone."""
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
            self.taken_at = monotonic()
        self.pending += memoryview(data)[taken:]
        return True

    def finish(self) -> None:
        """Close the descriptor once all buffered bytes are written."""
        self._finishing = True
        if not self.pending:
            self.close()

    def close(self) -> None:
        """Close the descriptor now. Buffered bytes are lost."""
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
            self.taken_at = monotonic()
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not self.pending:
            self._loop.remove_writer(self._fd)
            if self._finishing:
                self.close()


logger = logging.getLogger(__name__)

REAPER_LOST: Final = "its reaper was killed"
_SILENT_GRACE_S: Final = 2.0
"""Seconds after which a server that has closed its stdout is killed, unless it exits: it cannot answer any more."""
KILL_TIMEOUT_S: Final = 5.0
"""Seconds in which a killed process must end. It ends at once, unless the kernel holds it (uninterruptible sleep)."""


_INSTALL: Final = {
    **dict.fromkeys(("uv", "uvx"), "install uv, for example by `pip install uv` (https://docs.astral.sh/uv)"),
    **dict.fromkeys(("npm", "npx"), "install Node.js, which it comes with (https://nodejs.org)"),
}


class ProcessFailed(Exception):
    """A command could not be started. The message says why. `command` is its first word, the program. If the program
    `is_missing` and is a known one, the message also says how to install it."""

    def __init__(self, reason: str, command: str, *, is_missing: bool = False) -> None:
        do = _INSTALL.get(command) if is_missing else None
        super().__init__(f"{reason}; {do}" if do else reason)


class LineSink(Protocol):
    """Receives the output of a child process. Called on the event loop, one call at a time."""

    def line(self, line: bytes) -> None:
        """Handle one line of stdout, without its line end."""

    def oversized(self, head: bytes, tail: bytes) -> None:
        """Handle a line that was longer than the limit: its first and last 512 bytes. The rest is lost."""

    def exited(self, code: int | None) -> None:
        """Handle the end of the child and of all its descendants. `code` is the exit code, or minus the signal's
        number; None if the reaper was killed. Called exactly once, after the last line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to start."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)  # it may hold secrets
    """The whole environment. Its PATH is searched for the program."""
    cwd: str | None = None
    """The working directory; None: that of the fork server."""
    walls: Walls | None = None
    """The sandbox around the process; None: it has none."""


class Process:
    """A running child process, made by `ForkServer.spawn`. `stdin` accepts whole lines."""

    def __init__(
        self,
        sink: LineSink,
        *,
        control: socket.socket,
        stdio: list[int],
        max_line_bytes: int,
        receive_stderr: Callable[[bytes], None] | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.pid = 0
        self.lacks = ""
        """The reason why the child has no namespaces or mounts of its own; empty if it has them or needs none."""
        self.prepared = False
        """True if the start, successful or not, used walls (sandbox restrictions) that were prepared before
        (`prepared_walls.py`)."""
        self.returncode: int | None = None
        self.why_ended = ""
        """The reason, if known, for which the kernel ended the child: a sentence without its end."""
        self.started: asyncio.Future[str] = loop.create_future()
        """A future that is set when the child runs (to an empty text), or could not be started (to the reason)."""
        self._loop = loop
        self._sink = sink
        self._done: asyncio.Future[None] = loop.create_future()
        lines = LineSplitter(sink.line, sink.oversized, max_bytes=max_line_bytes)
        self._lines = lines
        self._tail = StderrTail(receive_stderr)
        control_fd = control.detach()
        self._orders = PipeWriter(loop, control_fd, owns=False)
        self._reports = Inbox(
            loop, control_fd, LineSplitter(self._report, lambda *_: None, max_bytes=65_536).feed, self._exited
        )
        stdin, stdout, stderr = stdio
        self.stdin = PipeWriter(loop, stdin)
        self._stdout = Inbox(loop, stdout, lines.feed, self._stdout_closed)
        self._stderr = Inbox(loop, stderr, self._tail.feed, self._tail.end)
        self._silence_timer: asyncio.TimerHandle | None = None
        self._listening = False
        self._ended_early: tuple[int | None, str] | None = None
        self._is_ending = False  # its last output is being read
        self._reports.start()

    def listen(self) -> None:
        """Start to pass the output and the end of the child to the sink. Called once the process is registered."""
        self._listening = True
        self._stdout.start()
        self._stderr.start()
        if self._ended_early is not None:
            self._loop.call_soon(self._end, *self._ended_early)

    def order(self, data: bytes) -> None:
        """Send a command to the child's reaper (its supervising process), unless the reaper has ended."""
        self._orders.write(data)

    def stderr_tail(self) -> list[str]:
        """Return the last lines the child wrote to stderr."""
        return self._tail.text()

    async def wait(self) -> int | None:
        """Wait until the child and all its descendants have ended. Return the exit code, or minus the signal's number;
        None if it is unknown, as when the reaper was killed."""
        await asyncio.shield(self._done)
        return self.returncode

    async def shutdown(self, *, grace_s: float) -> int | None:
        """End the child as MCP's stdio lifecycle requires: close stdin, wait, SIGTERM, wait, SIGKILL. Takes at most `2
        * grace_s` and 5 seconds. Return what `wait` returns; None also if the child has not ended. May be called again
        and concurrently. If cancelled, kill the child at once."""
        self.stdin.finish()
        try:
            for order in (b"T", b"K"):
                if await self._gone_within(grace_s):
                    return self.returncode
                self.order(order)
            if not await self._gone_within(KILL_TIMEOUT_S):
                logger.error("process %d does not end although it was killed", self.pid)
        except asyncio.CancelledError:  # otherwise nobody would end the child
            self.kill()
            raise
        return self.returncode

    def kill(self) -> None:
        """Kill the child and all its descendants, without waiting."""
        self.order(b"K")

    def when_done(self, callback: Callable[["Process"], None]) -> None:
        """Call `callback` with this process once the child and all its descendants have ended."""
        self._done.add_done_callback(lambda _: callback(self))

    async def _gone_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait((self._done,), timeout=seconds)
        return bool(done)

    # -- what the reaper reports

    def _report(self, line: bytes) -> None:
        report = json.loads(line)
        if "started" in report:
            self.pid, self.lacks, self.prepared = report["started"], report["lacks"], report["prepared"]
            if not self.started.done():
                self.started.set_result("")
        elif "failed" in report:
            self.prepared = report["prepared"]
            self._end(None, report["failed"])
        else:
            self.why_ended = report["why"]
            self._exited(report["exited"])

    def _exited(self, code: int | None = None) -> None:
        """Handle the end of the server with an exit code. None: its reaper (supervising process) was killed, and the
        server with it."""
        if self._ended_early is not None:  # after the exit, the reaper itself ends
            return
        if self.started.done() and not self._listening:
            self._ended_early = (code, "")
        else:
            self._end(code, REAPER_LOST)

    def _stdout_closed(self) -> None:
        self._lines.end()
        if not self._is_ending:
            self._silence_timer = self._loop.call_later(_SILENT_GRACE_S, self.kill)

    def _end(self, code: int | None, reason: str) -> None:
        if self._is_ending or self._done.done():
            return
        self._is_ending, self.returncode = True, code
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        for end in (self.stdin, self._orders, self._reports):
            end.close()
        self._stdout.drain(lambda: self._stderr.drain(lambda: self._has_ended(reason)))

    def _has_ended(self, reason: str) -> None:
        if self._done.done():  # abandoned meanwhile
            return
        self._done.set_result(None)
        if not self.started.done():
            self.started.set_result(reason)
        else:
            self._sink.exited(self.returncode)

    def abandon(self) -> None:
        """Close all descriptors, whether the child has started or not. The reaper kills the child when its control
        socket is closed."""
        if not self._done.done():
            self._done.set_result(None)
            for end in (self.stdin, self._stdout, self._stderr, self._orders, self._reports):
                end.close()
