"""Who is ended first when memory runs out: servers behind walls with their reapers, before the gateway. For
`fork_server.py`.

A process inherits the score. So the fork server takes that of a server for the moment of the fork, which is two writes
to a file that it holds open: a new process would have to open its own.
"""

import contextlib
import os
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

    def raise_(self) -> None:
        """Processes that are forked from now on are ended first. Raises `OSError` if that cannot be."""
        if self._error is not None:
            raise self._error
        self._write(max(self._own, OOM_SCORE))

    def lower(self) -> None:
        """This process has its own score again. Not to be called in a forked one: the file is that of its parent."""
        if self._error is None:
            with contextlib.suppress(OSError):  # it may keep the higher one then
                self._write(self._own)

    def close(self) -> None:
        """In a forked process."""
        if self._error is None:
            os.close(self._file)

    def _write(self, score: int) -> None:
        os.write(self._file, b"%d" % score)
