"""Start child processes: the gateway's side of the connection to the program `fork_server.py`."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from transports.upstream.cgroup_delegation import OFF, Delegation, prepare_delegation
from transports.upstream.child_process import KILL_TIMEOUT_S, REAPER_LOST, Command, LineSink, Process, ProcessFailed
from transports.upstream.prepared_walls import REQUEST, Announced
from transports.upstream.walls import resource_limits
from transports.upstream.walls.wall_specification import Reach, Walls

logger = logging.getLogger(__name__)

MAX_LINE_BYTES: Final = 16 << 20
_PROGRAM: Final = (sys.executable, "-I", "-S", "-X", "utf8", str(Path(__file__).with_name("fork_server.py")))


class Gates(Protocol):
    """The gateway's side of the gates of sandboxed processes (`walls/system_call_gate.py`): resolve names for the
    processes, and receive reports of what was refused to them."""

    def open(self, channel: socket.socket, *, reach: Reach, fields: Callable[[], Mapping[str, Any]]) -> None:
        """Serve the channel of a gate until its end, and own the socket. `reach` has the destinations that the process
        may connect to. `fields` returns the fields of log lines about the process: "server", and "session" and
        "principal" if it has them."""

    async def close(self) -> None:
        """Stop serving, because the fork server stops. All its children have ended by then."""


class ForkServer:
    """Start child processes through a small program, which outlives this process just long enough to end them all.

    The program starts on entry, and again if it was killed. `gates` serves the gates of walled children; without it,
    names are not resolved for them, and refusals are not reported. `cgroup` is the setting for
    `cgroup_delegation.find_delegation`, which says where each child gets a cgroup.
    """

    def __init__(self, gates: Gates | None = None, cgroup: str | None = OFF) -> None:
        self._gates = gates
        self.cgroup = cgroup
        self._delegation: Delegation | None = None
        self._programs: list[subprocess.Popen[bytes]] = []
        """The running fork servers. The last one gets the requests. Earlier ones have lost their connection, and end
        after their last reaper."""
        self._requests: socket.socket | None = None
        self._announced = Announced()
        self._processes: set[Process] = set()
        self._lacks: dict[bool, str] = {}  # the last reason; True: for namespaces, False: for mounts alone

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
            if self._gates is not None:
                await self._gates.close()
        while self._programs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._programs.pop().wait, KILL_TIMEOUT_S)

    def delegation(self) -> Delegation:
        """Return the subtree of cgroups for the children. The first call prepares it and moves this process into it."""
        if self._delegation is None:
            self._delegation = prepare_delegation(self.cgroup)
        return self._delegation

    async def spawn(
        self,
        command: Command,
        sink: LineSink,
        *,
        max_line_bytes: int = MAX_LINE_BYTES,
        stderr: Callable[[bytes], None] | None = None,
        fields: Callable[[], Mapping[str, Any]] = dict,
    ) -> Process:
        """Start a child process, and return it once it runs. `sink` gets the lines of its stdout and its end, `stderr`
        the lines of its stderr. `fields` is for `Gates.open`. If the start fails or is cancelled, no process or
        descriptor remains.

        Raises:
            ProcessFailed: the command or its directory does not exist or may not be used, or a resource is exhausted.
        """
        walls, kind = command.walls, _kind_of(command.walls)
        can_prepare = walls is not None and walls.common and hasattr(os, "memfd_create")
        prototype = walls.prototype() if walls is not None and can_prepare else None
        reason = REAPER_LOST
        for _ in range(2):  # a killed fork server may not have read the request
            spec = json.dumps(_described(command, prototype)).encode()
            try:
                open_gate = self._gate_of(command, fields)
                process = await self._request(kind, prototype, sink, max_line_bytes, stderr, open_gate)
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
                self._note(command, process.lacks)
                process.when_done(self._processes.discard)
                process.listen()
                return process
            self._processes.discard(process)
            if process.prepared:  # prepared walls may be older than what is installed now
                self._announced.forget(prototype)
                prototype = None
            elif reason != REAPER_LOST:
                break
        program = command.argv[0]
        is_missing = shutil.which(program, path=command.env.get("PATH", os.defpath)) is None
        if is_missing and "/" not in program and reason == f"No such file or directory: {program!r}":
            reason = f"there is no program {program!r} on its PATH"
        raise ProcessFailed(reason, program, is_missing=is_missing)

    def _note(self, command: Command, lacks: str) -> None:
        """Log the reason (`lacks`) why a server gets no namespaces or mounts of its own. Repeat the line only for
        another reason, or after a server has got them meanwhile: a limit of the kernel can be reached later."""
        walls = command.walls
        if walls is None or not (walls.namespaces or walls.own_folders):
            return
        if lacks and lacks != self._lacks.get(walls.namespaces):
            what = "sees the names of other processes, and has" if walls.namespaces else "has"
            logger.warning("server %r %s no /tmp of its own: %s", command.argv[0], what, lacks)
        self._lacks[walls.namespaces] = lacks

    def _gate_of(
        self, command: Command, fields: Callable[[], Mapping[str, Any]]
    ) -> Callable[[socket.socket], None] | None:
        reach = None if command.walls is None else command.walls.reach
        if self._gates is None or reach is None:
            return None
        return partial(self._gates.open, reach=reach, fields=lambda: {"server": command.argv[0], **fields()})

    async def _request(
        self,
        kind: bytes,
        prototype: Walls | None,
        sink: LineSink,
        max_line_bytes: int,
        receive_stderr: Callable[[bytes], None] | None,
        open_gate: Callable[[socket.socket], None] | None,
    ) -> Process:
        """Ask the fork server for a child process: send it four descriptors, and a fifth if there is to be a gate.
        Return the process, which has their other ends. `kind` is that of the request (`fork_server.py`), and
        `prototype` the common walls that it names. `open_gate` is called with the channel to the gate; None: there is
        no gate."""
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
                if open_gate is not None:
                    channel, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    opened.enter_context(other_end)
                    kept.enter_context(channel)
                    given.append(other_end.fileno())
                await self._send(kind, prototype, given)
                process = Process(
                    sink,
                    control=control,
                    stdio=ours,
                    max_line_bytes=max_line_bytes,
                    receive_stderr=receive_stderr,
                )
                kept.pop_all()
        if open_gate is not None:
            try:
                open_gate(channel)
            except BaseException:
                channel.close()
                process.abandon()
                raise
        return process

    async def _send(self, kind: bytes, prototype: Walls | None, fds: list[int]) -> None:
        for last in (False, True):
            requests = self._connect()
            try:
                while True:
                    try:
                        with resource_limits.raised_files():
                            number = self._announced.number(requests, prototype)
                            socket.send_fds(requests, [REQUEST.pack(kind, number)], fds)
                        return
                    except OSError as error:
                        if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS):
                            raise
                        await asyncio.sleep(0.001)  # hundreds of requests are queued, each takes 1 ms
            except OSError:
                if last:
                    raise
                logger.warning("the fork server is gone; starting another")
                self._disconnect()

    def _connect(self) -> socket.socket:
        running = [program for program in self._programs if program.poll() is None]
        if running[-1:] != self._programs[-1:]:
            self._disconnect()
        self._programs = running
        if self._requests is None:
            with contextlib.ExitStack() as unless_started:
                ours, theirs = socket.socketpair()
                unless_started.callback(ours.close)
                with theirs:
                    program = subprocess.Popen(
                        [*_PROGRAM, str(theirs.fileno()), json.dumps(asdict(self.delegation()))],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        # A child can read its ancestors' environment in /proc: it must hold no secrets.
                        env={k: v for k, v in os.environ.items() if k.startswith(("LD_", "DYLD_"))},
                        start_new_session=True,  # a Ctrl-C on the terminal is meant for the gateway only
                    )
                self._programs.append(program)
                unless_started.pop_all()
            ours.setblocking(False)
            self._requests = ours
            self._announced = Announced()  # the new fork server knows no prototypes
        return self._requests

    def _disconnect(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None


def _kind_of(walls: Walls | None) -> bytes:
    if walls is None:
        return b"s"
    return b"n" if walls.namespaces else b"m" if walls.own_folders else b"w"


def _described(command: Command, prototype: Walls | None) -> dict[str, Any]:
    """Return the specification of a command for the reaper (`fork_server.py`). The walls of `prototype` are left out of
    it, because the reaper has them already. If there is a gate, a variable makes programs ask the DNS resolver over
    streams, because datagrams do not pass the gate."""
    walls, env = command.walls, dict(command.env)
    if walls is not None and walls.reach is not None:
        env["RES_OPTIONS"] = f"{env.get('RES_OPTIONS', '')} use-vc".strip()  # resolv.conf(5); c-ares reads it too
    specification = None if walls is None else walls.to_json() if prototype is None else walls.own()
    return {"argv": command.argv, "env": env, "cwd": command.cwd, "walls": specification}
