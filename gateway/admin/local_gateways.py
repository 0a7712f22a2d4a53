"""Let a user's commands find the gateways that the same user runs on this machine, and an operator's key for each.

A gateway that was started at a terminal writes a file with its addresses and a key. The file is in the runtime folder
of its user, which nobody else can enter. The gateway locks the file while it runs; the kernel releases the lock however
the gateway ends. Symlinks are not followed, and files that others could write are ignored.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gateway.config.addresses import is_loopback
from transports.jsonrpc import UNREADABLE

_NAME: Final = "mcp-session-gateway"
_PREFIX, _SUFFIX = "gateway-", ".json"
_MOST_BYTES: Final = 4_096
_MOST_FILES: Final = 256
_OPEN: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class LocalGateway(msgspec.Struct, frozen=True, kw_only=True):
    """A running gateway of this user on this machine, as it describes itself in its file: its addresses, and an
    operator's key for commands."""

    url: str
    """The operators' URL, without a path."""
    endpoint: str
    """The clients' URL."""
    key: str
    """An operator's key."""
    pid: int
    network: int
    """The network namespace in which the two URLs are valid (`network_namespace`)."""
    config: str = ""
    """The path of its configuration file; empty if it has none, or if its version is too old to say."""

    def is_at(self, url: str) -> bool:
        """Return True if `url` leads to this gateway: it is a loopback URL, and has scheme and port of one of the
        gateway's URLs."""
        return _place(url) in (_place(self.url), _place(self.endpoint))


def _place(url: str) -> tuple[str, int | None]:
    """Return what identifies a server on this machine: scheme and port of a loopback URL. For any other URL, return the
    URL itself and None, so that it equals no loopback URL."""
    try:
        parts = urlsplit(url)
        return (parts.scheme, parts.port) if is_loopback(parts.hostname or "") else (url, None)
    except ValueError:
        return (url, None)


def network_namespace() -> int:
    """Return the number of this process's network namespace; 0 if the system has none. Containers may share the runtime
    folder, but a loopback address means another gateway in each of them."""
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


def runtime_folder() -> Path:
    """Return the folder in which gateways write their files. It may not exist yet.

    It is a subfolder of `XDG_RUNTIME_DIR` or, failing that, of `/run/user/UID`: the first that exists and that only
    this user can enter. If neither is suitable, it is a folder in `/tmp` with the user's number in its name.
    """
    user = os.geteuid()
    for base in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{user}"):
        if base.startswith("/"):
            with contextlib.suppress(OSError):
                os.close(_entered(Path(base)))
                return Path(base, _NAME)
    return Path("/tmp", f"{_NAME}-{user}")


def _entered(folder: Path) -> int:
    """Open a folder that only this user can enter or change, and return its descriptor. Raises `OSError` for other
    folders."""
    descriptor = os.open(folder, _OPEN | os.O_DIRECTORY)
    try:
        _refuse_foreign(os.fstat(descriptor), str(folder))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_foreign(found: os.stat_result, name: str) -> None:
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(errno.EPERM, "belongs to somebody else, or is open to others", name)


@contextlib.contextmanager
def announced(gateway: LocalGateway, folder: Path | None = None) -> Iterator[None]:
    """Write the file by which commands find this gateway, and remove it at the end of the block. `folder`: where the
    file is written; None for `runtime_folder`. Raises `OSError` if it cannot be written safely."""
    place = runtime_folder() if folder is None else folder
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack:
        directory = _entered(place)
        stack.callback(os.close, directory)
        name = f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
        unlocked = f".{name}"  # readers take a file without a lock for one that a dead gateway has left behind
        file = os.open(unlocked, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=directory)
        stack.callback(os.close, file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(file, msgspec.json.encode(gateway))
            os.rename(unlocked, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            os.unlink(unlocked, dir_fd=directory)
            raise
        stack.callback(_remove, name, directory)
        yield


def _remove(name: str, directory: int) -> None:
    with contextlib.suppress(OSError):  # somebody has cleaned up
        os.unlink(name, dir_fd=directory)


def local_gateways(folder: Path | None = None) -> list[LocalGateway]:
    """Return the running gateways of this user on this machine, sorted by URL. Remove the files of dead gateways.
    `folder`: where their files are; None for `runtime_folder`."""
    try:
        directory = _entered(runtime_folder() if folder is None else folder)
    except OSError:
        return []
    try:
        names = sorted(name for name in os.listdir(directory) if name.startswith(_PREFIX) and name.endswith(_SUFFIX))
        found = [_read(name, directory) for name in names[:_MOST_FILES]]
    finally:
        os.close(directory)
    return sorted((one for one in found if one is not None), key=lambda one: one.url)


def _read(name: str, directory: int) -> LocalGateway | None:
    """Return the gateway that the file `name` in the open folder `directory` describes. Return None if the file is
    unreadable, or if the gateway is in another network namespace or dead; the file of a dead gateway is removed."""
    try:
        file = os.open(name, os.O_RDONLY | _OPEN, dir_fd=directory)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        _refuse_foreign(found, name)
        if not stat.S_ISREG(found.st_mode) or not _is_held(file):
            _remove(name, directory)
            return None
        one = msgspec.json.decode(os.read(file, _MOST_BYTES), type=LocalGateway)
    except (OSError, *UNREADABLE):
        return None
    finally:
        os.close(file)
    is_here = one.network == network_namespace() and _place(one.url)[0] == "http" and _place(one.endpoint)[0] == "http"
    return one if is_here else None


def _is_held(file: int) -> bool:
    """Return True if another process holds the lock of the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
