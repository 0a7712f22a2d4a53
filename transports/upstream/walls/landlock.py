"""Restrict by Landlock which files a server may use. A process restricts itself, and its descendants inherit that.

Landlock does not restrict looking up a file (stat) or changing its attributes (chmod). The gate decides these changes.
"""

import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from transports.upstream.walls.raw_system_calls import call
from transports.upstream.walls.resolved_paths import open_path
from transports.upstream.walls.wall_specification import MODES, Grant

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8
_MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = 1 << 9, 1 << 10, 1 << 11, 1 << 12
_REFER: Final = 1 << 13  # to link or rename between folders. A kernel that does not know the right refuses both
_TRUNCATE: Final = 1 << 14
_IOCTL_DEVICE: Final = 1 << 15
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1

_LAST_FILE_RIGHT: Final = {1: _MAKE_SYM, 2: _REFER, 3: _TRUNCATE, 4: _TRUNCATE}  # by ABI; later ones: _IOCTL_DEVICE
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_ALLOWED: Final = {
    "l": _READ_DIR,
    "r": _READ_FILE | _READ_DIR,
    "w": _WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK
    | _MAKE_FIFO | _MAKE_SYM | _REFER,
    "x": _EXECUTE,
}  # fmt: skip
"""The Landlock rights for each letter of a grant's mode. No letter allows making devices."""
_RIGHTS: Final = {mode: sum(_ALLOWED[letter] for letter in mode) for mode in MODES}

_VERSION: Final = 1  # a flag of landlock_create_ruleset
_PATH_BENEATH, _NET_PORT = 1, 2
_RULE: Final = struct.Struct("=Qi")  # rights, descriptor


def abi() -> int:
    """Return the version of Landlock in this kernel; 0 if there is none, or it is switched off."""
    with suppress(OSError):
        return call("landlock_create_ruleset", None, 0, _VERSION)
    return 0


def ruleset(grants: Iterable[Grant], *, version: int, listen: Iterable[int] | None, connects: bool) -> int:
    """Return the descriptor of a new ruleset, which does not restrict any process yet. It allows granted files only. It
    allows signals and connections to abstract sockets only between processes that it restricts. The caller owns it.

    `version` is what `abi()` returns. `listen` has the TCP ports to bind (None: any). `connects`: True if the process
    may connect by TCP.

    Raises:
        OSError: as for `allow`.
    """
    files = _files(version)
    network = (_BIND_TCP * (listen is not None) | _CONNECT_TCP * (not connects)) if version >= 4 else 0
    scoped = _ABSTRACT_SOCKETS | _SIGNALS if version >= 6 else 0
    handled = struct.pack("=QQQ", files, network, scoped)[: 8 if version < 4 else 16 if version < 6 else 24]
    made = call("landlock_create_ruleset", handled, len(handled), 0)
    try:
        allow(made, grants, version=version)
        for port in listen or () if network & _BIND_TCP else ():
            call("landlock_add_rule", made, _NET_PORT, struct.pack("=QQ", _BIND_TCP, port), 0)
    except BaseException:
        os.close(made)
        raise
    return made


def allow(ruleset: int, grants: Iterable[Grant], *, version: int) -> None:
    """Add grants to a ruleset. They cannot be removed again.

    Raises:
        OSError: a granted path (the error's file name) is missing or leads through a symlink, or the kernel refuses.
    """
    files = _files(version)
    for grant in grants:
        _allow(ruleset, grant, files)


def restrict(ruleset: int) -> None:
    """Restrict this process by the ruleset, for good. `no_new_privs` must be set. Raises `OSError`."""
    call("landlock_restrict_self", ruleset, 0)


def _files(version: int) -> int:
    return 2 * _LAST_FILE_RIGHT.get(version, _IOCTL_DEVICE) - 1


def _allow(ruleset: int, grant: Grant, handled: int) -> None:
    try:
        target = open_path(grant.path)
    except FileNotFoundError:
        if grant.optional:
            return
        raise
    try:
        rights = handled & _RIGHTS[grant.mode]
        if not stat.S_ISDIR(os.fstat(target).st_mode):
            rights &= _OF_FILES
        call("landlock_add_rule", ruleset, _PATH_BENEATH, _RULE.pack(rights, target), 0)
    except OSError as error:
        raise OSError(error.errno, error.strerror, grant.path) from None
    finally:
        os.close(target)
