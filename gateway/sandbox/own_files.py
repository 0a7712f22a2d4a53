"""The files with which one can be any session: the gateway's keys and its store. No server may read them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gateway.config.keyring import key_file
from gateway.config.settings import GatewaySettings
from session_store.sqlite import KEY_FILE_ENDING
from transports.upstream.walls.spec import Walls

__all__ = ["grant_of", "opened", "own_files"]


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


def grant_of(walls: Walls | None, file: Path) -> str:
    """The path of a grant with which the file may be read; empty if there is none."""
    granted = () if walls is None else {grant.path for grant in walls.grants}
    path = Path(os.path.realpath(file))
    return next((str(one) for one in (path, *path.parents) if str(one) in granted), "")


def opened(walls: Walls | None, files: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """The files that may be read, each with the path of the grant that opens it."""
    return ((grant, file) for file in files if (grant := grant_of(walls, file)))
