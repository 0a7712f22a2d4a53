"""Start one server, end it with all its descendants, and report both to the gateway. Part of the program
`fork_server.py`. The docstring of that module defines the messages on the control socket."""

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any, Final

from transports.upstream.cgroups import Group, Groups
from transports.upstream.prepared_walls import Prepared
from transports.upstream.process_tree import HAS_PROC, RESCAN_MS, Wakeups, below, count, kill, prctl
from transports.upstream.server_after_fork import LaunchReports, become_server, report_failure
from transports.upstream.walls.build_walls import WallsFailed, arrange
from transports.upstream.walls.system_call_gate import Gate
from transports.upstream.walls.wall_specification import Grant, Walls

_LAST_REFUSALS_S: Final = 1.0
_DECODER: Final = json.JSONDecoder()


class _GateOnDemand:
    """Open a server's gate when its filter announces a first system call. The gate is the thread that answers such
    calls. It takes a megabyte, and many servers never make a call that is announced. So the reaper itself watches
    the filter's descriptor until the first call, which waits meanwhile.

    `walls` takes the grants for the server's own folders, as JSON, and returns the server's walls. `channel` has the
    descriptor of the channel to the gateway; if it is empty, refusals are not reported, and names not resolved.
    `poller` is the one of the reaper. `last` is for `Gate`. This object owns the descriptors of the filter and of the
    channel.
    """

    def __init__(
        self,
        walls: Callable[[bytes], Walls],
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
        self._unopened: int | None = None  # the listener, until a gate owns it
        self._folders = b""
        self._gate: Gate | None = None

    def watch(self, listener: int, folders: bytes) -> None:
        """Watch the notification descriptor of the server's filter, and own it. `folders` is for `walls`."""
        self.listener = self._unopened = listener
        self._folders = folders
        self._poller.register(listener, select.POLLIN)

    def look(self, event: int) -> None:
        """Handle the `event` that poll(2) has reported on the filter's descriptor. Open the gate if a system call
        waits. Otherwise stop watching: all processes with the filter have ended."""
        if event & select.POLLIN:
            self._open()
        else:
            self._unwatch()

    def has_failed(self, ready: Container[int]) -> bool:
        """Return True if the thread that answers the server's system calls has failed, so that the server must be
        ended. `ready`: the descriptors that the poller found ready."""
        return self._gate is not None and self._gate.failed in ready

    def refuse(self, kind: str, what: str, why: str) -> None:
        """Report to the gateway what the reaper itself has refused: the kind, the thing that was refused, and why."""
        self._open()
        if self._gate is not None:
            self._gate.refuse(kind, what, why)

    def finish(self) -> None:
        """Wait until the last reports have been sent. Called once every process with the filter has ended."""
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
        self._gate = Gate(self._unopened, self._walls(self._folders), channel, self._last)
        self._unopened = None
        self._poller.register(self._gate.failed, select.POLLIN)
        self._gate.start()

    def _unwatch(self) -> None:
        if self.listener is not None:
            self._poller.unregister(self.listener)
            self.listener = None


_PR_SET_CHILD_SUBREAPER: Final = 36
_RESCAN_MAX_MS: Final = 1_000  # the pause grows for a process that does not die (uninterruptible sleep, another user's)


class Reaper:
    """Start, watch and end one server. Run as a separate process beside each server.

    `control` is the descriptor of the socket to the gateway, and `stdio` has the server's stdin, stdout and stderr.
    `channel` is that of `_GateOnDemand`. `gateway` is a pidfd of the gateway, or None. `lacks` says why the server has
    no namespaces or mounts of its own. `prepared` is the part of the walls that all sessions of the server share; None:
    the specification has all walls. `has_mounts`: this process has mounts of its own.
    """

    def __init__(
        self,
        control: int,
        stdio: list[int],
        channel: list[int],
        gateway: int | None,
        lacks: str,
        groups: Groups,
        prepared: Prepared | None,
        *,
        has_mounts: bool,
    ) -> None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)  # not inherited through fork(2)
        self._wakeups = Wakeups()
        self._poller = select.poll()
        self._control = control
        self._stdio = stdio
        self._gateway = gateway
        self._lacks = lacks
        self._has_mounts = has_mounts
        self._is_apart = os.getpid() == 1  # the first process of its own namespaces
        self._groups = groups
        self._prepared = prepared
        self._group: Group | None = None
        self._server = 0
        self._code: int | None = None
        self._launch: LaunchReports | None = None  # None once it has been reported
        self._failed = False
        self._channel = channel  # at most one descriptor
        self._walls: Walls | None = None
        self._own: dict[str, Any] | None = None  # the session's part of the walls, if `_walls` lacks it
        self._gate: _GateOnDemand | None = None  # only for a server behind walls
        self._has_to_count = False

    def run(self) -> None:
        spec = self._read_spec()
        if spec is None:
            return  # the gateway has cancelled the start, or is gone
        self._start(spec)
        os.set_blocking(self._control, False)
        try:
            self._watch()
        finally:
            self._kill_everything()  # what the server left behind
        while self._is_launching():
            pass
        if self._gate is not None:
            self._gate.finish()
        why = "" if self._group is None else self._group.end()
        if not self._failed:
            self._report(json.dumps({"exited": self._code, "why": why}))

    def _read_spec(self) -> dict[str, Any] | None:
        received = bytearray()
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            chunk = os.read(self._control, 4_096)
            if not chunk:
                return None
            received += chunk
        end = 4 + int.from_bytes(received[:4], "big")
        if received[end:]:  # an order before the start can only be one to stop
            return None
        spec: dict[str, Any] = _DECODER.raw_decode(received[4:end].decode())[0]
        return spec

    def _start(self, spec: dict[str, Any]) -> None:
        reports, report = (each.detach() for each in socket.socketpair())  # closes itself on exec
        reaper = os.getpid()
        try:
            outer = os.open("/proc", os.O_PATH) if self._is_apart else None  # the gateway's /proc
            self._take_walls(spec["walls"])
            self._group = self._groups.group(self._walls)
            self._server = os.fork() if self._group is None else self._group.fork()
        except (OSError, WallsFailed) as error:
            why = f"cannot fork: {error.strerror}" if isinstance(error, OSError) else str(error)
            report_failure(report, why)
            self._code = -signal.SIGKILL
        else:
            if self._server == 0:
                if outer is not None:
                    os.write(report, b"pid %s\n" % os.readlink("self", dir_fd=outer).encode())
                become_server(spec, self._arranged, self._stdio, report, reaper, self._group)
            if outer is not None:
                os.close(outer)
        os.close(report)
        if self._prepared is not None and self._prepared.ruleset is not None:  # the server's process has it
            os.close(self._prepared.ruleset)
        if self._walls is not None:
            last = None if self._group is None else self._group.last_refusal
            self._gate = _GateOnDemand(self._whole_walls, self._channel, self._poller, last)
        self._launch = LaunchReports(reports, self._server, None if self._gate is None else self._gate.watch)
        for fd in self._stdio:  # or the gateway would never see the end of the server's stdout
            os.close(fd)

    def _take_walls(self, given: dict[str, Any] | None) -> None:
        if self._prepared is not None:
            self._own = given
        elif given is not None:
            self._prepared = Prepared(Walls.from_json(given))
        self._walls = None if self._prepared is None else self._prepared.walls

    def _arranged(self) -> Prepared | None:
        """Arrange the mounts for the server. Return the walls to build around it; None for a server without walls.
        Raises `WallsFailed` if the server must not start.

        The process that becomes the server calls this. The reaper, which has the same mounts, would keep the memory."""
        prepared = self._prepared
        if prepared is None:
            return None
        if prepared.ruleset is None:
            prepared = Prepared(self._whole_walls())
        elif self._own is not None:
            prepared = prepared._replace(own=tuple(map(Grant._make, self._own["grants"])))
        walls = self._whole_walls() if self._has_mounts else prepared.walls  # only if needed: it takes time
        return prepared._replace(folders=arrange(walls, self._lacks, apart=self._is_apart, has_mounts=self._has_mounts))

    def _whole_walls(self, folders: bytes = b"[]") -> Walls:
        assert self._walls is not None
        grants = _DECODER.raw_decode(folders.decode())[0]
        if self._own is None:
            return replace(self._walls, grants=(*self._walls.grants, *map(Grant._make, grants)))
        return self._walls.with_own(self._own | {"grants": [*self._own["grants"], *grants]})

    def _watch(self) -> None:
        """Obey the gateway's commands, and serve the server's gate and limits, until the server has ended."""
        launch = -1 if self._launch is None else self._launch.reports
        for fd in (self._control, self._wakeups.fd, launch, self._gateway):
            if fd is not None:
                self._poller.register(fd, select.POLLIN)
        refusals = -1 if self._group is None else self._group.watch()
        if refusals >= 0:
            self._poller.register(refusals, select.POLLPRI)
            self._tell_refused()
        while self._code is None:
            ready = dict(self._poller.poll())
            self._has_to_count |= signal.SIGUSR1 in self._wakeups.drain(ready)
            if launch in ready and not self._is_launching():
                self._poller.unregister(launch)
            if self._gate is not None and self._gate.listener in ready:
                self._gate.look(ready[self._gate.listener])
            if self._control in ready:
                self._obey()
            has_failed = self._gate is not None and self._gate.has_failed(ready)
            if self._gateway in ready or has_failed or (self._has_to_count and self._has_too_many()):
                self._kill_everything()
            if refusals in ready:
                self._tell_refused()
            self._reap()

    def _has_too_many(self) -> bool:
        if self._may_see_outside():
            return False
        self._has_to_count = False
        most = None if self._walls is None else self._walls.limits.processes
        if most is None or count() <= most:
            return False
        if self._gate is not None:
            self._gate.refuse("processes", str(most), "it had more, and was ended")
        return True

    def _tell_refused(self) -> None:
        """Check if the kernel has refused to start a process or thread of the server. If so, report it to the
        gateway."""
        refused = None if self._group is None else self._group.newly_refused()
        if refused is not None and self._gate is not None:
            self._gate.refuse(*refused)

    def _obey(self) -> None:
        try:
            orders = os.read(self._control, 64)
        except OSError:
            orders = b""
        if not orders or b"K" in orders:
            self._kill_everything()
        elif b"T" in orders:
            for pid in self._processes():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)

    def _kill_everything(self) -> None:
        """Kill descendants until the kernel reports that this process has no child (ECHILD), so that none can
        remain."""
        pause_ms = RESCAN_MS
        poller = select.poll()
        poller.register(self._wakeups.fd, select.POLLIN)
        while True:
            if self._group is not None:
                self._group.kill()
            if self._is_apart:  # some may be hidden in /proc: a program that may be executed and not read
                with contextlib.suppress(OSError):
                    os.kill(-1, signal.SIGKILL)
            kill(self._processes())
            if not self._reap():
                return
            if not (ready := dict(poller.poll(pause_ms))):
                pause_ms = min(2 * pause_ms, _RESCAN_MAX_MS)
            self._wakeups.drain(ready)

    def _reap(self) -> bool:
        """Collect every child that has exited, adopted ones included. Return True if children remain."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._server:
                    self._code = os.waitstatus_to_exitcode(status)
                    if not HAS_PROC:  # then end the group now, while its id cannot mean another
                        with contextlib.suppress(OSError):
                            os.killpg(pid, signal.SIGKILL)
        except ChildProcessError:
            return False

    def _is_launching(self) -> bool:
        """Read the reports of the process that becomes the server. Return True while it is still starting. Once it runs
        or its start has failed, report this to the gateway, and return False."""
        launch = self._launch
        if launch is None or launch.read():
            return launch is not None
        self._launch = None
        self._failed = bool(launch.failure)
        prepared = self._prepared is not None and self._prepared.ruleset is not None
        if launch.failure:
            self._report(json.dumps({"failed": launch.failure, "prepared": prepared}))
        else:  # to encode the object, and not just a text, would copy 80 KiB of memory
            fields = f'"lacks": {json.dumps(self._lacks)}, "prepared": {str(prepared).lower()}'
            self._report(f'{{"started": {launch.outer_pid}, {fields}}}')
        return False

    def _report(self, message: str) -> None:
        with contextlib.suppress(OSError):  # nobody is listening any more: our poll() will see that
            os.write(self._control, message.encode() + b"\n")

    def _may_see_outside(self) -> bool:
        """Return True if /proc may still be the one outside of the server's namespaces: it is launched, or its launch
        has failed."""
        return self._launch is not None or self._failed

    def _processes(self) -> list[int]:
        """Return the ids of the server and of all processes that it has started. Return the server's id alone on a
        system without /proc, and while /proc may be the one outside of the server's namespaces."""
        known = [] if self._is_apart and self._may_see_outside() else below([os.getpid()])[1:]
        return known or ([self._server] if self._code is None else [])
