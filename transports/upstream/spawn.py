"""Starting child processes: the gateway's side of the program `fork_server.py`."""

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from transports.upstream.process import KILL_TIMEOUT_S, REAPER_LOST, Command, LineSink, Process, ProcessFailed

__all__ = ["ForkServer"]

logger = logging.getLogger(__name__)

MAX_LINE_BYTES: Final = 16 << 20
_PROGRAM: Final = str(Path(__file__).with_name("fork_server.py"))


class ForkServer:
    """Starts children through one small program, which outlives this process just long enough to end them all.

    The program starts with the first child, and again if it was killed.
    """

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
            self._disconnect()  # the program ends after its last reaper
        fork_server, self._fork_server_process = self._fork_server_process, None
        if fork_server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(fork_server.wait, KILL_TIMEOUT_S)

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
            ProcessFailed: the command or its directory does not exist or may not be used, or a resource is exhausted.
        """
        walls = None if command.walls is None else command.walls.to_json()
        described = {"argv": command.argv, "env": dict(command.env), "cwd": command.cwd, "walls": walls}
        spec = json.dumps(described).encode()
        reason = REAPER_LOST
        for _ in range(2):  # a killed fork server may not have read the request
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
        self, sink: LineSink, max_line_bytes: int, receive_stderr: Callable[[bytes], None] | None
    ) -> Process:
        """Send four descriptors to the fork server, and keep their other ends."""
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
            receive_stderr=receive_stderr,
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
                        await asyncio.sleep(0.001)  # hundreds of requests are queued, each takes 1 ms
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
                        # A child can read its ancestors' environment in /proc: it must hold no secrets.
                        env={k: v for k, v in os.environ.items() if k.startswith(("LD_", "DYLD_"))},
                        start_new_session=True,  # a Ctrl-C on the terminal is meant for the gateway only
                    )
                unless_started.pop_all()
            ours.setblocking(False)
            self._requests = ours
        return self._requests

    def _disconnect(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None
