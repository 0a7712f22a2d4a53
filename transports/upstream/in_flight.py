"""Room to send descriptors through sockets, whatever servers of the same user do.

The kernel counts the descriptors of a user that nobody has received yet, and refuses one more to a process whose own
limit of open files is exceeded. Any process of the user can fill the count up to its own limit, so that of a server is
lower than what its reaper and the gateway may have.
"""

import contextlib
import resource
from collections.abc import Iterator

__all__ = ["below_ours", "raised"]


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """The limit of open files is as high as it may be meanwhile. It is that of all threads, and harms none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # there are systems that do not take their own hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def below_ours(files: int) -> int:
    """The limit of open files of a server behind walls that may have so many."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return files if hard == resource.RLIM_INFINITY else min(files, hard * 3 // 4)
