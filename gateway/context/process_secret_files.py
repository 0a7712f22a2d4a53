"""Keep the secrets of one process in files (`${secret_file:NAME}`), which the process reads whenever it needs them.

Each process has a folder of its own, which its sandbox lets only this process read. Tokens are renewed before each
request and, while a request is under way, before they expire. A token that is refused or revoked has no file.
"""

import asyncio
import contextlib
import itertools
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.context.session_folders import SessionFolders
from session_store.redaction import values_to_redact, without_values
from transports.background_tasks import Tasks
from transports.upstream_port import UpstreamUnavailable

_LONGEST_S: Final = 10.0
"""The most seconds between renewals while a request is under way, because a revoked token must not stay longer."""
_MISSING_S: Final = 1.0
"""Seconds until the next renewal if there is no token."""
_LATE_S: Final = 0.1
"""Seconds until the next renewal if the token is overdue, because another replica is replacing it."""
_HIDDEN: Final = 16
"""The number of newest values of each secret that are redacted in the process's output, because the process may have
read an earlier token."""


@dataclass(frozen=True, slots=True, repr=False)
class CurrentSecrets:
    """Values of secrets by name, and the Unix time from which they have to be renewed."""

    values: Mapping[str, str]
    until: float


class SecretFiles:
    """The files of one process's secrets: they are written at once, and removed by `close`.

    `first`: the values of all files, by the secret's name. `renewed`: the names of the secrets that are renewed.
    `read` returns the present values of these; a file without a value in its result stays as it is. `paths`: the paths
    of the files, by the secret's name. Raises `OSError` if no folder can be made, and `UpstreamUnavailable` if a file
    cannot be written.

    Files are written below an open descriptor of the folder, each under a new name that then replaces the old one. So
    a symlink that the process has put there leads nowhere.
    """

    def __init__(
        self,
        folders: SessionFolders,
        first: CurrentSecrets,
        renewed: Collection[str],
        read: Callable[[], Awaitable[CurrentSecrets]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folders.make()
        self.paths = {name: str(self.folder / str(number)) for number, name in enumerate(first.values)}
        self.renewed = frozenset(renewed)
        self.known: list[str] = []
        self._read, self._discard, self._clock = read, folders.discard, clock
        self._written: dict[str, str] = {}
        self._latest: dict[str, list[str]] = {}
        self._until = first.until
        self._fault: Exception | None = None
        self._begun = self._done = 0  # numbers of renewals
        self._is_needed: Callable[[], bool] = bool
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks("files of secrets")
        self._fd = -1
        try:
            self._fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._write(first.values)
        except BaseException:
            self.close()
            raise

    def hide(self, text: str) -> str:
        """Return `text`, with the present and the latest earlier values of the files redacted. Used on what the process
        writes."""
        return without_values(text, self.known)

    async def renew(self) -> None:
        """Write the present values of renewed secrets to their files. If that fails, remove these files.

        Raises:
            UpstreamUnavailable: there is no value for the principal now, or a file cannot be written.
        """
        if not self.renewed:
            return
        self._begun += 1
        number = self._begun
        try:
            found = await self._read()
            if number > self._done:
                self._done, self._until, self._fault = number, found.until, None
                self._write(found.values)
            elif self._fault is not None:
                raise self._fault
        except Exception as error:
            # Whatever has begun until now counts no more: it may have had the token from before it was refused.
            self._done, self._until, self._fault = self._begun, self._clock() + _MISSING_S, error
            self._remove(self.renewed)
            raise
        finally:
            self._start_timer()

    def renew_while(self, is_needed: Callable[[], bool]) -> None:
        """From now on, renew the files of renewed secrets whenever a renewal is due. If `is_needed` returns False at
        that time, remove these files instead: the next `renew` writes them again."""
        self._is_needed = is_needed
        self._start_timer()

    def _start_timer(self) -> None:
        """Start the timer of the next renewal, unless one runs that ends earlier."""
        if not self.renewed or self._fd < 0:
            return
        loop, left_s = asyncio.get_running_loop(), self._until - self._clock()
        at = loop.time() + min(left_s if left_s > 0 else _LATE_S, _LONGEST_S)
        if self._timer is None or self._timer.when() > at:
            self._stop_timer()
            self._timer = loop.call_at(at, self._renew_if_needed)

    def _renew_if_needed(self) -> None:
        self._timer = None
        if self._is_needed():
            self._tasks.start("renewal", self._renew_quietly)
        else:
            self._remove(self.renewed)  # nobody looks whether it was revoked; the next request renews it

    async def _renew_quietly(self) -> None:
        with contextlib.suppress(UpstreamUnavailable):  # the next request gets the error
            await self.renew()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            if self._fd < 0 or self._written.get(name) == value:
                continue
            former = [given for given in self._latest.get(name, ()) if given != value]
            self._latest[name] = [*former, value][-_HIDDEN:]
            self.known = values_to_redact(itertools.chain(*self._latest.values()))
            try:
                self._replace(os.path.basename(self.paths[name]), value)
            except OSError as error:
                reason = error.strerror or type(error).__name__
                raise UpstreamUnavailable(f"the file of credential {name!r} cannot be written: {reason}") from None
            self._written[name] = value

    def _replace(self, file: str, value: str) -> None:
        data = value.encode("utf-8", "surrogateescape")  # a variable of the gateway may have any bytes
        new = secrets.token_hex(8)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._fd)
        try:
            with open(fd, "wb") as opened:
                opened.write(data)
            os.replace(new, file, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=self._fd)
            raise

    def _remove(self, names: Collection[str]) -> None:
        for name in names if self._fd >= 0 else ():
            self._written.pop(name, None)
            with contextlib.suppress(OSError):
                os.unlink(os.path.basename(self.paths[name]), dir_fd=self._fd)

    def close(self) -> None:
        """Remove the files and their folder. Idempotent."""
        self._stop_timer()
        if (renewal := self._tasks.running("renewal")) is not None:
            renewal.cancel()
        if self._fd >= 0:
            self._remove(self.paths)
            os.close(self._fd)
            self._fd = -1
        self._discard(self.folder)
