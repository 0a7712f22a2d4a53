"""Start stdio servers, and leave no process behind that they started.

This program runs beside the gateway (`python -I -S -X utf8 fork_server.py FD DELEGATION`). It imports small standard
modules only, and knows nothing of asyncio, MCP or the gateway. DELEGATION is JSON (`cgroup_delegation.py`).

The *fork server* is the program as started. On the Unix stream socket FD it receives one request (`prepared_walls.py`)
per server, with four descriptors: a control socket, and the server's stdin, stdout and stderr. A fifth is the channel
of the server's gate (`walls/system_call_gate.py`). For each request it forks a *reaper*. Kind `n`: the reaper is the
first process of namespaces where that is possible (`walls/namespaces.py`). Kind `m`: it has mounts of its own where
that is possible. `w` is another server with walls, `s` one without.

A *reaper* (`reaper.py`) looks after one server. On its control socket it reads one specification: a 4-byte big-endian
length and the JSON object `{"argv": [...], "env": {...}, "cwd": "..." | null, "walls": {...} | null}`. If the request
names a prototype, `walls` (`walls/wall_specification.py`) has only what the prototype lacks. The reaper starts the
server behind the walls, and answers in JSON lines. `{"started": pid, "lacks": sentence, "prepared": bool}` also says
why the server has no namespaces or mounts, if it should have some, and whether its walls were prepared. A failure is
`{"failed": sentence, "prepared": bool}`. Later comes `{"exited": code, "why": sentence}`: the exit code, or minus the
signal number, and why the kernel ended the server, if known. After the specification the reaper obeys single bytes: `T`
sends SIGTERM to the server and all its descendants, `K` kills them all. If the gateway is gone, the end of the control
socket acts as `K`.

No process survives, because a reaper is a *child subreaper*: a descendant that loses its parent (setsid, double forks,
`sh -c`, npx) becomes a child of the reaper. The reaper kills what is below itself until the kernel says that it has no
child left; only then does it report the exit. If a reaper itself is killed, its server dies with it (PR_SET_PDEATHSIG).
All else becomes children of the fork server, a subreaper too, which kills every child that is not a reaper. With
cgroups, the kernel ends each group in one step. What outlives even the fork server is then ended at the next start.

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
from collections.abc import Callable, Container
from typing import Final, NoReturn

sys.path.append(os.path.abspath(__file__ + "/../../.."))  # where `transports` is: there are no site packages

from transports.upstream.cgroup_delegation import Delegation
from transports.upstream.cgroups import Groups
from transports.upstream.prepared_walls import ANNOUNCES, REQUEST, Prepared, Prototypes, close_all_but
from transports.upstream.process_tree import LOOK_MS, RESCAN_MS, StartCounter, Wakeups, below, children, kill, prctl
from transports.upstream.reaper import Reaper
from transports.upstream.server_after_fork import note_signals
from transports.upstream.walls.build_walls import prepare
from transports.upstream.walls.namespaces import fork_apart, own_mounts, why_not, why_shared

_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
_NOT_KNOWN: Final = "the fork server does not know the prototype of its walls"

OOM_SCORE: Final = 500
"""The OOM score of servers behind walls, of 1000."""


class _OomScore:
    """Make the kernel kill servers behind walls, and their reapers, before the gateway when memory runs out. Has to be
    created before this process stops being dumpable: after that it cannot open its own files in /proc.

    A process inherits its OOM score. So the fork server raises its own score during each fork, by writing to a file
    that it keeps open. A new process would have to open its own file.
    """

    def __init__(self) -> None:
        self._error: OSError | None = None
        try:
            self._file = os.open("/proc/self/oom_score_adj", os.O_RDWR)
            self._own = int(os.read(self._file, 16))
        except OSError as error:
            self._error = error

    def fork(self, fork: Callable[[], int]) -> int:
        """Fork like `os.fork`. If memory runs out, the kernel kills the child and its children first. Raises
        `OSError`."""
        if self._error is not None:
            raise self._error
        self._write(max(self._own, OOM_SCORE))
        pid = -1
        try:
            pid = fork()
        finally:
            if pid == 0:
                os.close(self._file)  # the file is that of the parent
            else:
                with contextlib.suppress(OSError):  # this process may keep the higher score then
                    self._write(self._own)
        return pid

    def _write(self, score: int) -> None:
        os.write(self._file, b"%d" % score)


class _Starter:
    """Receive the gateway's requests to start servers, and fork a reaper for each."""

    def __init__(self, requests: socket.socket, groups: Groups, oom_score: _OomScore) -> None:
        self.gateway: int | None = None
        """A descriptor that becomes readable when the gateway dies, even if a forked copy of the gateway keeps its
        sockets open."""
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or older than 5.3: the sockets' end has to do
            self.gateway = os.pidfd_open(os.getppid())
        self.wakeups = Wakeups()
        self.reapers: dict[int, bool] = {}  # True: the server has walls, and its processes may have to be counted
        self.prototypes = Prototypes()
        self._requests = requests
        self._groups = groups
        self._oom_score = oom_score

    def take(self) -> bool:
        """Handle one request to start a server. Return False at the end of the requests."""
        try:
            request, fds, _, _ = socket.recv_fds(self._requests, REQUEST.size, 5)
        except OSError:
            return False
        if request:
            kind, number = REQUEST.unpack(request)
            if kind == ANNOUNCES:
                for file in fds:  # none when we ran out of descriptors: then the number stays unknown
                    self.prototypes.learn(number, file)
            elif len(fds) >= 4:  # fewer when we ran out of descriptors: closing them tells the gateway
                self._start(kind, number, fds)
        for fd in fds:
            os.close(fd)
        return bool(request)

    def _start(self, kind: bytes, number: int, fds: list[int]) -> None:
        # A server with namespaces has its own /proc, which a ruleset made here does not name.
        prepared = self.prototypes.take(number, ruleset=kind != b"n") if number else None
        if number and prepared is None:
            _fail(fds[0], _NOT_KNOWN, prepared=True)
            return
        lacks = ""
        if kind in (b"n", b"m"):
            lacks = why_not() if kind == b"n" else why_shared()
        fork = fork_apart if kind == b"n" and not lacks else os.fork
        try:
            pid = fork() if kind == b"s" else self._oom_score.fork(fork)
        except OSError as error:
            _fail(fds[0], f"cannot fork: {error.strerror}", prepared=False)
        else:
            if pid == 0:
                self._become_reaper(fds, prepared, lacks, has_mounts=kind == b"m" and not lacks)
            self._groups.belongs_to(pid)
            self.reapers[pid] = kind != b"s" and not self._groups.count
        if prepared is not None and prepared.ruleset is not None:
            os.close(prepared.ruleset)

    def _become_reaper(self, fds: list[int], prepared: Prepared | None, lacks: str, *, has_mounts: bool) -> NoReturn:
        status = 1
        try:
            os.close(self._requests.fileno())
            self.wakeups.close()
            close_all_but(None if prepared is None else prepared.ruleset)
            if has_mounts:
                try:
                    own_mounts()
                except OSError as error:
                    has_mounts, lacks = False, f"mounts are refused ({error.strerror})"
            reaper = Reaper(
                fds[0], fds[1:4], fds[4:], self.gateway, lacks, self._groups, prepared, has_mounts=has_mounts
            )
            reaper.run()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)


