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


class Documents:
    """The server cards and the catalog. `by_path`: media type and content by path; empty if there are no cards. `base`
    is the URL at which clients reach the gateway, without a slash at its end."""

    def __init__(self, cards: Mapping[str, CardSettings], base: str) -> None:
        self._base = base
        self.by_path: dict[str, tuple[str, bytes]] = {}
        entries = []
        for server, card in cards.items():
            path = ALL if server == ALL_SERVERS else path_of(server)
            self.by_path[path + CARD] = (_CARD_TYPE, _json(self._card(path, card)))
            entries.append(self._entry(path, card))
        if entries:
            self.by_path[CATALOG] = (_CATALOG_TYPE, _json({"specVersion": "1.0", "entries": entries}))

    def _card(self, path: str, card: CardSettings) -> dict[str, Any]:
        return {
            "$schema": _SCHEMA,
            "name": card.name,
            "version": card.version,
            "description": card.description,
            "remotes": [{"type": "streamable-http", "url": self._base + path}],
        }

    def _entry(self, path: str, card: CardSettings) -> dict[str, str]:
        return {
            "identifier": card.identifier,
            "type": _CARD_TYPE,
            "url": self._base + path + CARD,
        }


def card_routes(documents: Documents, rates: RateLimits, guard: Guard) -> list[BaseRoute]:
    """Return the routes of the documents. Requests count against the rate limit of the client's address."""

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
            if _names(request.headers.get("if-none-match", ""), tag):
                return Response(status_code=304, headers=headers)
            return Response(content, headers={**headers, "Content-Type": media_type})

        return Route(path, document, methods=["GET", "OPTIONS"])

    return [route(path, *found) for path, found in documents.by_path.items()]


def _names(sent: str, tag: str) -> bool:
    """Return whether the header `If-None-Match` contains the tag, also as a weak one (RFC 9110 §13.1.2): proxies that
    compress make tags weak."""
    return any(each.strip().removeprefix("W/") in (tag, "*") for each in sent[:4_096].split(","))


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
