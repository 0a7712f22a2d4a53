"""ASGI middleware that finds or opens the gateway session of each request, for an app in which a gateway is mounted."""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from gateway.integrations.session_middleware import response_of
from gateway.relay.message_handler import store_errors_refused
from session_store.current_tool_session import SCOPE_KEY, bound_session
from transports.era import Era
from transports.inbound.host_and_origin import is_same_site
from transports.inbound.http_requests_and_responses import Receive, Scope, Send, peer_of, send_json
from transports.inbound_port import OwnedByPeer, Refused, Request
from transports.jsonrpc import INVALID_REQUEST

if TYPE_CHECKING:
    from gateway.serving.gateway import Gateway


_ELSEWHERE: Final = Refused(
    421,
    INVALID_REQUEST,
    "Another process of this app has this session. Nothing was done. Send the request to that process, or keep the "
    "sessions of the app's own routes with SessionMiddleware, which serves them in every process.",
    reason="session_elsewhere",
)


class GatewaySessionMiddleware:
    """Find the gateway session of each HTTP request. Open one for a client without a session.

    The app runs in the gateway's process. A request whose session is owned by another process is answered with 421,
    before the app is called. An app that needs sessions but no gateway uses `SessionMiddleware`.

    Clients send their session as they do to the gateway itself: in the header `MCP-Gateway-Session` or the cookie, or
    only by an API key. The app gets it as `scope["mcp.session"]` and with `current_session()`. Requests to the
    gateway's own endpoints are passed on unchanged, because these find sessions themselves.
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
            await send_json(send, *response_of(refused))
            return
        except OwnedByPeer:
            await send_json(send, *response_of(_ELSEWHERE))
            return
        carried = self._gateway.carriers.headers(resolved.live.session, request, cookie_held=resolved.cookie_held)

        async def telling(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                kept = [(name, value) for name, value in event.get("headers", ()) if name.lower() != b"cache-control"]
                event = {**event, "headers": [*kept, *carried]}
            # The HTTP server may start the next request of the connection in here, which must not get this session.
            with bound_session(None):
                await send(event)

        live = resolved.live
        session = self._gateway.tool_session(structs.replace(live.session, context=resolved.context))
        scope[SCOPE_KEY] = session
        with live.open_use(), bound_session(session):
            await self._app(scope, receive, telling)

    async def _resolve(self, scope: Scope) -> Any:
        headers = self._gateway.guard.headers(scope)
        request = Request(
            era=Era.MODERN,  # each request of an app names its client, without a handshake
            endpoint=scope["path"],
            headers=headers,
            same_site=is_same_site(headers),
            peer=peer_of(scope),
            client=self._gateway.guard.client_network(scope, headers),
            secure=self._gateway.guard.is_secure(scope, headers),
        )
        who = await self._gateway.senders.who(request)
        return await self._gateway.resolver.resume_or_open(request, who), request