def _fail(control: int, why: str, *, prepared: bool) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        os.write(control, json.dumps({"failed": why, "prepared": prepared}).encode() + b"\n")


def _serve(requests: socket.socket, groups: Groups, oom_score: _OomScore) -> None:
    """Fork a reaper for each request until the gateway is gone, then wait until the last reaper has ended."""
    starter = _Starter(requests, groups, oom_score)
    reapers, prototypes = starter.reapers, starter.prototypes
    starts = StartCounter()
    poller = select.poll()
    lifelines = [fd for fd in (requests.fileno(), starter.gateway) if fd is not None]
    for fd in (*lifelines, starter.wakeups.fd):
        poller.register(fd, select.POLLIN)
    serving, orphans = True, False
    while serving or reapers or orphans:
        pauses_ms = (RESCAN_MS if orphans else None, LOOK_MS if any(reapers.values()) else None, prototypes.due_ms())
        ready = {fd for fd, _ in poller.poll(min((each for each in pauses_ms if each is not None), default=None))}
        starter.wakeups.drain(ready)
        for pid in starts.below(reapers):
            if reapers[pid]:
                with contextlib.suppress(OSError):  # it has just ended
                    os.kill(pid, signal.SIGUSR1)
        if serving and not ready.isdisjoint(lifelines):
            serving = starter.gateway not in ready and starter.take()
            if not serving:
                prototypes.close()
                for fd in lifelines:
                    poller.unregister(fd)
        elif not ready:
            prototypes.renew()
        if _collect_reapers(reapers, groups) or orphans:
            orphans = _kill_orphans(reapers) | groups.clean()
    groups.close()


def _collect_reapers(reapers: dict[int, bool], groups: Groups) -> bool:
    """Collect the children of the fork server that have exited, and remove them from `reapers`, which has the ids of
    the running reapers. Return True if one of them may have left orphans: only a reaper that ended in order leaves
    none."""
    suspicious = False
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            suspicious |= pid not in reapers or status != 0
            reapers.pop(pid, None)
            groups.ended(pid, in_order=status == 0)
    return suspicious


def _kill_orphans(reapers: Container[int]) -> bool:
    orphans = [pid for pid in children() if pid not in reapers]
    kill(below(orphans))
    return bool(orphans)


def main() -> None:
    """Run as `fork_server.py FD DELEGATION`: serve the requests that arrive on the socket FD."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # only the end of our sockets ends us
    for number in (signal.SIGCHLD, signal.SIGUSR1):  # for `Wakeups`, of the reapers, too
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    oom_score = _OomScore()
    # A reaper reads the environment of its server, secrets included: no other server of this user may look into the
    # reaper. Inherited through fork(2), and undone by the server's exec(2).
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
