"""The files with which one can be any session: the gateway's keys and its store. No server may read them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gateway.config.keyring import key_file
from gateway.config.settings import GatewaySettings
from session_store.sqlite import KEY_FILE_ENDING
from transports.upstream.walls.spec import Walls

__all__ = ["opened", "own_files"]


def own_files(options: GatewaySettings) -> list[Path]:
    """The gateway's keys, and its store if that is a file, with those that SQLite writes beside it. They may not exist
    yet."""
    kind, _, path = options.store.partition(":///")
    store = []
    if kind == "sqlite" and path:
        database = os.path.realpath(path)  # SQLite, too, follows links before it names the files beside it
        store = [path, f"{path}{KEY_FILE_ENDING}", *(f"{database}{ending}" for ending in ("-wal", "-shm", "-journal"))]
    named = (key_file(), Path(options.store_file) if options.store_file else None, *map(Path, store))
    return [file for file in named if file is not None]


def opened(walls: Walls | None, files: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """The files that may be read, each with the path of a grant that opens it. Files and folders are compared by what
    they are (device and inode) as well as by path: the kernel grants a folder wherever it is mounted, and a file under
    each of its hard links."""
    by_path = {} if walls is None else {grant.path: grant.path for grant in walls.grants if grant.mode != "l"}
    by_inode: dict[tuple[int, int] | None, str] = {inode: path for path in by_path if (inode := _inode(path))}
    for file in files:
        real = Path(os.path.realpath(file))
        for one in map(str, (real, *real.parents)):
            if grant := by_path.get(one) or by_inode.get(_inode(one)):
                yield grant, file
                break


def _inode(path: str) -> tuple[int, int] | None:
    """None for what is not there, or may not be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
