"""The program that starts stdio servers, and ensures that no process they started is left behind.

It runs beside the gateway as a process of its own (`python -I -S -X utf8 fork_server.py FD DELEGATION`) and imports
small standard modules only: it knows nothing of asyncio, MCP or the gateway. DELEGATION is JSON (`delegation.py`). It
plays two parts.

The *fork server* is the program as started. On the Unix stream socket FD it receives one byte per server to start, with
four descriptors attached: a control socket, and the server's stdin, stdout and stderr. For each it forks a *reaper*: if
the byte is `n`, as the first process of namespaces where that is possible (`walls/namespaces.py`). `w` is a server with
walls, `s` one without. A fifth descriptor is the channel of the server's gate (`walls/gate.py`).

A *reaper* looks after one server. On its control socket it reads one specification, a 4-byte big-endian length and the
JSON object `{"argv": [...], "env": {...}, "cwd": "..." | null, "walls": {...} | null}`, starts the server behind its
walls (`walls/spec.py`), and answers in JSON lines:
`{"started": pid, "lacks": sentence}` (why it has no namespaces, if it should have some) or `{"failed": sentence}`, and
later `{"exited": code, "why": sentence}` (minus the signal number if one ended it; why the kernel ended it, if known).
After the specification it obeys single bytes: `T` sends SIGTERM to the server and all its descendants, `K` kills them
all. The end of the control socket means that the gateway is gone, and is `K` as well.

Why nothing survives: a reaper is a *child subreaper*, so whatever loses its parent below it (setsid, double forks,
`sh -c`, npx) becomes its own child. It kills what it finds below itself until the kernel says that it has no child
left; only then does it report the exit. Should a reaper itself be killed, its server dies with it (PR_SET_PDEATHSIG)
and everything else falls to the fork server, which is a subreaper too and kills whatever is not a reaper. Where servers
have cgroups, the kernel ends each group in one step, and what outlives even the fork server is ended at the next start.

Without prctl(2) and /proc (macOS), a server is ended with its process group, and what has left that group is not found.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Container
from typing import Any, Final, NoReturn

sys.path.append(os.path.abspath(__file__ + "/../../.."))  # where `transports` is: there are no site packages

from transports.upstream.cgroups import Group, Groups
from transports.upstream.delegation import Delegation
from transports.upstream.gate_on_demand import GateOnDemand
from transports.upstream.head_count import LOOK_MS, Starts, count
from transports.upstream.launch import Launch, report_failure, report_number
from transports.upstream.oom_score import OomScore
from transports.upstream.process_tree import HAS_PROC, RESCAN_MS, Wakeups, below, children, kill, prctl
from transports.upstream.server_process import become_server, note_signals
from transports.upstream.walls.build import WallsFailed, arrange, prepare
from transports.upstream.walls.kernel import probe
from transports.upstream.walls.namespaces import fork_apart, is_apart
from transports.upstream.walls.spec import Walls

__all__ = ["main"]

_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
_RESCAN_MAX_MS: Final = 1_000  # ever less often for one that will not die (uninterruptible sleep, another user's)

# --- the reaper -------------------------------------------------------------------------------------------------------


class _Reaper:
    """Starts, watches and ends one server. `gateway` is a pidfd of the gateway, or None."""

    def __init__(
        self,
        control: socket.socket,
        stdio: list[int],
        channel: list[int],
        gateway: int | None,
        lacks: str,
        groups: Groups,
    ) -> None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)  # not inherited through fork(2)
        self._wakeups = Wakeups()
        self._poller = select.poll()
        self._control = control
        self._stdio = stdio
        self._gateway = gateway
        self._lacks = lacks  # why it has no namespaces
        self._groups = groups
        self._group: Group | None = None
        self._server = 0
        self._code: int | None = None
        self._launch: Launch | None = None  # None once it has been reported
        self._failed = False
        self._channel = channel  # at most one descriptor
        self._walls: Walls | None = None
        self._gate: GateOnDemand | None = None  # of a server behind walls
        self._has_to_count = False

    def run(self) -> None:
        spec = self._read_spec()
        if spec is None:
            return  # the gateway has cancelled the start, or is gone
        self._start(spec)
        self._control.setblocking(False)
        self._watch()
        self._kill_everything()  # what the server left behind
        while self._is_launching():
            pass
        if self._gate is not None:
            self._gate.finish()
        why = "" if self._group is None else self._group.end()
        if not self._failed:
            self._report({"exited": self._code, "why": why})

    def _read_spec(self) -> dict[str, Any] | None:
        received = bytearray()
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            chunk = self._control.recv(65_536)
            if not chunk:
                return None
            received += chunk
        end = 4 + int.from_bytes(received[:4], "big")
        if received[end:]:  # an order given before we started anything can only be one to stop
            return None
        spec: dict[str, Any] = json.loads(received[4:end])
        return spec

    def _start(self, spec: dict[str, Any]) -> None:
        reports, report = socket.socketpair()  # closes itself on exec
        reaper = os.getpid()
        with report:
            try:
                outer = os.open("/proc", os.O_PATH) if is_apart() else None  # that of the gateway
                self._walls = _walls(spec, self._lacks)
                self._group = self._groups.group(self._walls)
                if self._walls is not None and self._walls.limits.processes is not None:
                    signal.signal(signal.SIGUSR1, self._count_soon)
                self._server = os.fork() if self._group is None else self._group.fork()
            except (OSError, WallsFailed) as error:
                why = f"cannot fork: {error.strerror}" if isinstance(error, OSError) else str(error)
                report_failure(report.fileno(), why)
                self._code = -signal.SIGKILL
            else:
                if self._server == 0:
                    if outer is not None:
                        report_number(report, outer)
                    become_server(spec, self._walls, self._stdio, report.fileno(), reaper, self._group)
                if outer is not None:
                    os.close(outer)
        if self._walls is not None:
            last = None if self._group is None else self._group.last_refusal
            self._gate = GateOnDemand(self._walls, self._channel, self._poller, last)
        self._launch = Launch(reports, self._server, None if self._gate is None else self._gate.watch)
        for fd in self._stdio:  # or the gateway would never see the end of the server's stdout
            os.close(fd)

    def _watch(self) -> None:
        """Wait until the server has ended, by itself or by order."""
        launch = -1 if self._launch is None else self._launch.fileno()
        for fd in (self._control.fileno(), self._wakeups.fd, launch, self._gateway):
            if fd is not None:
                self._poller.register(fd, select.POLLIN)
        refusals = -1 if self._group is None else self._group.watch()
        if refusals >= 0:
            self._poller.register(refusals, select.POLLPRI)
            self._tell_refused()
        while self._code is None:
            ready = dict(self._poller.poll())
            self._wakeups.drain()
            if launch in ready and not self._is_launching():
                self._poller.unregister(launch)
            if self._gate is not None and self._gate.listener in ready:
                self._gate.look(ready[self._gate.listener])
            if self._control.fileno() in ready:
                self._obey()
            if self._gateway in ready or (self._has_to_count and self._has_too_many()):
                self._kill_everything()
            if refusals in ready:
                self._tell_refused()
            self._reap()

    def _count_soon(self, *_: object) -> None:
        self._has_to_count = True

    def _has_too_many(self) -> bool:
        """Whether the server has more processes and threads than it may."""
        self._has_to_count = False
        most = None if self._walls is None else self._walls.limits.processes
        if most is None or count() <= most:
            return False
        if self._gate is not None:
            self._gate.refuse("processes", str(most), "it had more, and was ended")
        return True

    def _tell_refused(self) -> None:
        """Tell that the kernel has not started a process or thread."""
        refused = None if self._group is None else self._group.newly_refused()
        if refused is not None and self._gate is not None:
            self._gate.refuse(*refused)

    def _obey(self) -> None:
        try:
            orders = self._control.recv(64)
        except OSError:
            orders = b""
        if not orders or b"K" in orders:
            self._kill_everything()
        elif b"T" in orders:
            for pid in _everyone() or [self._server]:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)

    def _kill_everything(self) -> None:
        """Kill children until the kernel reports that none is left (ECHILD), which proves that no process remains."""
        pause_ms = RESCAN_MS
        poller = select.poll()
        poller.register(self._wakeups.fd, select.POLLIN)
        while True:
            if self._group is not None:
                self._group.kill()
            # Without /proc the server's group is all we know of.
            kill(_everyone() or ([self._server] if self._code is None else []))
            if not self._reap():
                return
            if not poller.poll(pause_ms):
                pause_ms = min(2 * pause_ms, _RESCAN_MAX_MS)
            self._wakeups.drain()

    def _reap(self) -> bool:
        """Collect every child that has exited, adopted ones included. True if a child is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._server:
                    self._code = os.waitstatus_to_exitcode(status)
                    if not HAS_PROC:  # then the group must be ended now, while its number cannot mean another
                        with contextlib.suppress(OSError):
                            os.killpg(pid, signal.SIGKILL)
        except ChildProcessError:
            return False

    def _is_launching(self) -> bool:
        """Read from the process that becomes the server. False once that is done or has failed, which is reported."""
        launch = self._launch
        if launch is None or launch.read():
            return launch is not None
        self._launch = None
        self._failed = bool(launch.failure)
        started = {"started": launch.outer_pid, "lacks": self._lacks}
        self._report({"failed": launch.failure} if launch.failure else started)
        return False

    def _report(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # nobody is listening any more: our poll() will see that
            self._control.send(json.dumps(message).encode() + b"\n")


def _everyone() -> list[int]:
    """All processes below this one. Without /proc none is known."""
    return below([os.getpid()])[1:]


def _walls(spec: dict[str, Any], no_namespaces: str) -> Walls | None:
    """The walls to build around the server. Raises `WallsFailed` if it must not start here."""
    if spec["walls"] is None:
        return None
    walls = Walls.from_json(spec["walls"])
    arrange(walls, no_namespaces)
    return walls


# --- the fork server --------------------------------------------------------------------------------------------------


def _serve(requests: socket.socket, groups: Groups, oom_score: OomScore) -> None:
    """Fork a reaper per request until the gateway is gone, then wait for the last reaper to be done."""
    gateway = _open_parent()
    wakeups = Wakeups()
    reapers: dict[int, bool] = {}  # True: its server has walls, and may have to count
    starts = Starts()
    poller = select.poll()
    lifelines = [fd for fd in (requests.fileno(), gateway) if fd is not None]
    for fd in (*lifelines, wakeups.fd):
        poller.register(fd, select.POLLIN)
    serving, orphans = True, False
    while serving or reapers or orphans:
        pause_ms = RESCAN_MS if orphans else LOOK_MS if any(reapers.values()) else None
        ready = {fd for fd, _ in poller.poll(pause_ms)}
        wakeups.drain()
        for pid in starts.below(reapers):
            if reapers[pid]:
                _have_counted(pid)
        if serving and not ready.isdisjoint(lifelines):
            serving = gateway not in ready and _fork_reaper(requests, gateway, wakeups, reapers, groups, oom_score)
            if not serving:
                for fd in lifelines:
                    poller.unregister(fd)
        if _collect_reapers(reapers, groups) or orphans:
            orphans = _kill_orphans(reapers) | groups.clean()
    groups.close()


def _open_parent() -> int | None:
    """A descriptor that turns readable when the gateway dies, even while a forked copy of it holds its sockets open."""
    try:
        return os.pidfd_open(os.getppid())
    except (AttributeError, OSError):  # not Linux, or older than 5.3: the end of the sockets has to do
        return None


def _fork_reaper(
    requests: socket.socket,
    gateway: int | None,
    wakeups: Wakeups,
    reapers: dict[int, bool],
    groups: Groups,
    oom_score: OomScore,
) -> bool:
    """Take one request and fork its reaper. False at the end of the requests."""
    try:
        request, fds, _, _ = socket.recv_fds(requests, 1, 5)
    except OSError:
        return False
    if len(fds) >= 4:  # fewer when we ran out of descriptors: closing them tells the gateway
        lacks = probe(namespaces=True).namespaces if request == b"n" else ""
        fork = fork_apart if request == b"n" and not lacks else os.fork
        try:
            pid = fork() if request == b"s" else oom_score.fork(fork)
        except OSError as error:
            os.write(fds[0], json.dumps({"failed": f"cannot fork: {error.strerror}"}).encode() + b"\n")
        else:
            if pid == 0:
                _become_reaper(fds, gateway, requests, wakeups, lacks, groups)
            groups.belongs_to(pid)
            reapers[pid] = request != b"s" and not groups.count
    for fd in fds:
        os.close(fd)
    return bool(request)


def _become_reaper(
    fds: list[int], gateway: int | None, requests: socket.socket, wakeups: Wakeups, lacks: str, groups: Groups
) -> NoReturn:
    status = 1
    try:
        requests.close()
        wakeups.close()
        _Reaper(socket.socket(fileno=fds[0]), fds[1:4], fds[4:], gateway, lacks, groups).run()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _have_counted(reaper: int) -> None:
    with contextlib.suppress(OSError):  # it has just ended
        os.kill(reaper, signal.SIGUSR1)


def _collect_reapers(reapers: dict[int, bool], groups: Groups) -> bool:
    """Collect the children that have exited. True if one may have left orphans: any but a reaper that was done."""
    suspicious = False
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            suspicious |= pid not in reapers or status != 0
            reapers.pop(pid, None)
            groups.ended(pid, in_order=status == 0)
    return suspicious


def _kill_orphans(reapers: Container[int]) -> bool:
    """Kill every child that is not a reaper. True if there was one."""
    orphans = [pid for pid in children() if pid not in reapers]
    kill(below(orphans))
    return bool(orphans)


def main() -> None:
    """Run as `fork_server.py FD DELEGATION`: serve the requests that arrive on the socket FD."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # only the end of our sockets ends us
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    oom_score = OomScore()
    # A reaper reads what its server's environment is to be, secrets included: no other server of this user may look
    # into it. Inherited through fork(2), and undone by the server's exec(2).
    prctl(_PR_SET_DUMPABLE, 0)
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:  # a gateway that closed its stderr left us a gap there
        pass
    os.close(fd)
    note_signals()
    prepare()
    groups = Groups(Delegation(**json.loads(sys.argv[2])))
    gc.disable()  # a collection would touch, and so copy, every page a reaper shares with us
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])), groups, oom_score)


if __name__ == "__main__":
    main()
