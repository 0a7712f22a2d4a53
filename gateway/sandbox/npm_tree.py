"""The packages that npm has installed in one tree, as it has noted them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.sandbox.foreign_files import read_plain
from gateway.sandbox.package_run import FetchFailed

__all__ = ["name_in", "packages_of"]

_MAX_LOCK: Final = 64 << 20


class _Lock(msgspec.Struct):
    """The part of npm's file that is used: packages by their place in the tree."""

    packages: dict[str, dict[str, Any]]


_lock: Final = msgspec.json.Decoder(_Lock)


def packages_of(tree: Path, copy: Path) -> dict[str, dict[str, Any]]:
    """The packages of a tree by their place in it, as npm has noted them. Scripts of another tree may have run."""
    try:
        found = read_plain(copy, tree / "node_modules" / ".package-lock.json", _MAX_LOCK)
        return _lock.decode(found).packages
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise FetchFailed(f"what npm has noted of its packages cannot be read: {error}") from None


def name_in(place: str, package: Mapping[str, Any]) -> str:
    """How npm is told of one package of a tree."""
    name = package.get("name") or place.rpartition("node_modules/")[2]
    return f"{name}@{package['version']}"
