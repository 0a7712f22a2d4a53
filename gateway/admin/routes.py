"""Make the operators' routes: console and REST under `/admin`, metrics at `/metrics`."""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.admin.auth import CHALLENGE, Access, TooManyAttempts
from gateway.admin.verb_handlers import Operations
from session_store import Backend, StoreUnavailable

if TYPE_CHECKING:
    from gateway.admin.prometheus import PrometheusExporter

__all__ = ["ADMIN", "operator_routes"]

ADMIN, METRICS = "/admin", "/metrics"
_STORE_PATIENCE_S = 0.5
"""Seconds that a scrape of the metrics waits for the store. After a longer wait, the scraper could time out."""


def operator_routes(
    *,
    operations: Operations,
    access: Access,
    exposition: "Callable[[], PrometheusExporter]",
    backend: Backend,
    open_metrics: bool,
) -> list[BaseRoute]:
    """Return the operators' routes for Starlette: console, REST and metrics. If no operator can sign in, there is no
    console and no REST. `exposition`: returns the exporter of the metrics. `open_metrics`: True if the metrics need no
    key."""
    routes: list[BaseRoute] = []
    if access.is_open:
        # Not loaded by a gateway that no operator can reach.
        from gateway.admin.console import Console
        from gateway.admin.rest import Rest

        routes += [*Rest(operations, access).routes, *Console(operations, access).routes]
    if access.is_open or open_metrics:
        routes.append(Route(METRICS, _metrics(access, exposition(), backend, is_open=open_metrics)))
    return routes


def _metrics(
    access: Access, exposition: "PrometheusExporter", backend: Backend, *, is_open: bool
) -> Callable[[Request], Awaitable[Response]]:
    async def metrics(request: Request) -> Response:
        try:
            is_refused = not is_open and await access.operator(request) is None
        except TooManyAttempts as error:
            return JSONResponse({"detail": str(error)}, 429, {"Retry-After": f"{error.wait_s:.0f}"})
        except StoreUnavailable:
            return JSONResponse({"detail": "the session store does not answer; send a key, not a cookie"}, 503)
        if is_refused:
            return JSONResponse({"detail": "send Authorization: Bearer with an operator's key"}, 401, CHALLENGE)
        began = perf_counter()
        store_s: float | None = None
        replicas = 1
        try:
            async with asyncio.timeout(_STORE_PATIENCE_S):
                await backend.try_write()  # a store that is full answers a ping
                store_s = perf_counter() - began
                if backend.is_shared:
                    replicas = len(await backend.directory.replicas())
        except (StoreUnavailable, TimeoutError):
            store_s, replicas = None, 0
        text, kind = await exposition.render(request.headers.get("accept", ""), store_s, replicas)
        return Response(text, headers={"Content-Type": kind})

    return metrics
