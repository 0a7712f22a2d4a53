"""Serve a gateway to one client on stdin and stdout (`mcp-session-gateway stdio`)."""

import asyncio
import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from queue import SimpleQueue
from typing import Final, TextIO

from gateway.config.settings import ConfigurationError, Settings
from gateway.context.session_facts import SESSION_KEY
from gateway.serving.app import create_app
from gateway.serving.gateway import Gateway
from gateway.serving.paths import ALL
from session_store import StoreUnavailable
from session_store.tool_session import SOCKET_VARIABLE
from transports.inbound.in_process_client import InProcessClient
from transports.inbound.stream_connection import StreamConnection
from transports.inbound_port import Refused
from transports.tasks import Tasks

TOKEN_VARIABLES: Final = ("MCP_SESSION_TOKEN", "STAC_MCP_SESSION_ID")
API_KEY_VARIABLE: Final = "MCP_GATEWAY_API_KEY"
_LONGEST_LINE: Final = 64 << 20


def serve_stdio(settings: Settings) -> None:
    """Serve on stdin and stdout until stdin ends, or until SIGTERM or SIGINT.

    Raises:
        ConfigurationError: the settings, or the session that the environment names, cannot be served.
    """
    asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    # Settings that protect a listening socket have no meaning here.
    local = settings.gateway.model_copy(update={"host": "127.0.0.1", "allowed_hosts": ()})
    settings = settings.model_copy(update={"gateway": local})
    gateway = Gateway(settings)
    stop = asyncio.Event()

    def signalled() -> None:
        if stop.is_set():  # hosts close stdin, send a signal, and soon kill
            gateway.hurry()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    next_line = await _lines_of(sys.stdin)
    key = os.environ.get(API_KEY_VARIABLE, "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with gateway.running():
        token = await _token(gateway, headers)
        front = StreamConnection(
            InProcessClient(create_app(settings, gateway=gateway), ALL),
            _Output().write,
            token=token,
            # In a durable store the session waits for a client that starts again with its token.
            outlives=bool(token) or gateway.parts.foundation.backend.is_durable,
            session_key=SESSION_KEY,
            headers=headers,
        )
        tasks = Tasks("stdio")
        waiting = (tasks.spawn(_read(next_line, front)), tasks.spawn(stop.wait()))
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await tasks.close()
        await front.close()


async def _token(gateway: Gateway, headers: Mapping[str, str]) -> str:
    """Return the token of the session that the environment names; empty if it names none.

    Raises:
        ConfigurationError: there is no such session, or it belongs to another principal.
    """
    # This gateway may itself be a server of a gateway. Then it has variables with facts of its session, whose names
    # operators choose: they are no wish of its user.
    variables = TOKEN_VARIABLES[:1] if SOCKET_VARIABLE in os.environ else TOKEN_VARIABLES
    name = next((name for name in variables if os.environ.get(name)), "")
    if not name:
        return ""
    token, new = os.environ[name], "unset it to start a new session"
    try:
        who = await gateway.identity.authenticate(headers, "")
    except Refused as refused:
        raise ConfigurationError(f"{API_KEY_VARIABLE}: {refused}") from None

    def refused_token(reason: str, message: str, session_id: str = "") -> ConfigurationError:
        # The audit trail has every refused token, also those that do not come by HTTP.
        gateway.audit.record("refused", session=session_id, principal=str(who.principal), reason=reason)
        return ConfigurationError(f"{name}: {message}")

    session_id = gateway.carriers.tokens.verify(token)
    if session_id is None:
        raise refused_token(
            "invalid session token",
            "this is not a session token of this gateway. A token is what the result of initialize has at "
            f"_meta[{SESSION_KEY!r}]; a session id, a name of your own, or a token signed with other keys "
            f"(MCP_GATEWAY_KEYS) is none. Correct it, or {new}",
        )
    try:
        session = await gateway.parts.foundation.backend.sessions.peek(session_id)
    except StoreUnavailable as error:
        raise ConfigurationError(f"{name}: the session store does not answer: {error}") from None
    if session is None:
        raise refused_token("ended or expired", f"the session has ended or expired; {new}", session_id)
    if session.principal != who.principal:
        raise refused_token(
            "session of another principal",
            f"the session belongs to another principal; set {API_KEY_VARIABLE} to its credential, or {new}",
            session_id,
        )
    return token


async def _lines_of(stream: TextIO) -> Callable[[], Awaitable[bytes]]:
    """Return a function that returns the next line of a stream, or empty bytes at its end."""
    kind = os.fstat(stream.fileno()).st_mode
    if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or stream.isatty():
        reader = asyncio.StreamReader(limit=_LONGEST_LINE)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
        return reader.readline
    # The event loop cannot wait for a file or /dev/null. A thread reads it, because the disk may be slow.
    lines = stream.buffer

    async def next_line() -> bytes:
        line: bytes = await asyncio.to_thread(lines.readline, _LONGEST_LINE + 1)
        if len(line) > _LONGEST_LINE:
            raise ValueError(f"a line on stdin is longer than {_LONGEST_LINE} bytes")
        return line

    return next_line


async def _read(next_line: Callable[[], Awaitable[bytes]], front: StreamConnection) -> None:
    while line := await next_line():
        await front.receive(line)


class _Output:
    """Writes lines to stdout in a daemon thread. So a client that does not read blocks neither the event loop nor, as a
    thread of a pool would, the exit of this process."""

    def __init__(self) -> None:
        self._lines: SimpleQueue[tuple[bytes, asyncio.Future[None]]] = SimpleQueue()
        threading.Thread(target=self._run, args=(asyncio.get_running_loop(),), name="stdout", daemon=True).start()

    async def write(self, line: bytes) -> None:
        """Write a line after those of earlier calls. Return when it is written."""
        written = asyncio.get_running_loop().create_future()
        self._lines.put((line + b"\n", written))
        await written

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while True:
                line, written = self._lines.get()
                _write_all(line)
                loop.call_soon_threadsafe(_done, written)


def _done(written: asyncio.Future[None]) -> None:
    if not written.done():
        written.set_result(None)


def _write_all(data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]
