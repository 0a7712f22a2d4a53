"""Read the items that servers list, compare them with the lock file of approved items, and write the lock
(docs/adr/0045-tools-lock.md)."""

import asyncio
import difflib
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gateway.calls.conversation import Conversation
from gateway.calls.link_manager import UNREACHED
from gateway.config.tools_lock import KINDS, Lists, document, read_lock
from gateway.observability.escaped_text import revealed, revealed_json, revealed_lines
from gateway.policy.unapproved_items import TITLES, Unapproved
from gateway.protocol.item_digests import compared_part, digest_of, digests_of
from gateway.protocol.merged_lists import MOST_TOOLS, Tools
from gateway.protocol.methods import LOCKED_LISTS, METHODS
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.list_pages import read_list
from transports.era import Era
from transports.jsonrpc import UNREADABLE

_WAIT_S: Final = 30.0


class Unlockable(Exception):
    """The items of a server cannot be approved in the lock. The message says why."""


async def lists_of(upstream: ConfiguredUpstream) -> Lists:
    """Return all tools, prompts and resource templates of a server, each reduced to the part that its digest covers.

    Raises:
        Unlockable: a list is not complete, has a name twice, or an item that cannot be compared.
    """
    facts = await upstream.facts()
    if facts.needs_credentials:
        raise Unlockable("it lists only with the credentials of a session: leave it out with --without")
    if not facts.has_answered:
        raise Unlockable(facts.failure or upstream.state.why_silent or "it has not answered")
    conversation = upstream.sessionless(Era.LEGACY if facts.discover is None else Era.MODERN)
    found: dict[str, Mapping[str, Mapping[str, Any]]] = {}
    try:
        async with asyncio.timeout(_WAIT_S):
            await conversation.ready()
            for method, kind in LOCKED_LISTS.items():
                row = METHODS[method]
                items = await _whole_list(method, conversation) if row.is_offered(facts.capabilities) else []
                found[kind] = _by_name(kind, row.item_key, items)
    except TimeoutError:
        raise Unlockable(f"it has not sent its lists within {_WAIT_S:.0f} s") from None
    except UNREACHED as error:
        raise Unlockable(str(error)) from None
    return found


async def _whole_list(method: str, conversation: Conversation) -> list[dict[str, Any]]:
    """Request all pages of the list `method`, and return their items. Raises `Unlockable` if the server did not send a
    list, or has more items than the gateway keeps."""
    try:
        items, missing = await read_list(method, conversation, None)
    except UNREADABLE:
        items, missing = [], "the answer is not JSON"
    if missing:
        raise Unlockable(f"{method}: {missing}")
    return items


def _by_name(kind: str, key: str, items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    if len(items) > MOST_TOOLS or (kind == "tools" and len(Tools(items).listed) < len(items)):
        raise Unlockable(f"it lists more {kind} than the gateway keeps")
    found: dict[str, dict[str, Any]] = {}
    for item, digest in zip(items, digests_of(items), strict=True):
        name = item[key]
        if name in found:
            raise Unlockable(f"it lists the {TITLES[kind]} {revealed(name)} twice")
        if not digest:
            what = f"{TITLES[kind]} {revealed(name)}"
            raise Unlockable(f"the {what} has no canonical form (RFC 8785), or the list is too large to be compared")
        found[name] = compared_part(item)
    return found


def differences(approved: Lists | None, listed: Lists | None, server: str) -> list[str]:
    """Return lines of text about the items of `server` that are new, changed or gone, with a diff of each item; empty
    if there are none. `approved`: its items in the lock file. `listed`: those that it lists now. None counts as no
    items. A renamed item counts as gone and new."""
    lines: list[str] = []
    for kind in KINDS:
        before, now = (approved or {}).get(kind, {}), (listed or {}).get(kind, {})
        for name in sorted(before.keys() | now.keys()):
            lines += item_difference(server, kind, name, before.get(name), now.get(name))
    return lines


def item_difference(
    server: str, kind: str, name: str, before: Mapping[str, Any] | None, now: Mapping[str, Any] | None
) -> list[str]:
    """Return lines of text that say whether an item is new, changed or gone, and a diff in which also invisible
    characters are seen; no lines if it is the same. `before`: the approved item. `now`: the listed item. None: there is
    none."""
    if before is not None and now is not None and digest_of(before) == digest_of(now):
        return []
    what = "is new" if before is None else "is gone" if now is None else "has changed"
    old, new = ([] if item is None else revealed_lines(item) for item in (before, now))
    lines = itertools.islice(difflib.unified_diff(old, new, lineterm="", n=2), 2, None)  # the first two name files
    return [f"{TITLES[kind]} {server}/{revealed(name)} {what}", *(f"  {line}" for line in lines)]


def write_lock(file: Path, servers: Mapping[str, Lists | None]) -> None:
    """Replace the lock file in one step. `servers`: the approved items of each server, by its name; None for a server
    that is not locked. All invisible characters are escaped.

    Raises:
        OSError: the file cannot be written.
        ValueError: an item cannot be compared.
    """
    file = file.resolve()  # a link stays one
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        new.touch(file.stat().st_mode & 0o777 if file.exists() else 0o644)
        new.write_text(f"{revealed_json(document(servers))}\n", encoding="utf-8")
        os.replace(new, file)
    finally:
        new.unlink(missing_ok=True)


def approve(file: Path, item: Unapproved) -> None:
    """Add an item, hidden until now, to the lock file, in place of an approved item with the same name.

    Raises:
        Unlockable: `item` has no digest or was not kept whole, or the lock no longer locks the server of the item.
        OSError, ValueError: the lock cannot be read or written.
    """
    servers = dict(read_lock(file).servers)
    lists = servers.get(item.server, {})
    if lists is None:
        raise Unlockable("its server is not locked any more")
    if not item.digest or digest_of(item.item) != item.digest:
        raise Unlockable("it cannot be approved here: use the command `lock`")
    items = {**lists.get(item.kind, {}), item.name: item.item}
    write_lock(file, {**servers, item.server: {**lists, item.kind: items}})
