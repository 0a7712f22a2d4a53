"""Request the lists of a server when they are needed, over the conversation that needs them.

A server may send different lists to different sessions, and may change them. So a list is valid only for the
conversation that has received it, until the server notifies of a change. No policy is applied.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from time import monotonic
from typing import Any, Final

from cachetools import LRUCache

from gateway.calls.conversation import Conversation
from gateway.calls.received_lists import Listed, Lists
from gateway.protocol.merged_lists import Names, Tools
from gateway.protocol.methods import LOCKED_LISTS, METHODS
from gateway.upstreams.list_pages import TOO_LONG, cached_items, listed_items, read_list, with_files
from gateway.upstreams.result_cache import ResultCache
from transports.background_tasks import Tasks, TasksClosed
from transports.jsonrpc import encode
from transports.upstream_port import UpstreamUnavailable

AGAIN_S: Final = 5.0
"""Minimum age in seconds of a list that is requested again because it lacks a name: some servers send no change
notifications."""
_HELD_BYTES: Final = 16 << 20


@dataclass(eq=False, repr=False)
class ServerLists:
    """Request the lists of one server for its conversations, and keep them there."""

    name: str
    """The server's name."""
    _: KW_ONLY
    timeout_s: float
    """How long the server may take to start and send a list."""
    probed: Callable[[], Tools | None]
    """Returns the tools that the server listed to the probe. A conversation uses them until it has a list itself."""
    results: ResultCache
    """The server's fresh results. A list that is found there is not requested."""
    on_listed: Callable[[Tools], None] = lambda _: None
    """Called with each list of tools."""
    on_outdated: Callable[[], None] = lambda: None
    """Called when the tools of the probe are not valid any more."""
    has_lock: bool = False
    """True: the operator has a lock file. It needs digests, and lists that the conversation itself has received."""

    def __post_init__(self) -> None:
        self._outdated: Tools | None = None
        # Conversations that receive the same list share one object.
        self._same: LRUCache[bytes, Listed] = LRUCache(_HELD_BYTES, getsizeof=lambda found: 1_024 + found.size)
        self._tasks = Tasks(f"lists of {self.name}")

    def known(self, method: str, conversation: Conversation | None) -> Listed | None:
        """Return the list `method` without a request to the server; None if it is not known."""
        lists = None if conversation is None else conversation.known_lists
        if lists is not None and method in lists.known:
            return lists.known[method]
        # What another process lists says nothing of what this one would do, so a lock is compared with its own list.
        if self.has_lock or method != "tools/list" or (lists is not None and method in lists.changed):
            return None
        probed = self.probed()
        return None if probed is self._outdated else probed

    async def listed(self, method: str, conversation: Conversation, name: str = "") -> Listed:
        """Return the list `method` of the conversation. Request it if it is unknown, or if it lacks the item `name` and
        was requested a while ago. An empty `name` is in every list. Concurrent callers share one request.

        Raises:
            UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be asked.
        """
        found = self.known(method, conversation)
        lists = conversation.lists
        is_old = monotonic() - lists.asked_at.get(method, float("-inf")) >= AGAIN_S
        if found is not None and (name in found or not name or not is_old):
            return found
        if found is None and not self.has_lock and METHODS[method].kind not in lists.announced:
            kept = cached_items(method, self.results)
            if kept is not None:
                found = self._shared_list(method, kept)
                lists.keep(method, found)
                if not name or name in found:
                    return found
        return await self.refresh(method, conversation)

    async def refresh(self, method: str, conversation: Conversation) -> Listed:
        """Request the list `method` from the server, even if it is known, and return it. Concurrent callers share one
        request. Raises the same errors as `listed`."""
        lists = conversation.lists
        try:
            return await self._tasks.share((lists, method), lambda: self._ask(method, conversation, lists))
        except TasksClosed:
            raise UpstreamUnavailable(f"server {self.name!r} is not asked any more: the gateway stops") from None

    async def _ask(self, method: str, conversation: Conversation, lists: Lists) -> Listed:
        try:
            async with asyncio.timeout(self.timeout_s):
                await conversation.ready()
                lists.list_requested(method)
                items, missing = await read_list(method, conversation, self.results)
        except TimeoutError:
            waited = f"did not start and answer {method} within {self.timeout_s:g} s"
            raise UpstreamUnavailable(f"server {self.name!r} {waited}") from None
        if missing and missing != TOO_LONG:  # nothing is decided by an empty list that is a fault
            raise UpstreamUnavailable(f"server {self.name!r}: {method}: {missing}")
        found = self._shared_list(method, items)
        lists.asked_at[method] = monotonic()
        if method not in lists.changed:
            lists.keep(method, found)
        return found

    def add_page(self, method: str, conversation: Conversation | None, page: Any) -> None:
        """Add the items of `page`, which the server has sent for a client's request of the list `method`, to what is
        known of this list in the conversation. Called for each such page."""
        items = listed_items(method, page)
        if self.has_lock and method == "tools/list":
            self._compare(items)
        if conversation is None:
            return
        known = self.known(method, conversation)
        if isinstance(known, Tools):
            if known.are_same(items):
                return
            items = list({tool["name"]: tool for tool in (*known.listed, *items)}.values())
        else:
            if known is None:
                self._passed(method, conversation, items)
                return  # an unknown list is requested as a whole, where a decision needs it
            joined = known.joined(self._names(method, items))
            if joined == known and joined.digests == known.digests:
                return
            conversation.lists.keep(method, self._shared(method, joined))
            return
        conversation.lists.keep(method, self._shared_list(method, items))

    def _compare(self, items: Iterable[dict[str, Any]]) -> None:
        """Stop using the tools from the probe if one of these items differs from them. Conversations then request the
        list themselves."""
        probed = self.probed()
        if probed is None or probed is self._outdated:
            return
        if not probed.are_same([tool for tool in items if tool["name"] in probed]):
            self._outdated = probed
            self.on_outdated()

    def _passed(self, method: str, conversation: Conversation, items: list[dict[str, Any]]) -> None:
        key, passed = METHODS[method].item_key, conversation.lists.passed
        if key == "name":
            return  # clients see a name that contains its server
        names = [{key: name} for name in passed.get(method, ())]
        found = self._shared_list(method, [*items, *names])
        if isinstance(found, Names):
            passed[method] = found

    def names(self, method: str, conversation: Conversation | None) -> Names:
        """Return the known names of resources or templates, perhaps not all, without a request to the server."""
        known = self.known(method, conversation)
        if isinstance(known, Names):
            return known
        lists = None if conversation is None else conversation.known_lists
        return Names() if lists is None else lists.passed.get(method, Names())

    def _shared_list(self, method: str, items: Iterable[dict[str, Any]]) -> Listed:
        if method != "tools/list":
            return self._shared(method, self._names(method, with_files(method, [*items])))
        found = Tools(items)
        self.on_listed(found)
        return self._shared(method, found)

    def _names(self, method: str, items: list[dict[str, Any]]) -> Names:
        has_digests = self.has_lock and method in LOCKED_LISTS
        return Names.of(items, METHODS[method].item_key, has_digests=has_digests)

    def _shared(self, method: str, found: Listed) -> Listed:
        content = found.listed if isinstance(found, Tools) else [sorted(found), sorted(found.digests.items())]
        return self._same.setdefault(hashlib.sha256(encode([content, method])).digest(), found)

    async def close(self) -> None:
        """Cancel pending requests."""
        await self._tasks.close()
