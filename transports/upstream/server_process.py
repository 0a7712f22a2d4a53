"""Turns a freshly forked process into a server. For `fork_server.py`."""

import errno
import os
import signal
from functools import partial
from typing import Any, Final, NoReturn

from transports.upstream.cgroups import Group
from transports.upstream.launch import hand_over, report_failure
from transports.upstream.process_tree import prctl
from transports.upstream.prototypes import Prepared
from transports.upstream.walls.build import WallsFailed, build

__all__ = ["become_server", "note_signals"]

_PR_SET_PDEATHSIG: Final = 1
_REPORT: Final = 3
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
    spec: dict[str, Any], prepared: Prepared | None, stdio: list[int], report: int, reaper: int, group: Group | None
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
            hand = partial(hand_over, report)
            build(prepared.walls, hand, prepared.ruleset, prepared.own, apart=reaper == 1)
        subject = repr(spec["argv"][0])
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except Exception as error:
        report_failure(report, _failure(error, subject, spec, prepared))
    finally:
        os._exit(127)


def _place_descriptors(stdio: list[int], report: int, ruleset: int | None) -> None:
    """Put those of the server and the report where they belong, and close all others but the ruleset."""
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
