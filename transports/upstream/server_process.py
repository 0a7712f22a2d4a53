"""Turns a freshly forked process into a server. For `fork_server.py`."""

import errno
import os
import signal
from functools import partial
from typing import Any, Final, NoReturn

from transports.upstream.cgroups import Group
from transports.upstream.launch import hand_over, report_failure
from transports.upstream.process_tree import prctl
from transports.upstream.walls.build import WallsFailed, build
from transports.upstream.walls.spec import Walls

__all__ = ["become_server", "note_signals"]

_PR_SET_PDEATHSIG: Final = 1
_CHANGED_SIGNALS: Final = [int(signal.SIGCHLD)]
"""The signals that a server must not inherit as they are here. The others take time at each start."""


def note_signals() -> None:
    """Note which signals this process treats otherwise than a server has to. Once, before the first start."""
    _CHANGED_SIGNALS.extend(
        int(number)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
        if signal.getsignal(number) != signal.SIG_DFL
    )


def become_server(
    spec: dict[str, Any], walls: Walls | None, stdio: list[int], report: int, reaper: int, group: Group | None
) -> NoReturn:
    """Turn this freshly forked process into the server, or write to `report` why that failed."""
    subject = "its cgroup"
    try:
        if group is not None:
            group.enter()
        subject = "the command"
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != reaper:  # it was killed before the line above took effect
            os._exit(127)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for target, fd in enumerate(stdio):  # all are above 2: the fork server's own 0, 1 and 2 are open
            os.dup2(fd, target)
        if report != 3:
            os.dup2(report, 3, inheritable=False)
            report = 3
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        # exec resets handlers but keeps what is ignored or blocked: Python's SIGPIPE, our SIGTERM, a `nohup`'s SIGHUP.
        for number in _CHANGED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if spec["cwd"] is not None:
            subject = f"working directory {spec['cwd']!r}"
            os.chdir(spec["cwd"])
        if walls is not None:
            build(walls, partial(hand_over, report), apart=reaper == 1)
        subject = repr(spec["argv"][0])
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except Exception as error:
        report_failure(report, _failure(error, subject, spec))
    finally:
        os._exit(127)


def _failure(error: Exception, subject: str, spec: dict[str, Any]) -> str:
    if not isinstance(error, OSError):  # a wall; a null byte, an empty argv, "=" in a variable's name
        return str(error) if isinstance(error, WallsFailed) else f"{error}: {subject}"
    is_of_program = subject == repr(spec["argv"][0])
    if error.errno == errno.ENOENT and is_of_program and _exists(spec):
        return f"The interpreter that the first line of {subject} names does not exist"
    sentence = f"{os.strerror(error.errno or errno.EIO)}: {subject}"
    if error.errno == errno.EACCES and is_of_program and spec["walls"] is not None:
        sentence += f" (the sandbox {spec['walls']['profile']!r} has to let it be executed, and its interpreter)"
    return sentence


def _exists(spec: dict[str, Any]) -> bool:
    command = spec["argv"][0]
    folders = [""] if "/" in command else os.get_exec_path(spec["env"])
    return any(os.path.isfile(os.path.join(folder, command)) for folder in folders)
