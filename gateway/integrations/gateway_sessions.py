"""The sessions of a gateway in the app that it is mounted in: in the request's scope, and as the current session."""

import json
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from msgspec import structs

from gateway.context.facts import correlation_id
from gateway.identity.request_context import RequestContext
from gateway.integrations.session_middleware import SCOPE_KEY
from gateway.observability.logs import CLIENT, CORRELATION
from gateway.relay.pipeline import store_errors_refused
from session_store.context import bound_session
from transports.era import Era
from transports.inbound.http import Guard, Receive, Scope, Send, peer_of, send_json
from transports.inbound_port import Refused, Request

if TYPE_CHECKING:
    from gateway.serving.gateway import Gateway

__all__ = ["GatewaySessionMiddleware"]


class GatewaySessionMiddleware:
    """Gives each HTTP request its session of the gateway, opening one for a client that brings none.

    The app runs in the gateway's process: a session whose servers run in another process cannot be used here. An app
    that needs sessions alone takes `SessionMiddleware`.

    Clients carry it as they do for the gateway itself: the `MCP-Gateway-Session` header, the cookie, or an API key
    alone. The app finds it as `scope["mcp.session"]` and by `current_session()`. The gateway's own endpoints, if the
    app mounts them, are passed through: they resolve sessions themselves.
    """

    def __init__(self, app: Any, gateway: "Gateway") -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].endswith(self._gateway.paths):
            await self._app(scope, receive, send)
            return
        try:
            with store_errors_refused():
                resolved, request = await self._resolve(scope)
        except Refused as refused:
            headers = [(name.lower().encode(), value.encode()) for name, value in refused.headers.items()]
            await send_json(send, refused.status, json.dumps({"error": str(refused)}).encode(), headers)
            return
        told = self._gateway.carriers.headers(resolved.live.session, request, cookie_held=resolved.cookie_held)

        async def telling(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                kept = [(name, value) for name, value in event.get("headers", ()) if name.lower() != b"cache-control"]
                event = {**event, "headers": [*kept, *told]}
            # A server may begin the connection's next request in here: it must not begin in this session.
            with bound_session(None):
                await send(event)

        live = resolved.live
        session = self._gateway.tool_session(structs.replace(live.session, context=resolved.context))
        scope[SCOPE_KEY] = session
        with live.in_use(), bound_session(session):
            await self._app(scope, receive, telling)

    async def _resolve(self, scope: Scope) -> Any:
        headers = self._gateway.guard.headers(scope)
        request = Request(
            era=Era.MODERN,  # an app has no handshake: its requests say who they are one by one
            endpoint=scope["path"],
            headers=headers,
            same_site=Guard.same_site(headers),
            client=self._gateway.guard.client(scope, headers),
            secure=self._gateway.guard.is_secure(scope, headers),
        )
        CLIENT.set(request.client)
        try:
            who = await self._gateway.identity.authenticate(headers, peer_of(scope))
        except Refused as refused:
            self._gateway.audit.record("refused", era=request.era, reason=str(refused))
            raise
        await self._gateway.rates.message(who.principal, request.client)
        correlation = correlation_id(headers, {})
        CORRELATION.set(correlation)
        asking = RequestContext(who.principal, who.granted, correlation)
        return await self._gateway.resolver.resume_or_open(request, asking), request
