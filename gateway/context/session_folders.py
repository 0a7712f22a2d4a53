"""Create temporary folders for this process and its sessions, which only the user of this process can enter.

A session has one folder for all its servers, and one for each server that runs in a sandbox. They are removed when the
session ends on this replica. A process with files of secrets has a folder for them, which ends with it. A gateway
process that was killed leaves its folders behind: the next one on the machine finds that their lock is free, and
removes them.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import stat
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from typing import Final

from transports.background_tasks import Tasks
from transports.upstream_port import UpstreamUnavailable

logger = logging.getLogger(__name__)

_LONGEST_BASE: Final = 50
"""Longest path of the system's temporary folder that is used, in characters. The path of a Unix socket has 107 bytes at
most (Linux, unix(7))."""
_PRIVATE: Final = 0o700
_THREADS: Final = 2
"""Number of threads that remove folders. They do nothing else, because a server may leave millions of files."""
_AT_ONCE: Final = 1_000
"""Maximum number of folder entries that are listed at once, before these are removed."""


def no_folder(error: OSError) -> UpstreamUnavailable:
    """Return the error for a server that cannot start because its session's folder cannot be created. `error` is the
    reason."""
    return UpstreamUnavailable(f"no folder for the session: {error.strerror or error}")


class SessionFolders:
    """The temporary folders of one gateway process: one for sockets, and those of its sessions."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock = -1
        self._uses: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._own: dict[str, dict[str, Path]] = {}
        self._numbers = count()
        self._tasks = Tasks("session folders")
        self._threads = ThreadPoolExecutor(_THREADS, "session-folders")

    def _opened(self) -> Path:
        """Return the folder of this process; create it if there is none. Raises `OSError`."""
        if self._folder is None:
            base = os.path.realpath(tempfile.gettempdir())  # nothing resolves these paths later
            root = _root(Path(base if len(base) <= _LONGEST_BASE else os.path.realpath("/tmp")))
            while not self._take(root, secrets.token_hex(4)):
                pass
        assert self._folder is not None
        return self._folder

    def _take(self, root: Path, name: str) -> bool:
        """Create the folder `name` in `root`, and lock it as the folder of this process. Return False if another
        process, which removes old folders, has the lock: the caller then tries another name.

        The lock is taken first, because other processes remove a folder whose lock is free.
        """
        path = root / f"{name}.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _is_held(lock, path):
            os.close(lock)
            return False
        folder = root / name
        try:
            for one in (folder, folder / "s", folder / "t", folder / "o", folder / "f"):
                one.mkdir(mode=_PRIVATE)
        except OSError:
            os.close(lock)
            raise
        self._lock, self._folder = lock, folder
        return True

    @property
    def sockets(self) -> Path:
        """Return the folder for sockets. Raises `OSError` if it cannot be created."""
        return self._opened() / "s"

    def path(self, session_id: str) -> Path:
        """Return the path of a session's folder, which may not exist yet. Raises `OSError` if no folder can be
        created."""
        return self._opened() / "t" / hashlib.blake2b(session_id.encode(), digest_size=12).hexdigest()

    def use(self, session_id: str) -> None:
        """Create the folder of a session if there is none, and count one more link that uses it. Raises `OSError`."""
        self.path(session_id).mkdir(mode=_PRIVATE, exist_ok=True)
        self._count(session_id)

    def use_own(self, session_id: str, server: str) -> Path:
        """Return the folder that only one server uses in a session, with `home` and `tmp` in it; create it if there is
        none. Count one more link that uses it. The session id is empty for processes that belong to no session. Raises
        `OSError`."""
        folders = self._own.setdefault(session_id, {})
        own = folders.get(server)
        if own is None:
            # Short: browsers have sockets in folders below it, and the path of a socket has 107 bytes.
            own = self._opened() / "o" / f"{next(self._numbers):x}"
            for one in (own, own / "home", own / "tmp"):
                one.mkdir(mode=_PRIVATE)
            folders[server] = own
        self._count(session_id)
        return own

    def _count(self, session_id: str) -> None:
        self._ended.discard(session_id)
        self._uses[session_id] += 1

    def release(self, session_id: str) -> None:
        """Record that a link of the session has ended. After the last link of a session that was passed to `forget`,
        remove the session's folders."""
        self._uses[session_id] -= 1
        if self._uses[session_id] <= 0:
            del self._uses[session_id]
            if session_id in self._ended:
                self._remove(session_id)

    def forget(self, session_id: str) -> None:
        """Remove the folders of a session that this process no longer serves, once its last link has ended."""
        if self._folder is None:
            return
        if session_id in self._uses:
            self._ended.add(session_id)
        else:
            self._remove(session_id)

    def _remove(self, session_id: str) -> None:
        self._ended.discard(session_id)
        for folder in (self.path(session_id), *self._own.pop(session_id, {}).values()):
            self.discard(folder)

    def make(self) -> Path:
        """Create a folder for the files of one process, and return its path. Pass it to `discard` afterwards. Raises
        `OSError`."""
        folder = self._opened() / "f" / secrets.token_hex(8)
        folder.mkdir(mode=_PRIVATE)
        return folder

    def discard(self, folder: Path) -> None:
        """Remove a folder with all that is in it, if it exists."""
        gone = folder.with_name(f"{secrets.token_hex(6)}.gone")
        try:
            folder.rename(gone)  # at once: the session may come back and get a new folder
        except OSError:
            return
        self._tasks.spawn(self._deleted(gone))

    async def _deleted(self, folder: Path) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, _delete, folder)

    async def close(self) -> None:
        """Remove all folders of this process."""
        await self._tasks.settled()
        folder, self._folder = self._folder, None
        if folder is not None:
            await self._deleted(folder)
            folder.with_suffix(".lock").unlink(missing_ok=True)
            os.close(self._lock)

    async def clean(self) -> None:
        """Remove the folders of earlier gateway processes of this user that were killed."""
        await asyncio.to_thread(self._clean)

    def _clean(self) -> None:
        try:
            for path in self._opened().parent.glob("*.lock"):
                if path.stem != self._opened().name:
                    _delete_if_free(path)
        except OSError as error:
            logger.warning("folders of earlier processes could not be removed: %s", error)


