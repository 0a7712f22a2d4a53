"""Hide this process's memory and environment, which hold the signing keys, from the servers that it starts.

Servers run as the same user. The kernel lets processes of a user inspect each other only if they are *dumpable*
(prctl(2), PR_SET_DUMPABLE; proc(5), ptrace(2)). If a process is not, only a process with CAP_SYS_PTRACE can read its
`/proc/PID/environ`, `mem`, `maps` or `fd`, attach to it, or get a core dump. exec(2) makes servers dumpable again.

The environment that execve(2) gets stays in `/proc/PID/environ`. A server could read it before a new worker has hidden
itself. So a worker is started with the few variables that a program needs to start, and reads the others from the
descriptor of a file without a name.

Imports little: `__main__` calls it before anything else is loaded.
"""

import ctypes
import json
import os
import resource
import sys
import tempfile
from collections.abc import Mapping
from typing import Final

_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4
_VARIABLE: Final = "MCP_GATEWAY_WORKER_ENVIRONMENT"
_NEEDED: Final = ("HOME", "LANG", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV")
_NEEDED_PREFIXES: Final = ("DYLD_", "LC_", "LD_", "PYTHON")
_MOST_BYTES: Final = 16 << 20


def hide() -> bool:
    """Hide this process from others of its user, and disable core files. Return whether the kernel hides it."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    return sys.platform == "linux" and _prctl(_PR_SET_DUMPABLE) == 0 and _prctl(_PR_GET_DUMPABLE) == 0


def why_in_sight() -> str:
    """Return a warning if servers without a sandbox can read this process's memory; empty if they cannot."""
    if sys.platform != "linux":
        return "Servers can read the gateway's memory. Only Linux can close a process to others of its user."
    if _prctl(_PR_GET_DUMPABLE) != 0:
        return "Servers can read the gateway's memory. The kernel does not close the process (prctl PR_SET_DUMPABLE)."
    if os.geteuid() == 0:
        return "Running as root: servers can read the gateway's memory. Use a dedicated user."
    return ""


def _prctl(option: int) -> int:
    libc = ctypes.CDLL(None)
    return int(libc.prctl(option, *(ctypes.c_ulong(0),) * 4))


def visible_environment(environment: Mapping[str, str], kept_in: int) -> dict[str, str]:
    """Return the environment with which a worker is started: those variables of `environment` that a program needs to
    start, and one that holds `kept_in`, the descriptor that `keep_environment` returned."""
    needed = {k: v for k, v in environment.items() if k in _NEEDED or k.startswith(_NEEDED_PREFIXES)}
    return {**needed, _VARIABLE: str(kept_in)}


def keep_environment(environment: Mapping[str, str]) -> int:
    """Write the environment to a file without a name, and return its descriptor. The caller has to close it."""
    if hasattr(os, "memfd_create"):
        held = os.memfd_create("environment")
    else:
        with tempfile.TemporaryFile() as file:
            held = os.dup(file.fileno())
    data = json.dumps(dict(environment)).encode("utf-8")
    while data:
        data = data[os.write(held, data) :]
    return held


def take_environment() -> None:
    """Set the environment of this worker to the one that its parent has stored with `keep_environment`. Do nothing if
    this process is not a worker."""
    given = os.environ.pop(_VARIABLE, "")
    if not given:
        return
    held, data = int(given), b""
    while piece := os.pread(held, _MOST_BYTES, len(data)):  # the other workers read it as well: it has one position
        data += piece
    os.close(held)
    os.environ.update(json.loads(data))


def open_closed() -> None:
    """Open /dev/null for each standard stream that is closed (None in Python).

    Otherwise the next opened file, such as a database, gets the stream's number, and output for stdout is written into
    it. Must be called before any other file is opened.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the lowest free number is the one that is missing
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
