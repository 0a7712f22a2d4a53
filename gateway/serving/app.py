"""Make the ASGI apps of a gateway: one for clients, and one for the operators' own listener."""

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Lifespan

from gateway.config.addresses import is_loopback
from gateway.config.endpoint_paths import ALL, HEALTH, HOME, JWKS, READY, unserved
from gateway.config.settings import Settings
from gateway.observability.logs import CORRELATION
from gateway.serving.gateway import Gateway
from gateway.serving.pages.home_page import HomePage, is_for_people, is_plain
from gateway.serving.pages.server_cards import card_routes
from session_store import Backend
from transports.inbound.http_requests_and_responses import Receive, Scope, Send
from transports.inbound.http_sse import HttpSse
from transports.inbound.streamable_http import StreamableHttp

__all__ = ["Gateway", "GatewayApp", "create_app", "operators_app"]


_STORE_AWAY: Final = (
    "unavailable: this gateway serves its own sessions while its lease is valid; new sessions, and those of other "
    "gateways, get 503 until the store accepts writes"
)
"""The value of `store` in the answer of `/readyz` while the store accepts no writes. A load balancer with
deploy/haproxy.cfg prefers gateways whose answer has no `store`."""


class _App(Starlette):
    """A Starlette app that does not redirect paths with missing or extra slashes. The target of a redirect would be
    whatever host the request's Host header names."""

    def __init__(self, routes: list[BaseRoute], lifespan: Lifespan[Any] | None = None) -> None:
        super().__init__()
        self.router = Router(routes, redirect_slashes=False, lifespan=lifespan)


class GatewayApp(_App):
    """The ASGI app for clients. It calls MCP endpoints, the home page and the state API directly, because Starlette's
    router and middleware would take as long as a call. Other paths are left to Starlette."""

    def __init__(self, gateway: Gateway, routes: list[BaseRoute], home: HomePage) -> None:
        super().__init__(routes, gateway.lifespan)
        self._gateway = gateway
        self._state = gateway.state
        self._home = home
        self._endpoints: Mapping[str, StreamableHttp | HttpSse] = gateway.served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            CORRELATION.set("")  # a server may run this in the context of the connection's previous request
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            endpoint = self._endpoints.get(path) or self._endpoints.get(unserved(path))
            if endpoint is not None:
                if not self._state.is_running:
                    raise RuntimeError(
                        "the gateway is not running: give its lifespan to the app that mounts it, as in "
                        "FastAPI(lifespan=gateway.lifespan)"
                    )
                if scope["method"] == "GET" and path.endswith(ALL) and is_for_people(scope):
                    await self._home.serve(scope, receive, send, serves=self._state.may_serve())
                    return
                await endpoint(scope, receive, _closing(send) if self._state.is_draining else send)
                return
            if path in HOME and ((for_people := is_for_people(scope)) or is_plain(scope)):
                await self._home.serve(scope, receive, send, serves=self._state.may_serve(), as_text=not for_people)
                return
            if path.startswith("/v1/"):
                await self._gateway.state_api(scope, receive, send)
                return
        await super().__call__(scope, receive, send)


def _closing(send: Send) -> Send:
    """Return an ASGI `send` that calls `send`, and adds `Connection: close` to the headers of the response."""

    async def sending(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            event = {**event, "headers": [*event["headers"], (b"connection", b"close")]}
        await send(event)

    return sending


def _health(gateway: Gateway, *, names_servers: bool) -> list[BaseRoute]:
    """Return the routes of the liveness and readiness probes. `names_servers`: if True, the answer of the readiness
    probe also lists the servers that cannot be used."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        ready = await gateway.is_ready()
        found: dict[str, Any] = {"ready": ready, "draining": gateway.is_draining}
        if gateway.store_is_away:
            found["store"] = _STORE_AWAY
        if names_servers:
            found["unavailable"] = gateway.unavailable
        return JSONResponse(found, status_code=200 if ready else 503)

    return [Route(HEALTH, healthz), Route(READY, readyz)]


def operators_app(gateway: Gateway) -> Starlette:
    """Return the ASGI app of the operators' own listener (`gateway.admin.listen`). It serves the probes, the console,
    the REST interface and metrics."""
    return _App([*_health(gateway, names_servers=True), *gateway.operator_routes])


def create_app(
    settings: Settings,
    *,
    store: Backend | None = None,
    servers: Mapping[str, Any] | None = None,
    gateway: Gateway | None = None,
) -> Starlette:
    """Return an ASGI app that serves a gateway.

    The app's lifespan has to run: an app that mounts this one passes it on (docs/embedding.md). `store` replaces the
    store that the settings name. `servers`: server objects of the `mcp` SDK by name, in addition to those of the
    settings. If `gateway` is given, serve it, and build none from the other arguments.

    Raises:
        ConfigurationError: the settings cannot be served.
    """
    gateway = Gateway(settings, store=store, servers=servers) if gateway is None else gateway
    options = settings.gateway

    async def jwks(_: Request) -> Response:
        return JSONResponse(gateway.assertions.jwks(), headers={"Cache-Control": "public, max-age=300"})

    async def metadata(_: Request) -> Response:
        return JSONResponse(gateway.metadata.document(), headers={"Access-Control-Allow-Origin": "*"})

    routes: list[BaseRoute] = [*_health(gateway, names_servers=False), Route(JWKS, jwks)]
    routes += [Route(path, metadata) for path in gateway.metadata.paths]
    routes += gateway.consent_routes
    routes += card_routes(options.cards, options.browser_url, gateway.rates, gateway.guard)
    if not options.admin.listen:
        routes += gateway.operator_routes
    has_console = is_loopback(options.host) and gateway.has_console and not options.admin.listen
    needs_token = not options.allows_anonymous
    home = HomePage(gateway.guard, gateway.rates, needs_token=needs_token, has_console=has_console)
    return GatewayApp(gateway, routes, home)
