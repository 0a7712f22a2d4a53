"""List the system's paths that every sandboxed process may use, and the folders that are too broad to be granted unless
an operator lists them."""

import functools
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Final

from transports.upstream.walls.wall_specification import Grant

_PROGRAMS: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"),
    *("/nix/store", "/run/current-system/sw", "/gnu/store", "/snap", "/home/linuxbrew/.linuxbrew"),
)
"""Folders of programs and libraries, also those of package managers."""

_CONFIGURATION: Final = (
    # names of users, hosts and services
    *("passwd", "group", "nsswitch.conf", "hosts", "host.conf", "resolv.conf", "gai.conf", "services", "protocols"),
    *("networks", "hostname", "ethertypes", "rpc"),
    # the dynamic linker
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "ld-musl-x86_64.path", "ld-musl-aarch64.path"),
    # locale and time
    *("localtime", "timezone", "locale.alias", "locale.conf", "default/locale", "zoneinfo"),
    # certificate authorities, never the keys beside them
    *(
        "ssl/certs",
        "ssl/cert.pem",
        "ssl/ca-bundle.pem",
        "ssl/openssl.cnf",
        "ca-certificates",
        "ca-certificates.conf",
    ),
    *("pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust", "crypto-policies"),
    # what runtimes and browsers read
    *("alternatives", "fonts", "mime.types", "magic", "os-release", "lsb-release", "debian_version"),
    *("alpine-release", "redhat-release", "gitconfig", "terminfo", "inputrc", "bash.bashrc", "profile.d"),
    *("chromium", "chromium.d", "ImageMagick-6", "ImageMagick-7", "java", "dotnet", "vulkan", "papersize"),
    # Java of Debian and Ubuntu: all but `management`, where operators put passwords
    *("java-*-openjdk/security", "java-*-openjdk/*.properties", "java-*-openjdk/*.cfg"),
)
"""Files in /etc that programs of all kinds read, with glob patterns. None of them contains a secret."""

_FACTS: Final = (
    *("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup"),
    *("/sys/kernel/mm/transparent_hugepage", "/var/cache/fontconfig", "/run/systemd/resolve/stub-resolv.conf"),
)
"""Files from which runtimes read the machine's processors and the limits of their container."""

_DEVICES: Final = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))

_MOST_PARTS: Final = 400
"""The most parts of a path, including the parts of symlinks in it."""
_BROAD: Final = frozenset(
    "/ /bin /boot /dev /etc /home /lib /lib64 /opt /proc /root /run /sbin /sys /tmp /usr /usr/local /var /var/lib "
    "/var/log /var/run /var/spool /var/tmp /Users".split()
)
_BROAD_IN_HOME: Final = frozenset({"", ".config", ".local", ".local/share", ".local/state", ".cache", ".ssh", ".gnupg"})


def real(path: str) -> str:
    """Return the path without symlinks. The path need not exist."""
    return os.path.realpath(path)


class OwnLink(Exception):
    """A path leads through a symlink that a session could have made. The message is the path of the symlink."""


def followed(path: str) -> str:
    """Return an absolute path without symlinks. A symlink that this process's user owns is followed only if it is in a
    broad folder (`is_broad`). Elsewhere, a session could have made the symlink, to be granted its target.

    Raises:
        OwnLink: the path leads through a symlink that is not followed.
    """
    found, rest = "/", path.split("/")[::-1]
    for _ in range(_MOST_PARTS):
        if not rest:
            return found
        part = rest.pop()
        if part in ("", ".", ".."):
            found = os.path.dirname(found) if part == ".." else found
            continue
        step = os.path.join(found, part)
        try:
            is_link = stat.S_ISLNK((status := os.lstat(step)).st_mode)
        except OSError:  # nothing is there, or nothing that this process may see
            return os.path.join(step, *rest[::-1])
        if not is_link:
            found = step
            continue
        if status.st_uid == os.geteuid() and not is_broad(found):
            raise OwnLink(step)
        target = os.readlink(step)
        found = "/" if target.startswith("/") else found
        rest += target.split("/")[::-1]
    raise OwnLink(path)  # links that lead to each other


def system_grants(etc: str = "/etc") -> Iterator[Grant]:
    """Yield the grants that every sandboxed process has. /proc is one of them: the kernel itself denies access to
    environment, memory and descriptors of processes outside of the sandbox."""
    configuration = [f"{etc}/{found}" for name in _CONFIGURATION for found in sorted(glob(name, root_dir=etc))]
    for paths, mode in ((_PROGRAMS, "rx"), (configuration, "r"), (_FACTS, "r"), (_DEVICES, "rw"), (("/proc",), "r")):
        for path in paths:
            if os.path.exists(path):
                yield Grant(path=real(path), mode=mode, optional=True)


def is_of_system(path: str) -> bool:
    """Return whether a path without symlinks is in a system folder of programs, which every sandboxed process may read
    and execute."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in (*_PROGRAMS, *map(real, _PROGRAMS)))


def is_broad(path: str) -> bool:
    """Return whether a folder contains so much that it is granted only if an operator lists it in `read` or `write`:
    folders of the system, home folders, and the folders around the folders of sessions."""
    return path in _broad(os.environ.get("HOME", ""), tempfile.gettempdir())


@functools.lru_cache(maxsize=8)
def _broad(home: str, temporary: str) -> frozenset[str]:
    """Return the broad folders of this machine (`is_broad`). `home` is the gateway's HOME. `temporary` is the folder in
    which the folders of sessions are made (`gateway.context.session_folders`)."""
    users = (user.pw_dir for user in pwd.getpwall() if user.pw_uid == 0 or user.pw_uid >= 1_000)
    homes = dict.fromkeys(filter(None, (home, *users)))
    of_homes = (real(os.path.join(one, part)) for one in homes for part in _BROAD_IN_HOME)
    sessions = Path(real(temporary))
    return frozenset((*_BROAD, *map(real, _BROAD), *of_homes, *map(str, (sessions, *sessions.parents))))
