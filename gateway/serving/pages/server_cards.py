"""Serve server cards and the AI catalog: documents by which clients find the servers of a host.

They follow the drafts of 2026-07-24: modelcontextprotocol/experimental-ext-server-card (SEP-2127), docs/discovery.md
and schema.ts, and the AI Catalog to which these refer. The path of a card is its server's path with `/server-card`; the
catalog is at `/.well-known/ai-catalog.json`. The documents contain only what the operator wrote: nothing from a server
or a session, no tools, and no server without a card.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.config.cards import ALL_SERVERS, CardSettings
from gateway.config.endpoint_paths import ALL, CATALOG, path_of
from gateway.policy.rate_limits import RateLimits
from session_store import ANONYMOUS, StoreError
from transports.inbound.host_and_origin import Guard
from transports.inbound_port import Refused

CARD: Final = "/server-card"
_SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
_CARD_TYPE: Final = "application/mcp-server-card+json"
_CATALOG_TYPE: Final = "application/ai-catalog+json"
_CORS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET",
    "Access-Control-Allow-Headers": "Content-Type, If-None-Match",
    "Access-Control-Expose-Headers": "ETag",
}
"""Headers that let every web page read the cards (docs/discovery.md, CORS Requirements)."""
_CACHED: Final = {"Cache-Control": "public, max-age=3600"}


def _documents(cards: Mapping[str, CardSettings], base: str) -> dict[str, tuple[str, bytes]]:
    """Return media type and content of the server cards and the catalog, by path; empty if there are no cards."""
    found: dict[str, tuple[str, bytes]] = {}
    entries = []
    for server, card in cards.items():
        path = ALL if server == ALL_SERVERS else path_of(server)
        document = {
            "$schema": _SCHEMA,
            "name": card.name,
            "version": card.version,
            "description": card.description,
            "remotes": [{"type": "streamable-http", "url": base + path}],
        }
        found[path + CARD] = (_CARD_TYPE, _json(document))
        entries.append({"identifier": card.identifier, "type": _CARD_TYPE, "url": base + path + CARD})
    if entries:
        found[CATALOG] = (_CATALOG_TYPE, _json({"specVersion": "1.0", "entries": entries}))
    return found


def card_routes(cards: Mapping[str, CardSettings], base: str, rates: RateLimits, guard: Guard) -> list[BaseRoute]:
    """Return the routes of the server cards and the catalog. `base`: the URL at which clients reach the gateway,
    without a slash at its end. Requests count against the rate limit of the client's address."""

    def route(path: str, media_type: str, content: bytes) -> Route:
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {**_CORS, **_CACHED, "ETag": tag}

        async def document(request: Request) -> Response:
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=_CORS)
            try:
                await rates.count_message(ANONYMOUS, guard.client_network(request.scope, request.headers))
            except Refused as refused:
                return PlainTextResponse(f"{refused}\n", refused.status, {**refused.headers, **_CORS})
            except StoreError as error:
                return PlainTextResponse(f"{error}\n", 503, {"Retry-After": "5", **_CORS})
            if _has_tag(request.headers.get("if-none-match", ""), tag):
                return Response(status_code=304, headers=headers)
            return Response(content, headers={**headers, "Content-Type": media_type})

        return Route(path, document, methods=["GET", "OPTIONS"])

    return [route(path, *found) for path, found in _documents(cards, base).items()]


def _has_tag(sent: str, tag: str) -> bool:
    """Return whether `sent`, the value of `If-None-Match`, matches the ETag `tag` (RFC 9110 §13.1.2): it contains the
    tag, also as a weak one, or `*`. Proxies that compress make tags weak."""
    return any(each.strip().removeprefix("W/") in (tag, "*") for each in sent[:4_096].split(","))


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
