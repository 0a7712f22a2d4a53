"""Opens the Unix socket that a walled process names, if it lies in a folder that was granted.

The gate may open more than the process may. So a path is resolved first, and what is opened then is opened by its
resolved path without following any link: what the process swaps in between leads nowhere else.
"""

import errno
import os
import struct
from collections.abc import Sequence
from typing import Final

from transports.upstream.walls.system_calls import call

__all__ = ["is_within", "open_socket", "resolved"]

_OPEN_HOW: Final = struct.Struct("=QQQ")  # flags, mode, resolve
_NO_MAGIC_LINKS, _NO_SYMLINKS = 0x02, 0x04


def resolved(path: str, thread: int) -> str:
    """The path without links. A relative one begins in the working directory of the thread. Raises `OSError`."""
    if not path.startswith("/"):
        path = os.path.join(os.readlink(f"/proc/{thread}/cwd"), path)
    return os.path.realpath(path)


def is_within(path: str, granted: Sequence[str]) -> bool:
    """True if the resolved path is one of the granted paths or lies below one."""
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in granted)


def open_socket(path: str) -> int:
    """A descriptor that only names the socket (O_PATH). Raises `OSError`: EACCES if the path has a link by now."""
    how = _OPEN_HOW.pack(os.O_PATH | os.O_CLOEXEC, 0, _NO_MAGIC_LINKS | _NO_SYMLINKS)
    try:
        return call("openat2", -1, os.fsencode(path), how, len(how))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES)) from error
        raise
