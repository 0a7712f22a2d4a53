"""Runs the app under uvicorn: one socket, one line when it serves, an end that leaves nothing."""

import asyncio
import gc
import socket

import uvicorn

from gateway.app import Gateway, create_app
from gateway.settings import Settings
from gateway.workers import inherited_listener, tell_ready
from transports.inbound.lean_http import LeanHttpProtocol

__all__ = ["serve"]

DRAIN_TIMEOUT_S = 10
"""How long calls in flight may take to finish after SIGTERM."""

KEEP_ALIVE_S = 75
"""How long an idle connection stays: longer than load balancers keep theirs (60 s is common). Who sends requests should
be the one who closes it, or a request is lost now and then."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, gateway: Gateway, url: str) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # What is there now stays: the collector need not walk through it again, nor stop calls for it so often.
            gc.freeze()
            gc.set_threshold(10_000, 50, 100)
            tell_ready(self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._gateway.drain()
        await super().shutdown(sockets)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        OSError: the address cannot be had.
        ConfigurationError: the settings cannot be served.
    """
    options = settings.gateway
    gateway = Gateway(settings)
    # Before anything listens, and where an error still reaches the person who started it.
    asyncio.run(gateway.try_store())
    config = uvicorn.Config(
        create_app(settings, gateway=gateway),
        host=options.host,
        port=options.port,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        http=LeanHttpProtocol,
        server_header=False,
        proxy_headers=False,  # the one we heed is read with the others
        timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    with _listener(options.host, options.port) as listener:
        port = listener.getsockname()[1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        _Server(config, gateway, f"http://{host}:{port}/mcp").run(sockets=[listener])


def _listener(host: str, port: int) -> socket.socket:
    inherited = inherited_listener()
    if inherited is not None:
        return inherited
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
