"""Child processes on an event loop: started and watched over by `fork_server.py`, talked to in lines.

Knows nothing of MCP. Works on asyncio's own loop and on uvloop.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from transports.upstream.lines import LineSplitter, Tail
from transports.upstream.pipes import Inbox, Outbox

__all__ = ["Command", "ForkServer", "LineSink", "Process", "ProcessFailed"]

logger = logging.getLogger(__name__)

REAPER_LOST: Final = "its reaper was killed"
_PROGRAM: Final = str(Path(__file__).with_name("fork_server.py"))
MAX_LINE_BYTES: Final = 16 << 20
_SILENT_GRACE_S: Final = 2.0
"""A server that closed its stdout can answer nothing any more; usually it is about to exit."""
_KILL_TIMEOUT_S: Final = 5.0
"""A killed process goes at once, unless the kernel holds it (uninterruptible sleep)."""


class ProcessFailed(Exception):
    """A command could not be started. The message says why; `command` is its first word."""

    def __init__(self, reason: str, command: str) -> None:
        super().__init__(reason)
        self.command = command


class LineSink(Protocol):
    """Who hears a child. Called on the event loop, one call at a time."""

    def line(self, line: bytes) -> None:
        """One line of stdout, without its end."""
        ...

    def oversized(self, head: bytes, tail: bytes) -> None:
        """A line beyond the limit was thrown away; its first and last 512 bytes."""
        ...

    def exited(self, code: int | None) -> None:
        """The child is gone and everything it started with it: exactly once, after its last line."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to start. `env` is the whole environment, its PATH the one that is searched."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None


