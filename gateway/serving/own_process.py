"""This process, closed to those it starts: it holds the signing keys, and whatever else its environment was given.

Servers run as the same user. What a process of that user may look into, the kernel decides by whether it is *dumpable*
(prctl(2), PR_SET_DUMPABLE; proc(5), ptrace(2)): of one that is not, nobody without CAP_SYS_PTRACE reads
`/proc/PID/environ`, `mem`, `maps` or `fd`, attaches to it, or gets a core dump. exec(2) makes servers dumpable again.
What execve(2) is given stays in `/proc/PID/environ`, and others can read it until the process has closed itself to
them: long enough for a server that waits for it. So a worker is started with what a program needs in order to start,
and reads the rest of its environment from a descriptor without a name.

Imports next to nothing: `__main__` calls it before anything else is loaded.
"""

import ctypes
import json
import os
import resource
import sys
import tempfile
from collections.abc import Mapping
from typing import Final

__all__ = ["hide", "keep_environment", "open_closed", "take_environment", "visible_environment", "why_in_sight"]

_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4
_VARIABLE: Final = "MCP_GATEWAY_WORKER_ENVIRONMENT"
_NEEDED: Final = ("HOME", "LANG", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV")
_NEEDED_PREFIXES: Final = ("DYLD_", "LC_", "LD_", "PYTHON")
_MOST_BYTES: Final = 16 << 20


def hide() -> bool:
    """Close this process to others of its user, and write no core files; whether the kernel does the former."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    return sys.platform == "linux" and _prctl(_PR_SET_DUMPABLE) == 0 and _prctl(_PR_GET_DUMPABLE) == 0


def why_in_sight() -> str:
    """The warning that servers without a sandbox can read this process's memory; empty if they cannot."""
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
    """What a worker is started with; the rest is in that descriptor."""
    needed = {k: v for k, v in environment.items() if k in _NEEDED or k.startswith(_NEEDED_PREFIXES)}
    return {**needed, _VARIABLE: str(kept_in)}


def keep_environment(environment: Mapping[str, str]) -> int:
    """A file descriptor of a file that contains the whole environment. The caller passes it on, and closes it."""
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
    """In a worker: have the environment that was kept."""
    given = os.environ.pop(_VARIABLE, "")
    if not given:
        return
    held, data = int(given), b""
    while piece := os.pread(held, _MOST_BYTES, len(data)):  # the other workers read it as well: it has one position
        data += piece
    os.close(held)
    os.environ.update(json.loads(data))


def open_closed() -> None:
    """Open /dev/null in the place of each standard stream that is closed, which Python has as None.

    Otherwise the next file that is opened gets the number of the stream, a database for instance, and what is meant for
    stdout is written into it. Called before anything else is opened.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the lowest free number is the one that is missing
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
