"""Tell operators which listed tools, prompts and templates the lock hides (docs/adr/0045-tools-lock.md)."""

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from cachetools import LRUCache

from gateway.observability.audit import Audit
from gateway.observability.escaped_text import shortened_line
from gateway.policy.decisions import Policy
from gateway.protocol.item_digests import compared_part
from transports.jsonrpc import encode

logger = logging.getLogger(__name__)

_HELD_BYTES: Final = 4 << 20
_MOST_NAME: Final = 128
_NAMES_OF: Final = {"tools": "name", "prompts": "name", "templates": "uriTemplate"}
_TOLD_AS: Final = {"tools": "tool", "prompts": "prompt", "templates": "resource template"}


class Unapproved(msgspec.Struct, frozen=True, kw_only=True):
    """A listed item that the lock hides. `item` is the part that its digest covers; `digest` is empty if the item
    cannot be approved. `reason`: why it is hidden. `approved`: the item of this name in the lock, if there is one."""

    server: str
    kind: str
    name: str
    digest: str
    item: dict[str, Any]
    reason: str
    approved: Mapping[str, Any] | None


class UnapprovedItems:
    """Log, audit and count each hidden item once, and keep it for operators. `counted` counts them by kind."""

    def __init__(self, policy: Policy, audit: Audit, counted: dict[str, int]) -> None:
        self._policy = policy
        self._audit = audit
        self._counted = counted
        self._found: LRUCache[tuple[str, str, str, str], tuple[int, dict[str, Any]]] = LRUCache(
            _HELD_BYTES, getsizeof=lambda found: found[0]
        )

    def is_hidden(self, server: str, kind: str, item: Mapping[str, Any], digest: str) -> bool:
        """Return True if the lock hides this item of the server, which has this digest, and tell operators of it. Only
        for servers of which `Policy.locks` is True."""
        name = item[_NAMES_OF[kind]]
        reason = self._policy.why_unapproved(server, kind, name, digest)
        if reason and (key := (server, kind, name, digest)) not in self._found:
            part = compared_part(item)
            size = 512 + len(name) + _size(part)
            self._found[key] = (size, part) if size < _HELD_BYTES // 16 else (512, {_NAMES_OF[kind]: name[:_MOST_NAME]})
            self._tell(server, kind, name, reason)
        return bool(reason)

    def _tell(self, server: str, kind: str, name: str, reason: str) -> None:
        what = f"{_TOLD_AS[kind]} {server}/{shortened_line(name, _MOST_NAME)} is hidden from clients: {reason}"
        logger.warning("%s", what, extra={"server": server})
        self._audit.blocked(session="", server=server, reason=what, count=1)
        self._counted[kind] += 1

    @property
    def lock_file(self) -> str:
        """Return the path of the lock; empty if there is none."""
        return self._policy.lock_file

    def of(self, server: str = "") -> list[Unapproved]:
        """Return the items that are hidden by the lock as it is now, of one server or of all."""
        found = []
        for (of, kind, name, digest), (_, item) in self._found.items():
            reason = self._policy.why_unapproved(of, kind, name, digest) if server in ("", of) else ""
            if reason:
                found.append(
                    Unapproved(
                        server=of,
                        kind=kind,
                        name=name,
                        digest=digest,
                        item=item,
                        reason=reason,
                        approved=self._policy.approved(of, kind, name),
                    )
                )
        return sorted(found, key=lambda one: (one.server, one.kind, one.name))


def _size(item: Mapping[str, Any]) -> int:
    try:
        return len(encode(item))
    except (RecursionError, ValueError, msgspec.MsgspecError):
        return _HELD_BYTES
