"""Who is ended first when memory runs out: servers behind walls with their reapers, before the gateway. For
`fork_server.py`.

A process inherits the score. So the fork server takes that of a server for the moment of the fork, which is two writes
to a file that it holds open: a new process would have to open its own.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Final

__all__ = ["OOM_SCORE", "OomScore"]

OOM_SCORE: Final = 500
"""Of 1000."""


class OomScore:
    """The score of this process. A process that cannot look into itself in /proc any more has to make it before."""

    def __init__(self) -> None:
        self._error: OSError | None = None
        try:
            self._file = os.open("/proc/self/oom_score_adj", os.O_RDWR)
            self._own = int(os.read(self._file, 16))
        except OSError as error:
            self._error = error

    def fork(self, fork: Callable[[], int]) -> int:
        """Fork a process that is ended first, as are those that it starts. Raises `OSError`."""
        if self._error is not None:
            raise self._error
        self._write(max(self._own, OOM_SCORE))
        pid = -1
        try:
            pid = fork()
        finally:
            if pid == 0:
                os.close(self._file)  # it is that of the parent
            else:
                with contextlib.suppress(OSError):  # this process may keep the higher one then
                    self._write(self._own)
        return pid

    def _write(self, score: int) -> None:
        os.write(self._file, b"%d" % score)
