"""This process, closed to those it starts: it holds the signing keys, and whatever else its environment was given.

Servers run as the same user. What a process of that user may look into, the kernel decides by whether it is *dumpable*
(prctl(2), PR_SET_DUMPABLE; proc(5), ptrace(2)): of one that is not, nobody without CAP_SYS_PTRACE reads
`/proc/PID/environ`, `mem`, `maps` or `fd`, attaches to it, or gets a core dump. exec(2) makes servers dumpable again.
Imports next to nothing: `__main__` calls it before anything else is loaded.
"""

import ctypes
import os
import resource
import sys
from typing import Final

__all__ = ["hide", "why_in_sight"]

_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4


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
