"""Reads a server's lists of tools, prompts and resources, all pages of them. Keeps nothing."""

from typing import Any, Final

import msgspec

from gateway.calls.conversation import Conversation
from gateway.protocol.listing import MOST_BYTES, MOST_TOOLS, items_of
from gateway.protocol.methods import METHODS
from transports.era import Era
from transports.jsonrpc import encode

__all__ = ["GATEWAY_META", "is_repeatable", "list_items"]

GATEWAY_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "mcp-session-gateway", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""The `_meta` of requests that the gateway makes for itself to a modern server."""

_PAGES: Final = 100


async def list_items(method: str, conversation: Conversation) -> list[dict[str, Any]]:
    """The items of a list, as far as one would keep them.

    Raises:
        LinkClosed: the server ended before it answered.
        msgspec.MsgspecError: the answer is not JSON.
    """
    params: dict[str, Any] = {"_meta": GATEWAY_META} if conversation.era is Era.MODERN else {}
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


async def is_repeatable(tool: str, conversation: Conversation) -> bool:
    """Whether a tool's annotations say that calling it twice does no more than calling it once (ToolAnnotations).

    Raises:
        UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be asked.
    """
    await conversation.ready()
    for listed in await list_items("tools/list", conversation):
        if listed["name"] == tool:
            hints = listed.get("annotations") or {}
            return bool(hints.get("readOnlyHint") or hints.get("idempotentHint"))
    return False
