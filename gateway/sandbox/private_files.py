"""Name the files of the gateway that no sandbox may open, and find the grants that would open them."""

import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from gateway.config.secrets import key_file
from gateway.config.settings import GatewaySettings
from session_store.connect import sqlite_path
from session_store.sqlite import KEY_FILE_ENDING
from session_store.sqlite.database import LOCK_FILE_ENDING
from transports.upstream.walls.resolved_paths import is_within
from transports.upstream.walls.wall_specification import Walls

_PLACEHOLDER: Final = re.compile(r"\{(?:subject|issuer)\}")


def own_files(options: GatewaySettings) -> list[Path]:
    """Return the gateway's files that no server may read. Some give access to all sessions: the gateway's keys, the
    file with the store's URL, the files of a SQLite store, and the keys for Redis and for TLS between replicas. The
    others are the file of audit events, and the files of secrets, whose paths may contain `{subject}`. The files may
    not exist yet."""
    named = (
        key_file(),
        Path(options.store_file) if options.store_file else None,
        options.audit.file,
        *map(Path, _files_of_store(options.store)),
        options.peer_tls.certificate,  # it may have its key in it
        options.peer_tls.key,
        *(file for secret in options.secrets.values() for file in secret.files),
    )
    return [file for file in named if file is not None]


def _files_of_store(store: str) -> list[str]:
    url = urlsplit(store)
    if url.scheme != "sqlite":
        return [path for name, path in parse_qsl(url.query) if name in ("ssl_keyfile", "ssl_certfile")]
    if (path := str(sqlite_path(store))) == ".":
        return []
    database = os.path.realpath(path)  # SQLite, too, follows links before it names the files beside it
    beside = (f"{database}{ending}" for ending in ("-wal", "-shm", "-journal"))
    return [path, f"{path}{KEY_FILE_ENDING}", f"{path}{LOCK_FILE_ENDING}", *beside]


def with_link_targets(files: Iterable[Path]) -> list[Path]:
    """Return the files. If the path of a file contains `{subject}` or `{issuer}`, also return the targets of the
    symlinks at such paths: a grant could name the target without the symlink."""
    found = dict.fromkeys(files)
    for file in [*found]:
        if (template := PrincipalsFile.of(str(file))) is not None:
            found |= dict.fromkeys(map(Path, template.link_targets()))
    return [*found]


class PrincipalsFile:
    """A file that exists once for each principal: its path, without symlinks, contains `{subject}` or `{issuer}`. Any
    name in place of these counts as the name of a principal."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._depth = path.count("/")
        pattern = ""
        for part in reversed(path.split("/")[1:]):
            pattern = f"/{'[^/]+'.join(map(re.escape, _PLACEHOLDER.split(part)))}(?:{pattern})?"
        self._pattern = re.compile(pattern)

    @classmethod
    def of(cls, path: str) -> "PrincipalsFile | None":
        """Return the `PrincipalsFile` with this path; None if all principals share the file."""
        real = os.path.realpath(path)
        return cls(real) if _PLACEHOLDER.search(real) else None

    def is_below(self, folder: str) -> bool:
        """Return True if the file of a principal may lie below this folder."""
        return folder.count("/") < self._depth and self._pattern.fullmatch(folder) is not None

    def may_be(self, path: str) -> bool:
        """Return True if the path may be the file of some principal: it fits the pattern, and is no folder."""
        is_deep = path.count("/") == self._depth
        return is_deep and self._pattern.fullmatch(path) is not None and not os.path.isdir(path)

    def link_targets(self) -> Iterator[str]:
        """Yield the target of each existing file of a principal that is a symlink to another place. If the target has
        the same name in a folder beside the symlink, as in mounted secrets of Kubernetes, yield its path with the
        placeholder in place of the name: files of further principals will be there."""
        folder = os.path.dirname(_PLACEHOLDER.split(self._path)[0] + "x")
        for path in glob.iglob("*".join(map(glob.escape, _PLACEHOLDER.split(self._path)))):
            target = os.path.realpath(path)
            if not self.may_be(target) and not os.path.isdir(target):
                where, name = os.path.split(target)
                is_kept_within = name == os.path.basename(path) and is_within(target, (folder,))
                yield os.path.join(where, os.path.basename(self._path)) if is_kept_within else target


def opened(walls: Walls | None, files: Collection[Path], mode: str = "r") -> Iterator[tuple[str, Path]]:
    """Yield pairs of the path of a grant in `walls` and one of the `files` that this grant opens. `mode` says for what
    the grant opens it: "r" for reading, "w" for writing. Files and folders are also compared by device and inode,
    because the kernel grants a folder at each of its mounts, and a file under each of its hard links. Of several grants
    that open a file, the path is that of the nearest one: the file itself, else the deepest folder."""
    if walls is None or not files:
        return
    granted = dict.fromkeys(grant.path for grant in walls.grants if mode in grant.mode)
    by_inode: dict[tuple[int, int] | None, str] = {inode: path for path, inode in _inodes(granted).items()}
    for file in files:
        real = Path(os.path.realpath(file))
        around = [str(real), *map(str, real.parents)]
        inodes = _inodes(around)
        found = (path if path in granted else by_inode.get(inodes.get(path)) for path in around)
        grant = next(filter(None, found), None)
        if grant is None and (template := PrincipalsFile.of(str(real))) is not None:
            grant = next((path for path in granted if template.is_below(path) or template.may_be(path)), None)
        if grant is not None:
            yield grant, file


def _inodes(paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the device and inode of each of the paths that exists."""
    found = {}
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        found[path] = status.st_dev, status.st_ino
    return found
