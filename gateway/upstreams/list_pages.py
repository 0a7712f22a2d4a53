"""Request and read the lists of tools, prompts and resources of a server, without storing them."""

import itertools
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.calls.conversation import Conversation
from gateway.protocol.merged_lists import MOST_BYTES, MOST_TOOLS, has_more, is_repeatable, items_of
from gateway.protocol.methods import METHODS
from gateway.upstreams.result_cache import CacheKey, ResultCache
from transports.era import Era
from transports.inbound.unauthenticated_limits import Limits
from transports.jsonrpc import METHOD_NOT_FOUND, encode

GATEWAY_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "mcp-session-gateway", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""The `_meta` of the gateway's own requests to a modern server."""

_MAX_PAGES: Final = 100
TOO_LONG: Final = "the list is too long"
_MOST_TEXT: Final = 200
_LIMITS: Final = Limits()
MOST_URI_CHARS: Final = _LIMITS.uri_chars


def asked_by_gateway(method: str, params: Mapping[str, bytes]) -> CacheKey:
    """Return the cache key of a request that the gateway sends for itself. Under it, only results that are the same for
    all callers are stored or found."""
    return CacheKey.of(method, params, public=b"", private=None)


def listed_items(method: str, page: Any) -> list[dict[str, Any]]:
    """Return the items of one page of the list `method`. Leave out items that no client can request, because their name
    or URI is longer than `transports.inbound.unauthenticated_limits.Limits` allows."""
    row = METHODS[method]
    most_chars = _LIMITS.name_chars if row.item_key == "name" else MOST_URI_CHARS
    return items_of(page, row.listed, row.item_key, most_chars=most_chars)


def cached_items(method: str, results: ResultCache) -> list[dict[str, Any]] | None:
    """Return the items of a list from its cached pages. Return None if a page is missing, not fresh, or not the same
    for every caller."""
    pages = results.pages(lambda params: asked_by_gateway(method, params))
    if pages is None:
        return None
    return [item for page in pages for item in listed_items(method, msgspec.json.decode(page))]


def with_files(method: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of the list `method`. If it is the list of skills, the files of these skills follow, because
    they are resources too."""
    if not METHODS[method].extension:
        return items
    files = (items_of(item, "resources", "uri", most_chars=MOST_URI_CHARS) for item in items)
    return [*items, *itertools.chain.from_iterable(files)]


async def all_items(
    method: str, conversation: Conversation, results: ResultCache | None = None
) -> list[dict[str, Any]]:
    """Request all pages of the list `method`, and return their items, up to the gateway's limits of number and size.
    `results` caches the pages that are the same for every caller.

    Raises:
        UpstreamUnavailable: the server refused with an HTTP status, or cannot be reached.
        LinkClosed: the server ended before it answered.
        msgspec.MsgspecError: the answer is not JSON.
    """
    return (await read_list(method, conversation, results))[0]


async def read_list(
    method: str, conversation: Conversation, results: ResultCache | None
) -> tuple[list[dict[str, Any]], str]:
    """Request the pages of the list `method`. Return the items, and a text that says why some are missing: `TOO_LONG`
    if the gateway's limits are reached, a description of the server's answer if it is not usable, empty if the list is
    complete. Raises the same errors as `all_items`."""
    params: dict[str, Any] = {"_meta": GATEWAY_META} if conversation.era is Era.MODERN else {}
    items: list[dict[str, Any]] = []
    size = 0
    for _ in range(_MAX_PAGES):
        version = 0 if results is None else results.version(method)
        answer = await conversation.ask(method, encode(params))
        if not isinstance(answer.result, msgspec.Raw):
            error = msgspec.json.decode(answer.error) if isinstance(answer.error, msgspec.Raw) else None
            code, text = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, None)
            has_none = code == METHOD_NOT_FOUND and not items  # many servers know the method only if they have items
            return items, "" if has_none else f"the server answers with error {code}: {str(text)[:_MOST_TEXT]}"
        size += len(bytes(answer.result))
        if results is not None and conversation.era is Era.MODERN:
            raw = {key: encode(value) for key, value in params.items()}
            results.keep(asked_by_gateway(method, raw), answer.result, version)
        page = msgspec.json.decode(answer.result)
        items += listed_items(method, page)
        if not isinstance(page, dict) or not has_more(page):
            is_list = isinstance(page, dict) and isinstance(page.get(METHODS[method].listed), list)
            return items, "" if is_list else "the server answers with no list"
        if len(items) > MOST_TOOLS or size > 2 * MOST_BYTES:  # the gateway does not keep later items
            break
        params["cursor"] = page["nextCursor"]
    return items, TOO_LONG


async def lists_repeatable(tool: str, conversation: Conversation) -> bool:
    """Return True if the server lists the tool with annotations that allow to call it twice without further effect.

    Raises:
        UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be asked.
    """
    await conversation.ready()
    listed = await all_items("tools/list", conversation)
    return next((is_repeatable(each) for each in listed if each["name"] == tool), False)
