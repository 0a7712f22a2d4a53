"""What a server lists, learnt when it is needed, over the conversation that it is needed for.

A server may tell sessions different things, and other things later: what one conversation has heard counts for that
conversation, until the server says that its lists have changed. Knows nothing of who may see what.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Final

import msgspec
from cachetools import LRUCache

from gateway.calls.conversation import Conversation
from gateway.calls.lists import Listed, Lists
from gateway.protocol.listing import MOST_BYTES, MOST_TOOLS, Names, Tools, items_of
from gateway.protocol.methods import METHODS
from transports.era import Era
from transports.jsonrpc import encode
from transports.upstream_port import UpstreamUnavailable

__all__ = ["Inventory"]

AGAIN_S: Final = 5.0
"""How long an answer stands when something is asked for that is not in it: servers need not say that lists changed."""
_PAGES: Final = 100
_HELD_BYTES: Final = 16 << 20


class Inventory:
    """Of one server. `first` is what the probe has found: good until a conversation hears something else."""

    def __init__(self, name: str, timeout_s: float, meta: dict[str, Any]) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._meta = meta
        # Sessions that hear the same hold the same.
        self._same: LRUCache[bytes, Listed] = LRUCache(_HELD_BYTES, getsizeof=lambda found: 1_024 + found.size)
        self.first: Callable[[], Tools | None] = lambda: None

    def known(self, method: str, conversation: Conversation | None) -> Listed | None:
        """What is listed, as far as it is known now."""
        lists = None if conversation is None else conversation.known_lists
        if lists is not None and method in lists.known:
            return lists.known[method]
        if method != "tools/list" or (lists is not None and method in lists.changed):
            return None
        return self.first()

    async def listed(self, method: str, conversation: Conversation, name: str = "") -> Listed:
        """What is listed; asked for anew when that name is not there.

        Raises:
            UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be asked.
        """
        found = self.known(method, conversation)
        lists = conversation.lists
        is_old = monotonic() - lists.asked_at.get(method, float("-inf")) >= AGAIN_S
        if found is not None and (name in found or not name or not is_old):
            return found
        asking = lists.asking.get(method)
        if asking is None:
            asking = lists.asking[method] = asyncio.create_task(self._ask(method, conversation, lists))
            asking.add_done_callback(_heard)
        return await asyncio.shield(asking)

    async def _ask(self, method: str, conversation: Conversation, lists: Lists) -> Listed:
        try:
            async with asyncio.timeout(self._timeout_s):
                await conversation.ready()
                lists.changed.discard(method)
                found = self._kept(method, await self.items(method, conversation))
        except TimeoutError:
            raise UpstreamUnavailable(f"server {self._name!r} does not answer {method}") from None
        finally:
            lists.asking.pop(method, None)
        lists.asked_at[method] = monotonic()
        if method not in lists.changed:
            lists.known[method] = found
        return found

    def seen(self, method: str, conversation: Conversation | None, page: Any) -> None:
        """A page that a client has asked for: what is new in it is known from now on."""
        if conversation is None:
            return
        row = METHODS[method]
        items, known = items_of(page, row.listed, row.item_key), self.known(method, conversation)
        if isinstance(known, Tools):
            if all(known.has(tool) for tool in items):
                return
            items = list({tool["name"]: tool for tool in (*known.listed, *items)}.values())
        else:
            names = {item[row.item_key] for item in items}
            if known is None or names <= known:
                return  # what has never been asked for is asked for whole
            items = [{row.item_key: name} for name in (*known, *names)]
        conversation.lists.known[method] = self._kept(method, items)

    async def items(self, method: str, conversation: Conversation) -> list[dict[str, Any]]:
        """All that is listed, page by page. Raises `LinkClosed`."""
        params: dict[str, Any] = {"_meta": self._meta} if conversation.era is Era.MODERN else {}
        row = METHODS[method]
        items: list[dict[str, Any]] = []
        size = 0
        for _ in range(_PAGES):
            answer = await conversation.ask(method, encode(params))
            if not isinstance(answer.result, msgspec.Raw):
                break
            size += len(bytes(answer.result))
            page = msgspec.json.decode(answer.result)
            items += items_of(page, row.listed, row.item_key)
            if not isinstance(page, dict) or not page.get("nextCursor"):
                break
            if len(items) > MOST_TOOLS or size > 2 * MOST_BYTES:  # what comes after is not kept
                break
            params["cursor"] = page["nextCursor"]
        return items

    def _kept(self, method: str, items: Iterable[dict[str, Any]]) -> Listed:
        found: Listed = Tools(items) if method == "tools/list" else Names.of(items, METHODS[method].item_key)
        parts = encode([found.listed if isinstance(found, Tools) else sorted(found), method])
        return self._same.setdefault(hashlib.sha256(parts).digest(), found)


def _heard(task: asyncio.Task[Listed]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waited may have left
