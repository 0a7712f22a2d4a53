"""Runs the app under uvicorn: one socket, one line when it serves, an end that leaves nothing."""

import asyncio
import gc
import socket
import sys

import uvicorn

from gateway.app import Gateway, create_app
from gateway.settings import Settings

__all__ = ["serve"]

DRAIN_TIMEOUT_S = 10
"""How long calls in flight may take to finish after SIGTERM."""


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
            print(f"ready {self._url}", file=sys.stderr, flush=True)  # noqa: T201  # the line people and tools wait for

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
        server_header=False,
        proxy_headers=False,  # the one we heed is read with the others
        timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
    )
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        port = listener.getsockname()[1]
        host = f"[{options.host}]" if family == socket.AF_INET6 else options.host
        _Server(config, gateway, f"http://{host}:{port}/mcp").run(sockets=[listener])
