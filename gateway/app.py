"""The composition root: the only place that picks concrete stores and transports."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from time import time

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway.bridge.input_required import StateSeal
from gateway.bridge.legacy_client import LegacyClients
from gateway.bridge.modern_client import ModernClients
from gateway.endpoint import Endpoint
from gateway.identity import Identity
from gateway.live import LiveSession, LiveSessions
from gateway.pipeline import Pipeline
from gateway.relay import Relay
from gateway.sessions import Sessions
from gateway.settings import ConfigurationError, GatewaySettings, Settings, UpstreamSettings
from gateway.upstreams import ConfiguredUpstream
from session_store import InvalidKeyRing, KeyRing, MemoryEventLog, MemorySessionStore, StoreUnavailable
from transports.inbound.http import Guard
from transports.inbound.streamable_http import StreamableHttp
from transports.upstream.process import Supervisor
from transports.upstream.stdio import StdioUpstream

__all__ = ["Gateway", "create_app", "key_ring"]

logger = logging.getLogger(__name__)

ALL = "/mcp"
"""The path that serves every upstream; `/servers/NAME/mcp` serves one."""

SWEEP_EVERY_S = 1.0
"""How often ended sessions are cleared away and sessions in use kept alive; more often where sessions live short."""


def key_ring() -> KeyRing:
    """The operator's keys from `MCP_GATEWAY_KEYS`, or one for the lifetime of the memory store.

    Raises:
        ConfigurationError: the keys cannot be used.
    """
    text = os.environ.get("MCP_GATEWAY_KEYS", "")
    if not text:
        return KeyRing.ephemeral()
    try:
        return KeyRing.parse(text)
    except InvalidKeyRing as error:
        raise ConfigurationError(f"MCP_GATEWAY_KEYS: {error}") from None


class Gateway:
    """Everything one gateway process holds, put together from its settings."""

    def __init__(self, settings: Settings, *, ring: KeyRing | None = None, clock: Callable[[], float] = time) -> None:
        options = settings.gateway
        ring = key_ring() if ring is None else ring
        self.is_draining = False
        lives = options.session
        self._sweep_every_s = min(SWEEP_EVERY_S, lives.unconfirmed_ttl_s / 3, lives.idle_ttl_s / 3)
        self._events = MemoryEventLog()
        self._live = LiveSessions(self._events)
        self._store = MemorySessionStore(
            clock=clock, max_sessions=options.session.max_sessions, in_use=self._live.in_use
        )
        self._sessions = Sessions(
            store=self._store,
            live=self._live,
            ring=ring,
            settings=options.session,
            clock=clock,
            closed=self._forget,
        )
        self._supervisor = Supervisor()
        self._upstreams = [self._upstream(name, entry, options) for name, entry in settings.mcpServers.items()]
        timeout = options.limits.call_timeout_s
        endpoints = {ALL: Endpoint(self._upstreams, call_timeout_s=timeout)}
        endpoints |= {f"/servers/{u.name}/mcp": Endpoint([u], call_timeout_s=timeout) for u in self._upstreams}
        relay = Relay(
            sessions=self._sessions,
            events=self._events,
            result_meta=options.result_meta,
            max_exchanges=options.limits.exchanges,
        )
        sessions, events = self._sessions, self._events
        pipeline = Pipeline(
            identity=Identity(api_keys=options.api_keys, allow_anonymous=options.allows_anonymous),
            legacy=LegacyClients(relay=relay, sessions=sessions, endpoints=endpoints, events=events),
            modern=ModernClients(relay=relay, sessions=sessions, endpoints=endpoints, seal=StateSeal(ring, clock)),
            endpoints=endpoints,
        )
        guard = _guard(options)
        self.routes = [
            Route(
                path,
                StreamableHttp(
                    pipeline,
                    path,
                    guard=guard,
                    body_limit=options.limits.body_bytes,
                    poll_after_s=options.limits.poll_after_s,
                ),
            )
            for path in endpoints
        ]

    def _upstream(self, name: str, entry: UpstreamSettings, options: GatewaySettings) -> ConfiguredUpstream:
        stdio = StdioUpstream(
            name=name,
            argv=entry.argv,
            env=entry.env,
            cwd=entry.cwd,
            supervisor=self._supervisor,
            max_line_bytes=options.limits.line_bytes,
            grace_s=options.limits.shutdown_grace_s,
        )
        return ConfiguredUpstream(name, entry, stdio, options.limits)

    def _forget(self, live: LiveSession) -> None:
        for upstream in self._upstreams:
            upstream.forget(live)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the servers' probe and the sweeper; at the end, leave no process behind."""
        async with self._supervisor:
            probes = [upstream.probe() for upstream in self._upstreams]
            sweeper = asyncio.create_task(self._sweep())
            try:
                # A client's first discover finds the cache filled; a slow server holds up the start for 10 s at most.
                if probes:
                    await asyncio.wait(probes, timeout=10.0)
                yield
            finally:
                sweeper.cancel()
                await asyncio.gather(sweeper, return_exceptions=True)
                closing = [self._sessions.close(live.session.id, "gateway stops") for live in self._live]
                await asyncio.gather(
                    *closing, *(u.close() for u in self._upstreams), self._sessions.closed_all(), return_exceptions=True
                )

    async def drain(self) -> None:
        """Not ready any more; open streams end, so that their clients go elsewhere."""
        self.is_draining = True
        for live in self._live:
            await self._events.drop(live.session.id)
            for exchange in list(live.exchanges.values()):
                if exchange.is_subscription and exchange.conversation is not None:
                    exchange.conversation.cancel(exchange, "the gateway stops")

    async def is_ready(self) -> bool:
        """Whether new requests can be served."""
        if self.is_draining:
            return False
        try:
            await self._store.peek("")
        except StoreUnavailable:
            return False
        return True

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_every_s)
            try:
                await self._sessions.sweep()
            except StoreUnavailable as error:
                logger.warning("the session store does not answer: %s", error)


def create_app(settings: Settings, *, gateway: Gateway | None = None) -> Starlette:
    """The gateway as an ASGI app.

    Raises:
        ConfigurationError: the settings cannot be served.
    """
    gateway = Gateway(settings) if gateway is None else gateway

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        ready = await gateway.is_ready()
        return JSONResponse({"ready": ready, "draining": gateway.is_draining}, status_code=200 if ready else 503)

    return Starlette(
        routes=[*gateway.routes, Route("/healthz", healthz), Route("/readyz", readyz)],
        lifespan=lifespan,
    )


def _guard(options: GatewaySettings) -> Guard:
    return Guard(
        hosts=frozenset(options.allowed_hosts),
        origins=frozenset(options.allowed_origins),
        loopback=options.host in ("127.0.0.1", "::1", "localhost"),
    )
