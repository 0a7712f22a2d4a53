"""`mcp-session-gateway stdio`: the gateway for one client on this machine, on stdin and stdout."""

import asyncio
import contextlib
import os
import signal
import sys
from typing import Final

from gateway.config.settings import Settings
from gateway.serving.app import create_app
from gateway.serving.gateway import Gateway
from gateway.serving.paths import ALL
from transports.inbound.connected import Connected
from transports.inbound.inside import Inside
from transports.tasks import Tasks

__all__ = ["serve_stdio"]

TOKEN_VARIABLE: Final = "MCP_SESSION_TOKEN"
API_KEY_VARIABLE: Final = "MCP_GATEWAY_API_KEY"
_LONGEST_LINE: Final = 64 << 20


def serve_stdio(settings: Settings) -> None:
    """Serve until stdin ends, SIGTERM or SIGINT.

    Raises:
        ConfigurationError: the settings cannot be served.
    """
    asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    # What guards a listening socket has no meaning here.
    local = settings.gateway.model_copy(update={"host": "127.0.0.1", "allowed_hosts": ()})
    settings = settings.model_copy(update={"gateway": local})
    gateway = Gateway(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    lines = asyncio.Lock()

    async def write(line: bytes) -> None:
        async with lines:
            # In a thread: a client that does not read must not stop the rest.
            await asyncio.to_thread(_write_all, line + b"\n")

    key = os.environ.get(API_KEY_VARIABLE, "")
    async with gateway.running():
        front = Connected(
            Inside(create_app(settings, gateway=gateway), ALL),
            write,
            token=os.environ.get(TOKEN_VARIABLE, ""),
            headers={"authorization": f"Bearer {key}"} if key else None,
        )
        tasks = Tasks("stdio")
        waiting = (tasks.spawn(_read(reader, front)), tasks.spawn(stop.wait()))
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await tasks.close()
        await front.close()


async def _read(reader: asyncio.StreamReader, front: Connected) -> None:
    while line := await reader.readline():
        await front.receive(line)


def _write_all(data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(1, data) :]