class Process:
    """One running child. Made by `ForkServer.spawn`."""

    def __init__(
        self,
        sink: LineSink,
        *,
        control: socket.socket,
        stdin: int,
        stdout: int,
        stderr: int,
        max_line_bytes: int,
        hear_stderr: Callable[[bytes], None] | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.pid = 0
        self.returncode: int | None = None
        self.started: asyncio.Future[str] = loop.create_future()
        self._loop = loop
        self._sink = sink
        self._done: asyncio.Future[None] = loop.create_future()
        lines = LineSplitter(sink.line, sink.oversized, max_bytes=max_line_bytes)
        self._lines = lines
        self._tail = Tail(hear_stderr)
        control_fd = control.detach()
        self._orders = Outbox(loop, control_fd, owns=False)
        self._reports = Inbox(loop, control_fd, LineSplitter(self._report, _ignore, max_bytes=65_536).feed, self._lost)
        self._stdin = Outbox(loop, stdin)
        self._stdout = Inbox(loop, stdout, lines.feed, self._silent)
        self._stderr = Inbox(loop, stderr, self._tail.feed, self._tail.end)
        self._silence: asyncio.TimerHandle | None = None
        self._listening = False
        self._ended_early: tuple[int | None, str] | None = None
        self._reports.start()

    def listen(self) -> None:
        """Let the sink hear: only from here on, so that nobody hears a child before holding it."""
        self._listening = True
        self._stdout.start()
        self._stderr.start()
        if self._ended_early is not None:
            self._loop.call_soon(self._end, *self._ended_early)

    def order(self, data: bytes) -> None:
        """Tell the reaper something; it may be gone."""
        self._orders.write(data)

    @property
    def write_buffer_size(self) -> int:
        """Bytes written that the child has not taken yet."""
        return self._stdin.size

    def write(self, data: bytes) -> bool:
        """Write whole lines to the child's stdin, without blocking; False when it is closed."""
        return self._stdin.write(data)

    def stderr_tail(self) -> list[str]:
        """The last lines the child wrote to stderr."""
        return self._tail.text()

    async def wait(self) -> int | None:
        """Until the child and everything it started are gone; its exit code, or minus the signal that ended it."""
        await asyncio.shield(self._done)
        return self.returncode

    async def shutdown(self, *, grace_s: float) -> int | None:
        """End the child in the order of MCP's stdio lifecycle: close stdin, wait, SIGTERM, wait, SIGKILL.

        Takes at most `2 * grace_s` and 5 seconds. May be called again and concurrently; cancelled, it kills at once.
        """
        self._stdin.finish()
        try:
            for order in (b"T", b"K"):
                if await self._gone_within(grace_s):
                    return self.returncode
                self.order(order)
            if not await self._gone_within(_KILL_TIMEOUT_S):
                logger.error("process %d does not go although it was killed", self.pid)
        except asyncio.CancelledError:  # a half-finished shutdown would leave a child that nobody ends any more
            self.kill()
            raise
        return self.returncode

    def kill(self) -> None:
        """End the child and everything it started at once, without waiting."""
        self.order(b"K")

    def when_done(self, callback: Callable[["Process"], None]) -> None:
        """Call back once everything is gone."""
        self._done.add_done_callback(lambda _: callback(self))

    async def _gone_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait((self._done,), timeout=seconds)
        return bool(done)

    # -- what the reaper reports

    def _report(self, line: bytes) -> None:
        report = json.loads(line)
        if "started" in report:
            self.pid = report["started"]
            if not self.started.done():
                self.started.set_result("")
        elif "failed" in report:
            self._end(None, report["failed"])
        else:
            self._over(report["exited"])

    def _lost(self) -> None:
        """The reaper is gone without a word: it was killed, and its server with it."""
        self._over(None)

    def _over(self, code: int | None) -> None:
        if self._ended_early is not None:  # what follows the exit is only the end of the reaper
            return
        if self.started.done() and not self._listening:
            self._ended_early = (code, "")
        else:
            self._end(code, REAPER_LOST)

    def _silent(self) -> None:
        self._lines.end()
        if not self._done.done():
            self._silence = self._loop.call_later(_SILENT_GRACE_S, self.kill)

    def _end(self, code: int | None, reason: str) -> None:
        if self._done.done():
            return
        self.returncode = code
        self._done.set_result(None)
        if self._silence is not None:
            self._silence.cancel()
        self._stdin.close()
        self._stdout.drain()
        self._stderr.drain()
        self._orders.close()
        self._reports.close()
        if not self.started.done():
            self.started.set_result(reason)
        else:
            self._sink.exited(code)

    def abandon(self) -> None:
        """Nobody wants it any more, started or not: with its control socket goes everything."""
        if not self._done.done():
            self._done.set_result(None)
            for end in (self._stdin, self._stdout, self._stderr, self._orders, self._reports):
                end.close()


class ForkServer:
    """Starts children through one small program, which outlives this process just long enough to end them all."""

    def __init__(self) -> None:
        self._fork_server_process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._processes: set[Process] = set()

    async def __aenter__(self) -> Self:
        self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in tuple(self._processes):
            process.kill()
        try:
            await asyncio.gather(*(p.shutdown(grace_s=0) for p in tuple(self._processes)))
        finally:
            self._disconnect()  # the program ends once its last reaper has
        fork_server, self._fork_server_process = self._fork_server_process, None
        if fork_server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(fork_server.wait, _KILL_TIMEOUT_S)

    async def spawn(
        self,
        command: Command,
        sink: LineSink,
        *,
        max_line_bytes: int = MAX_LINE_BYTES,
        stderr: Callable[[bytes], None] | None = None,
    ) -> Process:
        """Start a child. Cancelled or failed, it leaves neither a process nor a descriptor.

        Raises:
            ProcessFailed: the command or its directory does not exist, may not be run, or the machine is out of room.
        """
        spec = json.dumps({"argv": command.argv, "env": dict(command.env), "cwd": command.cwd}).encode()
        reason = REAPER_LOST
        for _ in range(2):  # the fork server may be killed with our request unread: the next one is another's to answer
            try:
                process = await self._request(sink, max_line_bytes, stderr)
            except OSError as error:
                raise ProcessFailed(error.strerror or str(error), command.argv[0]) from error
            process.order(len(spec).to_bytes(4, "big") + spec)
            self._processes.add(process)
            try:
                reason = await process.started
            except asyncio.CancelledError:
                process.abandon()
                self._processes.discard(process)
                raise
            if not reason:
                process.when_done(self._processes.discard)
                process.listen()
                return process
            self._processes.discard(process)
            if reason != REAPER_LOST:
                break
        raise ProcessFailed(reason, command.argv[0])

    async def _request(
        self, sink: LineSink, max_line_bytes: int, hear_stderr: Callable[[bytes], None] | None
    ) -> Process:
        """Four descriptors to the fork server, four ends for us."""
        with contextlib.ExitStack() as opened:
            control, theirs = socket.socketpair()
            opened.callback(theirs.close)
            ours: list[int] = []
            given: list[int] = [theirs.fileno()]
            with contextlib.ExitStack() as kept:
                kept.callback(control.close)
                for reads in (False, True, True):
                    ends = os.pipe()
                    mine, other = ends if reads else ends[::-1]
                    opened.callback(os.close, other)
                    kept.callback(os.close, mine)
                    ours.append(mine)
                    given.append(other)
                await self._send(given)
                kept.pop_all()
        stdin, stdout, stderr = ours
        return Process(
            sink,
            control=control,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            max_line_bytes=max_line_bytes,
            hear_stderr=hear_stderr,
        )

    async def _send(self, fds: list[int]) -> None:
        for last in (False, True):
            requests = self._connect()
            try:
                while True:
                    try:
                        socket.send_fds(requests, [b"s"], fds)
                        return
                    except BlockingIOError:
                        await asyncio.sleep(0.001)  # hundreds of requests are waiting: it takes 1 ms for each
            except OSError:
                if last:
                    raise
                logger.warning("the fork server is gone; starting another")
                self._disconnect()

    def _connect(self) -> socket.socket:
        if self._fork_server_process is not None and self._fork_server_process.poll() is not None:
            self._disconnect()
        if self._requests is None:
            with contextlib.ExitStack() as unless_started:
                ours, theirs = socket.socketpair()
                unless_started.callback(ours.close)
                with theirs:
                    self._fork_server_process = subprocess.Popen(
                        [sys.executable, "-I", "-S", "-X", "utf8", _PROGRAM, str(theirs.fileno())],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        # A child can read its ancestors' environment in /proc: our secrets are not to be found there.
                        env={k: v for k, v in os.environ.items() if k.startswith(("LD_", "DYLD_"))},
                        start_new_session=True,  # a Ctrl-C on the terminal is for us, not for it
                    )
                unless_started.pop_all()
            ours.setblocking(False)
            self._requests = ours
        return self._requests

    def _disconnect(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None


def _ignore(head: bytes, tail: bytes) -> None:
    """Reports are short."""