def _root(base: Path) -> Path:
    """Return the folder for all gateway processes of this user. If another user has created it or may enter it, return
    a new folder instead."""
    root = base / f"mcp-session-gateway-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=_PRIVATE)
    found = root.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return root
    logger.warning("%s belongs to somebody else or is open to others: folders are made elsewhere", root)
    return Path(tempfile.mkdtemp(prefix="mcp-session-", dir=base))


def _is_held(lock: int, path: Path) -> bool:
    """Try to lock a file. Return True if this process now has the lock, and the file is still at the path."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(lock).st_ino == path.stat().st_ino
    except OSError:
        return False


def _delete_if_free(path: Path) -> None:
    """Delete the folder of an earlier gateway process and its lock file, which is at `path`. Do nothing if the lock is
    held, because the process still runs."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if _is_held(lock, path):
            _delete(path.with_suffix(""))
            if not path.with_suffix("").exists():  # otherwise the next start tries again
                path.unlink(missing_ok=True)
    finally:
        os.close(lock)


def _delete(folder: Path) -> None:
    """Delete a folder with all files that servers have left in it. No server may use the folder any more."""
    try:
        if folder.is_symlink():  # a server without a sandbox has put it there
            folder.unlink()
            return
        _empty(folder)
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("%s could not be removed: %s", folder, error.strerror)


def _empty(folder: Path) -> None:
    """Remove the contents of a folder. Restore permissions that a server took away. Each subfolder is moved into one
    common folder before it is emptied, so that no path becomes too long and few file descriptors are open. Raises
    `OSError`."""
    folder.chmod(_PRIVATE)
    together, numbers = folder / secrets.token_hex(6), count()
    together.mkdir(mode=_PRIVATE)
    waiting = [folder]
    while waiting:
        emptied = waiting.pop()
        while found := _some_of(emptied, but=together.name):
            for one in found:
                if one.is_dir(follow_symlinks=False):
                    os.chmod(one.path, _PRIVATE)
                    waiting.append(together / str(next(numbers)))
                    os.rename(one.path, waiting[-1])
                else:
                    os.unlink(one.path)
        if emptied != folder:
            emptied.rmdir()
    together.rmdir()


def _some_of(folder: Path, *, but: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(islice((one for one in entries if one.name != but), _AT_ONCE))
