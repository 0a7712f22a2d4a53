"""Read and write files in a folder that untrusted programs have written to, without following symlinks out of the
folder. The programs no longer run."""

import errno
import os
import stat
from pathlib import Path

from transports.upstream.walls.resolved_paths import is_within


def has_no_links(folder: Path, path: Path) -> bool:
    """Return whether `path` is below `folder`, and none of the folders between them is a symlink. `path` itself may be
    one."""
    real = os.path.realpath(folder)
    parent = os.path.normpath(os.path.join(real, os.path.relpath(path.parent, folder)))
    return is_within(parent, (real,)) and os.path.realpath(path.parent) == parent


def read_plain(folder: Path, path: Path, most: int) -> bytes:
    """Return the content of a file below `folder`.

    Raises:
        OSError: the file does not exist (FileNotFoundError), is no regular file of at most `most` bytes, or a symlink
            leads to it.
    """
    if not has_no_links(folder, path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    # Without waiting: a named pipe that nobody writes to would hold up the reader for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most:
            raise OSError(errno.EINVAL, f"no file of at most {most} bytes", str(path))
        return file.read(most + 1)[:most]


def write_new(folder: Path, path: Path, content: str) -> None:
    """Write a new file below `folder`. Replace a file or symlink at its path.

    Raises:
        OSError: there is a folder at its path, or a symlink leads to its folder.
    """
    if not has_no_links(folder, path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
