"""Read the lock of tools: the file with the tools, prompts and resource templates of servers that an operator has
approved (docs/adr/0045-tools-lock.md)."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.protocol.item_digests import digest_of
from gateway.protocol.methods import LOCKED_LISTS

KINDS: Final = (*LOCKED_LISTS.values(),)
VERSION: Final = 1

Items = Mapping[str, Mapping[str, Any]]
"""Items by name; templates by their URI template."""
Lists = Mapping[str, Items]
"""The items of one server, by kind."""

_WHERE: Final = "(gateway.policy.lock)"


@dataclass(frozen=True, slots=True)
class ToolsLock:
    """A lock: the items (tools, prompts and resource templates) of servers that the operator has approved.

    Two locks are equal if their files are: the digest is that of the file's bytes.
    """

    file: str
    digest: str
    servers: Mapping[str, Lists | None] = field(compare=False, repr=False)
    """The approved items by server; None for a server that is deliberately not locked."""
    _digests: Mapping[tuple[str, str, str], str] = field(compare=False, repr=False)
    """The digest of each approved item, by server, kind and name."""

    def __str__(self) -> str:
        return self.file

    def locks(self, server: str) -> bool:
        """Return True if clients get only approved items of the server; False if it is deliberately not locked. A
        server that the lock does not name is locked, without approved items."""
        return self.servers.get(server, {}) is not None

    def item(self, server: str, kind: str, name: str) -> Mapping[str, Any] | None:
        """Return the approved item of a server with this kind (`KINDS`) and name; None if the lock has none."""
        return (self.servers.get(server) or {}).get(kind, {}).get(name)

    def digest_of_tool(self, server: str, name: str) -> str:
        """Return the digest of the approved tool of a server; empty if the lock has no tool of this name."""
        return self._digests.get((server, "tools", name), "")

    def why_absent(self, server: str, kind: str, name: str, digest: str) -> str:
        """Return the reason why an item of this kind (`KINDS`), with this digest, does not exist for clients; empty if
        it is approved, or its server is not locked."""
        if not self.locks(server):
            return ""
        approved = self._digests.get((server, kind, name))
        if approved is not None and approved == digest:
            return ""
        if not name:
            return "the server does not list it"
        if server not in self.servers:
            return f"its server is not in the lock {_WHERE}"
        if approved is None:
            return f"it is not in the lock {_WHERE}"
        if not digest:
            return f"it has more than one form, or one that cannot be compared {_WHERE}"
        return f"it has changed since it was locked {_WHERE}"


def read_lock(file: Path) -> ToolsLock:
    """Return the lock that a file contains.

    Raises:
        ValueError: the file cannot be read, or is none that `lock` has written.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"the file {file} cannot be read: {error.strerror}: write it with `mcp-session-gateway lock`"
        ) from None
    try:
        servers = _servers(json.loads(data, object_pairs_hook=_object))
        digests = {(server, kind, name): digest for server, kind, name, digest in _digests(servers)}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"the file {file} is no lock: {error}") from None
    items = {
        server: lists if lists is None else {kind: _items(entries) for kind, entries in lists.items()}
        for server, lists in servers.items()
    }
    return ToolsLock(str(file), hashlib.sha256(data).hexdigest(), items, digests)


def document(servers: Mapping[str, Lists | None]) -> dict[str, Any]:
    """Return the content of a lock file with the given items of servers (None: the server is not to be locked), as JSON
    types. Raises `ValueError` if an item has no digest."""
    return {
        "version": VERSION,
        "servers": {
            server: lists
            if lists is None
            else {
                kind: {name: {"digest": _digest(item), "item": item} for name, item in lists.get(kind, {}).items()}
                for kind in KINDS
            }
            for server, lists in servers.items()
        },
    }


def _digest(item: Mapping[str, Any]) -> str:
    if not (digest := digest_of(item)):
        raise ValueError("an item cannot be compared")
    return digest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _servers(content: Any) -> Mapping[str, Any]:
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise ValueError(f"its version must be {VERSION}")
    if not isinstance(content.get("servers"), dict):
        raise ValueError("it has no object `servers`")
    return dict(content["servers"])


def _digests(servers: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for server, lists in servers.items():
        for kind, entries in {} if lists is None else lists.items():
            if kind not in KINDS:
                raise ValueError(f"servers.{server}: there is no kind {kind!r}")
            for name, entry in entries.items():
                if entry["digest"] != digest_of(entry["item"]) or not entry["digest"]:
                    raise ValueError(f"servers.{server}.{kind}: the digest of {name!r} is not that of its item")
                yield server, kind, name, entry["digest"]


def _items(entries: Mapping[str, Any]) -> Items:
    return {name: entry["item"] for name, entry in entries.items()}
