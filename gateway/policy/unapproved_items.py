"""Tell operators which listed tools, prompts and templates are hidden, because the lock file does not approve them
(docs/adr/0045-tools-lock.md)."""

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from cachetools import LRUCache

from gateway.observability.audit import Audit
from gateway.observability.escaped_text import shortened_line
from gateway.policy.access_policy import Policy
from gateway.policy.operator_message_limits import MOST_NAME, Key, LoggedItems
from gateway.protocol.item_digests import compared_part
from transports.jsonrpc import encode

logger = logging.getLogger(__name__)

_HELD_BYTES: Final = 4 << 20
_NAMES_OF: Final = {"tools": "name", "prompts": "name", "templates": "uriTemplate"}
TITLES: Final = {"tools": "tool", "prompts": "prompt", "templates": "resource template"}
"""The names of the kinds of items in messages."""


class Unapproved(msgspec.Struct, frozen=True, kw_only=True):
    """An item that a server lists and that is hidden, because the lock file does not approve it."""

    server: str
    kind: str
    """One of `gateway.config.tools_lock.KINDS`."""
    name: str
    digest: str
    """The digest of the item; empty if the item cannot be approved."""
    item: dict[str, Any]
    """The part of the item that the digest covers; of a very large item, only the name."""
    reason: str
    """Why the lock file does not approve it."""
    approved: Mapping[str, Any] | None
    """What the lock file approves under this name; None: nothing."""


class UnapprovedItems:
    """Log, audit and count each hidden item once, and keep it for operators. `counted` counts the items by kind.
    However many items a server has, it fills neither the log nor the memory for other servers' items."""

    def __init__(self, policy: Policy, audit: Audit, counted: dict[str, int]) -> None:
        self._policy = policy
        self._audit = audit
        self._counted = counted
        self._logged = LoggedItems()
        # The hidden items of each server, so that none hides what others list.
        self._found: dict[str, LRUCache[Key, tuple[int, dict[str, Any]]]] = {}

    def is_hidden(self, server: str, kind: str, item: Mapping[str, Any], digest: str) -> bool:
        """Return True if the lock file hides this item of the server. A hidden item is kept for `of`, and logged and
        audited once. `digest` is the item's. Must be called only if `Policy.locks` is True for the server."""
        name = item[_NAMES_OF[kind]]
        reason = self._policy.why_unapproved(server, kind, name, digest)
        if reason:
            self._keep(server, (kind, name, digest), item)
            if self._logged.is_new(server, (kind, name, digest)):
                self._tell(server, kind, name, reason)
        return bool(reason)

    def _keep(self, server: str, key: Key, item: Mapping[str, Any]) -> None:
        found = self._found.setdefault(server, LRUCache(_HELD_BYTES, getsizeof=lambda one: one[0]))
        if key not in found:
            part = compared_part(item)
            size = 512 + len(key[1]) + _size(part)
            found[key] = (size, part) if size < _HELD_BYTES // 16 else (512, {_NAMES_OF[key[0]]: key[1][:MOST_NAME]})

    def _tell(self, server: str, kind: str, name: str, reason: str) -> None:
        what = f"{TITLES[kind]} {server}/{shortened_line(name, MOST_NAME)} is hidden from clients: {reason}"
        self._counted[kind] += 1
        if self._logged.has_room(server, (kind, name, "")):
            logger.warning("%s", what, extra={"server": server})
            self._audit.blocked(session="", server=server, reason=what, count=1)

    @property
    def lock_file(self) -> str:
        """Return the path of the lock file; empty if there is none."""
        return self._policy.lock_file

    def of(self, server: str = "") -> list[Unapproved]:
        """Return the items that the present lock file hides: those of `server`; if it is empty, those of all
        servers."""
        found = []
        kept = [(of, *each) for of, some in self._found.items() if server in ("", of) for each in some.items()]
        for of, (kind, name, digest), (_, item) in kept:
            reason = self._policy.why_unapproved(of, kind, name, digest)
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
