"""Turn a newly forked process into a server, and report to its reaper. Part of the program `fork_server.py`."""

import contextlib
import errno
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

from transports.upstream.cgroups import Group
from transports.upstream.prepared_walls import Prepared
from transports.upstream.process_tree import prctl
from transports.upstream.walls.build_walls import WallsFailed, build
from transports.upstream.walls.intercepted_calls import duplicate_from
from transports.upstream.walls.raw_system_calls import dumpable
from transports.upstream.walls.wall_specification import Grant

MOST_BYTES: Final = 4_000
"""Maximum bytes of the sentence that says why a server could not be started."""


def report_failure(report: int, sentence: str) -> None:
    """Write to the descriptor `report` why the server could not be started."""
    os.write(report, b"failed " + sentence.replace("\n", " ").encode(errors="replace")[:MOST_BYTES])


def hand_over(report: int, folders: tuple[Grant, ...], listener: int) -> None:
    """Announce the descriptor `listener` of this process to the reaper, with the grants for the server's own `folders`,
    by a line to the descriptor `report`. Wait until the reaper has copied the descriptor, then close it here. End this
    process if the reaper fails."""
    # Nothing is secret in this process that will not be in the server itself.
    with dumpable():
        os.write(report, b"listener %d %s\n" % (listener, json.dumps(folders).encode()))
        if not os.read(report, 1):
            os._exit(127)
    os.close(listener)


class LaunchReports:
    """Read from the descriptor `reports` what a process that becomes a server reports to its reaper. `pid` is the id
    that the reaper sees. `take_listener` gets the descriptor on which its seccomp filter announces calls, and the
    grants for the server's own folders, as JSON; None if the server has no walls.

    The process writes lines to a pair of sockets that exec(2) closes. `pid N` is its id outside of its namespaces, if
    it has some. `listener N JSON` has the descriptor of its filter, and the grants; the process then waits until the
    reaper has a copy of the descriptor. `failed SENTENCE` is a failure. If the lines end without one, the server runs.

    The reaper copies the descriptor by its number (pidfd_getfd). It is not sent in a message: the kernel limits the
    descriptors in transit for a whole user, and a server of that user could use up the limit.
    """

    def __init__(self, reports: int, pid: int, take_listener: Callable[[int, bytes], None] | None) -> None:
        self.outer_pid = pid
        self.failure = ""
        self.reports = reports
        self._take_listener = take_listener
        # Opened while the process builds its walls: later, the process would wait for it. Not by `open_process`, which
        # reads /proc on kernels before 6.9, and /proc may be that of other namespaces now.
        self._process = None if take_listener is None or not pid else os.pidfd_open(pid)
        self._line = b""

    def read(self) -> bool:
        """Read the reports that have arrived, or wait for one. Return False if no more will come: the server runs
        (exec(2) was called), or its start has failed."""
        with contextlib.suppress(OSError):
            if received := os.read(self.reports, MOST_BYTES):
                *lines, self._line = (self._line + received).split(b"\n")
                for line in lines:
                    self._take(line)
                if not self.failure:
                    return True
        self._take(self._line)
        os.close(self.reports)
        if self._process is not None:
            os.close(self._process)
        return False

    def _take(self, line: bytes) -> None:
        what, _, value = line.partition(b" ")
        if what == b"failed":
            self.failure = value.decode(errors="replace")
        elif what == b"pid":
            self.outer_pid = int(value)
        elif what == b"listener" and self._process is not None and self._take_listener is not None:
            number, _, folders = value.partition(b" ")
            try:
                taken = duplicate_from(self._process, int(number))
                os.write(self.reports, b"\n")
            except OSError as error:
                self.failure = f"its gate could not be opened: {error.strerror}"
            else:
                self._take_listener(taken, folders)


_PR_SET_PDEATHSIG: Final = 1
_REPORT: Final = 3
_CHANGED_SIGNALS: Final[list[int]] = []
"""The signals that are reset before a server starts, because this process handles or ignores them. Resetting all
signals would slow each start."""


def note_signals() -> None:
    """Record the signals that this process handles or ignores, so that its children can reset them. Called once, before
    the first start."""
    _CHANGED_SIGNALS.extend(
        int(number)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        if signal.getsignal(number) != signal.SIG_DFL
    )


def become_server(
    spec: dict[str, Any],
    arranged: Callable[[], Prepared | None],
    stdio: list[int],
    report: int,
    reaper: int,
    group: Group | None,
) -> NoReturn:
    """Turn this newly forked process into the server of `spec` (the specification that the reaper has received), behind
    the walls that `arranged` returns (None: without). If that fails, write to the descriptor `report` why, and end.
    `stdio` has the server's stdin, stdout and stderr. `reaper` is the id of the parent, as this process sees it.
    `group` is the server's cgroup, if it has one."""
    subject = "its cgroup"
    prepared = None
    try:
        if group is not None:
            group.enter()
        subject = "the command"
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != reaper:  # the reaper was killed before the line above took effect
            os._exit(127)
        prepared = arranged()
        os.setsid()
        signal.set_wakeup_fd(-1)
        _place_descriptors(stdio, report, None if prepared is None else prepared.ruleset)
        report = _REPORT
        # exec resets handlers but keeps what is ignored or blocked: Python's SIGPIPE, our SIGTERM, a `nohup`'s SIGHUP.
        for number in _CHANGED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if spec["cwd"] is not None:
            subject = f"working directory {spec['cwd']!r}"
            os.chdir(spec["cwd"])
        if prepared is not None:
            hand = partial(hand_over, report, prepared.folders)
            build(prepared.walls, hand, prepared.ruleset, prepared.own + prepared.folders, apart=reaper == 1)
        subject = repr(spec["argv"][0])
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except Exception as error:
        report_failure(report, _failure(error, subject, spec, prepared))
    finally:
        os._exit(127)


def _place_descriptors(stdio: list[int], report: int, ruleset: int | None) -> None:
    """Move the server's descriptors to 0, 1 and 2, and `report` to 3. Close all others except the Landlock ruleset."""
    for target, fd in enumerate(stdio):  # all are above 2: the fork server's own 0, 1 and 2 are open
        os.dup2(fd, target)
    if report != _REPORT:
        os.dup2(report, _REPORT, inheritable=False)
    if ruleset is not None:  # its number is far above
        os.closerange(_REPORT + 1, ruleset)
    os.closerange((_REPORT if ruleset is None else ruleset) + 1, os.sysconf("SC_OPEN_MAX"))


def _failure(error: Exception, subject: str, spec: dict[str, Any], prepared: Prepared | None) -> str:
    if not isinstance(error, OSError):  # a wall; a null byte, an empty argv, "=" in a variable's name
        return str(error) if isinstance(error, WallsFailed) else f"{error}: {subject}"
    is_of_program = subject == repr(spec["argv"][0])
    if error.errno == errno.ENOENT and is_of_program and _exists(spec):
        return f"The interpreter that the first line of {subject} names does not exist"
    sentence = f"{os.strerror(error.errno or errno.EIO)}: {subject}"
    if error.errno == errno.EACCES and is_of_program and prepared is not None:
        sentence += f" (the sandbox {prepared.walls.profile!r} has to let it be executed, and its interpreter)"
    return sentence


def _exists(spec: dict[str, Any]) -> bool:
    command = spec["argv"][0]
    folders = [""] if "/" in command else os.get_exec_path(spec["env"])
    return any(os.path.isfile(os.path.join(folder, command)) for folder in folders)
