"""Leaves out of the grants of a server's code what lies beside the code and is not for the server: files with other
servers' credentials."""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from gateway.sandbox.foreign_files import read_plain
from transports.upstream.walls.paths import is_within
from transports.upstream.walls.spec import Grant

__all__ = ["without_withheld"]

_SERVERS: Final = b'"mcpServers"'
"""What every configuration of MCP servers has in it, whatever its name: the gateway's own, or one of a client."""
_MOST_BYTES: Final = 1 << 20
_PUBLISHED: Final = (".example", ".sample", ".template", ".dist")
_OF_CLIENTS: Final = (".claude", ".cursor", ".gemini", ".roo", ".vscode", ".windsurf", ".zed")
"""Folders in which clients keep their configuration of a project."""
_SERVERS_THERE: Final = (_SERVERS, b'"servers"')  # VS Code's


def without_withheld(grants: Iterable[Grant], meant: Collection[str]) -> tuple[list[Grant], list[str]]:
    """The grants of code, and the files that are left out of them. A folder in which something is withheld may be
    listed, and what else is in it has grants of its own. Looked at are the granted folders and those on the way from
    one to another, such as from a project to a script in it. `meant` are paths that an operator has written down."""
    grants = list(grants)
    granted = {grant.path for grant in grants}
    ways = dict.fromkeys(folder for path in granted for folder in _ways(path, granted))
    withheld = sorted({path for way in ways for path in _withheld_in(way)})
    closed = [path for path in withheld if is_within(path, granted) and not is_within(path, meant)]

    def parts(grant: Grant) -> Iterator[Grant]:
        if is_within(grant.path, closed):
            return
        if is_within(grant.path, meant) or not any(is_within(path, (grant.path,)) for path in closed):
            yield grant
            return
        yield grant._replace(mode="l")
        for name in _entries(grant.path):
            path = os.path.join(grant.path, name)
            if not os.path.islink(path):  # what it leads to has a grant of its own, or none
                yield from parts(grant._replace(path=path))

    return [part for grant in grants for part in parts(grant)], closed


def _ways(path: str, granted: Collection[str]) -> Iterator[str]:
    """The path, and what lies between it and the outermost granted folder above it."""
    above = (path, *map(str, Path(path).parents))
    outermost = max(n for n, folder in enumerate(above) if folder in granted)
    return iter(above[: outermost + 1])


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # no folder, or one that is closed to this user, and so to the server
        return []


def _withheld_in(folder: str) -> Iterator[str]:
    """What is withheld of a folder, without symlinks."""
    for name in _entries(folder):
        if name in (".env", ".envrc") or name.startswith(".env."):
            if not name.endswith(_PUBLISHED):
                yield os.path.realpath(os.path.join(folder, name))
        elif name.endswith(".json"):
            yield from _with_any(os.path.join(folder, name), (_SERVERS,))
        elif name in _OF_CLIENTS:
            inside = os.path.join(folder, name)
            for each in _entries(inside):
                yield from _with_any(os.path.join(inside, each), _SERVERS_THERE)


def _with_any(file: str, words: Iterable[bytes]) -> Iterator[str]:
    """The file without symlinks, if one of the words is in it."""
    path = Path(os.path.realpath(file))
    with contextlib.suppress(OSError):
        content = read_plain(path.parent, path, _MOST_BYTES)
        if any(word in content for word in words):
            yield str(path)
