"""Reads the lists of tools, prompts and resources that a server sends. Keeps nothing."""

from typing import Any, Final

import msgspec

from gateway.calls.conversation import Conversation
from gateway.protocol.listing import MOST_BYTES, MOST_TOOLS, items_of
from gateway.protocol.methods import METHODS
from transports.era import Era
from transports.jsonrpc import encode

__all__ = ["GATEWAY_META", "ListReader"]

GATEWAY_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "mcp-session-gateway", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""The `_meta` of requests that the gateway makes for itself to a modern server."""

_MAX_PAGES: Final = 100


class ListReader:
    """Reads lists, and leaves out items that no client can name.

    `name_chars` and `uri_chars` are the settings of that name in `gateway.limits`: a request with a longer name or URI
    is refused.
    """

    def __init__(self, *, name_chars: int, uri_chars: int) -> None:
        self._name_chars = name_chars
        self._uri_chars = uri_chars

    def items(self, method: str, page: Any) -> list[dict[str, Any]]:
        """The items of one page of that list."""
        row = METHODS[method]
        most_chars = self._name_chars if row.item_key == "name" else self._uri_chars
        return items_of(page, row.listed, row.item_key, most_chars=most_chars)

    async def all_items(self, method: str, conversation: Conversation) -> list[dict[str, Any]]:
        """The items of all pages of that list, until there are more than the gateway keeps.

        Raises:
            LinkClosed: the server ended before it answered.
            msgspec.MsgspecError: the answer is not JSON.
        """
        params: dict[str, Any] = {"_meta": GATEWAY_META} if conversation.era is Era.MODERN else {}
        items: list[dict[str, Any]] = []
        size = 0
        for _ in range(_MAX_PAGES):
            answer = await conversation.ask(method, encode(params))
            if not isinstance(answer.result, msgspec.Raw):
                break
            size += len(bytes(answer.result))
            page = msgspec.json.decode(answer.result)
            items += self.items(method, page)
            if not isinstance(page, dict) or not page.get("nextCursor"):
                break
            if len(items) > MOST_TOOLS or size > 2 * MOST_BYTES:  # the gateway does not keep later items
                break
            params["cursor"] = page["nextCursor"]
        return items

    async def is_repeatable(self, tool: str, conversation: Conversation) -> bool:
        """Whether a tool's annotations say that calling it twice does no more than calling it once (ToolAnnotations).

        Raises:
            UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be asked.
        """
        await conversation.ready()
        for listed in await self.all_items("tools/list", conversation):
            if listed["name"] == tool:
                hints = listed.get("annotations") or {}
                return bool(hints.get("readOnlyHint") or hints.get("idempotentHint"))
        return False
