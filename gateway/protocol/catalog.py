"""The public names of an endpoint with several servers: `server__name`, and the lists of all servers as one list.

Pure. Resources have no public names: they keep their URIs.
"""

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from gateway.protocol.methods import METHODS
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, Object, encode

__all__ = ["cursor_of", "has_more", "merge_lists", "named", "next_cursor", "owner_of"]

SEPARATOR: Final = "__"
_MOST_CURSOR_CHARS: Final = 4_096
"""Of a cursor of the gateway: half of what a request may have for it."""


def owner_of(name: str, upstreams: Iterable[str], kind: str) -> tuple[str, str]:
    """Return the upstream that a public name belongs to, and the name there. Raises `Refused`: no upstream has that
    name."""
    upstream, _, inner = name.partition(SEPARATOR)
    if not inner or upstream not in upstreams:
        raise Refused(200, INVALID_PARAMS, f"Unknown {kind}: {name[:128]}")
    return upstream, inner


def named(upstream: str, item: dict[str, Any]) -> dict[str, Any]:
    """Return a listed item under its public name."""
    return item | {"name": f"{upstream}{SEPARATOR}{item['name']}"}


def merge_lists(method: str, pages: Iterable[tuple[str, Any]]) -> list[Any]:
    """Return the items of several servers' pages, in the order of `pages`, under their public names."""
    row = METHODS[method]
    items = ((upstream, item) for upstream, page in pages for item in page.get(row.listed, ()))
    return [named(upstream, item) if row.item_key == "name" else item for upstream, item in items]


def has_more(page: Mapping[str, Any]) -> bool:
    """Return whether a page of a list has a cursor of the next one, which is a text. In the modern era an empty cursor
    is one as well (MCP 2026-07-28, Pagination); legacy servers are known that mean the end by it."""
    cursor = page.get("nextCursor")
    return isinstance(cursor, str) and (cursor != "" or "resultType" in page)


def next_cursor(more: Mapping[str, str]) -> str | None:
    """Return a cursor that contains the upstreams of the next page with their own cursors. An upstream is left out if
    no client could send the cursor with it. None if there is no upstream."""
    fitting: dict[str, str] = {}
    for upstream, cursor in more.items():
        if len(_cursor(fitting | {upstream: cursor})) <= _MOST_CURSOR_CHARS:
            fitting[upstream] = cursor
    return _cursor(fitting) if fitting else None


def _cursor(more: Mapping[str, str]) -> str:
    return base64.urlsafe_b64encode(encode(more)).decode()


def cursor_of(params: Object) -> dict[str, str] | None:
    """Return the upstreams in a cursor of the gateway with their own cursors, at least one; None for the first page.

    Raises:
        Refused: it is no cursor of the gateway.
    """
    if "cursor" not in params:
        return None
    try:
        text = msgspec.json.decode(params["cursor"], type=str)
        more = msgspec.json.decode(base64.urlsafe_b64decode(text), type=dict[str, str])
    except (msgspec.MsgspecError, ValueError):
        more = {}
    if not more:
        raise Refused(200, INVALID_PARAMS, "Invalid cursor")
    return more
