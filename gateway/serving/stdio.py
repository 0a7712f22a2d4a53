"""Serve a gateway to one client on stdin and stdout (`mcp-session-gateway stdio`)."""

import asyncio
import contextlib
import hmac
import os
import signal
import stat
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from queue import SimpleQueue
from typing import Any, Final, TextIO

from gateway.config.endpoint_paths import ALL
from gateway.config.sessions import KEY_HEADER, KEY_VARIABLE
from gateway.config.settings import ConfigurationError, GatewaySettings, Settings
from gateway.context.session_facts import SESSION_KEY
from gateway.identity.authenticate import Authenticated
from gateway.serving.app import create_app
from gateway.serving.gateway import Gateway
from gateway.sessions.client_chosen_keys import checked_key
from session_store import Session, StoreUnavailable, backend_for
from session_store.token_signing import Purpose, has_form_of_token
from session_store.tool_session import SOCKET_VARIABLE
from transports.background_tasks import Tasks
from transports.inbound.in_process_client import InProcessClient
from transports.inbound.two_way_connection import TwoWayConnection
from transports.inbound_port import Refused

SESSION_TOKEN_VARIABLE: Final = "MCP_SESSION_TOKEN"
STAC_VARIABLE: Final = "STAC_MCP_SESSION_ID"
"""A variable of another gateway's design. Its value is a token, a session id, or a name that the caller has chosen."""
API_KEY_VARIABLE: Final = "MCP_GATEWAY_API_KEY"
_LONGEST_LINE: Final = 64 << 20
_YEAR_S: Final = 31_536_000.0


def serve_stdio(settings: Settings, *, servers: Mapping[str, Any] | None = None, strict: bool = False) -> None:
    """Serve on stdin and stdout until stdin ends, or until SIGTERM or SIGINT. `servers`: server objects of the `mcp`
    SDK by name, in addition to those of the settings. If `strict`, refuse to start if a server cannot be used.

    Raises:
        ConfigurationError: the settings, or the session that the environment names, cannot be served.
    """
    asyncio.run(_serve(settings, servers, strict=strict))


async def _serve(settings: Settings, servers: Mapping[str, Any] | None, *, strict: bool) -> None:
    # Settings that protect a listening socket have no meaning here.
    local = _lasting(settings.gateway).model_copy(update={"host": "127.0.0.1", "allowed_hosts": ()})
    settings, headers = _with_fields(settings.model_copy(update={"gateway": local}))
    gateway = Gateway(settings, servers=servers, strict=strict)
    stop = asyncio.Event()

    def signalled() -> None:
        if stop.is_set():  # hosts close stdin, send a signal, and soon kill
            gateway.hurry()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    next_line = await _lines_of(sys.stdin)
    if credential := os.environ.get(API_KEY_VARIABLE, ""):
        headers["authorization"] = f"Bearer {credential}"
    async with gateway.running():
        who = await _caller(gateway, headers)
        name, is_token = await _variable(gateway)
        token = await _token(gateway, who, name) if is_token else ""
        if name and not is_token:
            headers[settings.gateway.session.key_header.lower()] = _as_header(_key(gateway, who, name))
        front = TwoWayConnection(
            InProcessClient(create_app(settings, gateway=gateway), ALL),
            _Output().write,
            token=token,
            # In a durable store the session waits for a client that starts again with its token.
            outlives=bool(name) or gateway.parts.foundation.backend.is_durable,
            session_key=SESSION_KEY,
            headers=headers,
        )
        tasks = Tasks("stdio")
        waiting = (tasks.spawn(_read(next_line, front)), tasks.spawn(stop.wait()))
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await tasks.close()
        await front.close()


def _lasting(options: GatewaySettings) -> GatewaySettings:
    """Return the options with sessions that last as long as the connection, except for times that the operator has set.

    The client of a connection cannot leave its session and open another one: after the end of its session, each of its
    calls would fail. In a durable store, sessions are there for later starts, too, so there they end as they do over
    HTTP.
    """
    session = options.session
    times = {} if backend_for(options.store).is_durable else {"idle_ttl_s": _YEAR_S, "max_age_s": _YEAR_S}
    for name, default in (*times.items(), ("unconfirmed_ttl_s", 0.0)):
        if name not in options.session.model_fields_set:
            session = session.model_copy(update={name: default or session.idle_ttl_s})
    return options.model_copy(update={"session": session})


def _with_fields(settings: Settings) -> tuple[Settings, dict[str, str]]:
    """Return changed settings, and headers for all requests of the client. In these settings, each field of the context
    that came from an environment variable comes from a header, and there is a header for the session key. The returned
    headers have the values of the variables."""
    options, headers, fields = settings.gateway, {}, dict(settings.gateway.context.fields)
    for number, (name, field) in enumerate(fields.items()):
        if field.variable:
            header = f"mcp-gateway-field-{number}"
            fields[name] = field.model_copy(update={"variable": "", "header": header, "client_header": True})
            if value := os.environ.get(field.variable, ""):
                headers[header] = _as_header(value)
    session = options.session.model_copy(update={"key_headers": options.session.key_headers or (KEY_HEADER,)})
    context = options.context.model_copy(update={"fields": fields})
    changed = options.model_copy(update={"context": context, "session": session})
    return settings.model_copy(update={"gateway": changed}), headers


def _as_header(value: str) -> str:
    """Return the value of an environment variable as the text of a header: each byte becomes one character."""
    return os.fsencode(value).decode("latin-1")


async def _caller(gateway: Gateway, headers: Mapping[str, str]) -> Authenticated:
    """Return the caller that the credential in the headers identifies.

    Raises:
        ConfigurationError: the credential is missing or refused.
    """
    try:
        return await gateway.identity.authenticate(headers, "")
    except Refused as refused:
        if "authorization" in headers:
            raise ConfigurationError(f"{API_KEY_VARIABLE}: {refused}") from None
        raise ConfigurationError(
            f"this gateway serves nobody without a credential: set {API_KEY_VARIABLE}, in the environment of this "
            "command, to an API key or access token"
        ) from None


async def _variable(gateway: Gateway) -> tuple[str, bool]:
    """Return the name of the environment variable that says which session to use; empty if no variable does. With it,
    return True if the value of the variable is a session token (or an id), and False if it is a session key."""
    if os.environ.get(SESSION_TOKEN_VARIABLE):
        return SESSION_TOKEN_VARIABLE, True
    # This gateway may itself be a server of a gateway. Then it has variables with facts of its session, whose names
    # operators choose: they are no wish of its user.
    if SOCKET_VARIABLE in os.environ:
        return "", False
    if os.environ.get(KEY_VARIABLE):
        return KEY_VARIABLE, False
    value = os.environ.get(STAC_VARIABLE, "")
    if not value:
        return "", False
    # Whoever gives a token, or the id of a session, means that session. Any other text is a name of their own.
    return STAC_VARIABLE, has_form_of_token(value) or await _found(gateway, STAC_VARIABLE, value) is not None


def _key(gateway: Gateway, who: Authenticated, name: str) -> str:
    """Return the session key in the environment variable `name`.

    The key of an anonymous caller is replaced by one that is derived with the signing keys. So callers may choose any
    name: nobody can open the session over HTTP by guessing or reading the name.

    Raises:
        ConfigurationError: the value is not a valid session key.
    """
    try:
        key: str = checked_key(os.environ[name])
    except Refused as refused:
        raise ConfigurationError(f"{name}: {refused}") from None
    if who.principal.is_anonymous:
        # The key that signs: keys that are added or removed behind it change nothing.
        secret = gateway.parts.foundation.ring.derive(Purpose.STDIO_KEY)[0]
        key = hmac.digest(secret, os.fsencode(key), "sha256").hex()
    return key


async def _token(gateway: Gateway, who: Authenticated, name: str) -> str:
    """Return the session token in the environment variable `name`. A refused token is audited.

    Raises:
        ConfigurationError: the token is invalid, its session has ended, or belongs to another principal.
    """
    token, new = os.environ[name], "unset it to start a new session"

    def refused_token(reason: str, message: str, session_id: str = "") -> ConfigurationError:
        # The audit trail has every refused token, also those that do not come by HTTP.
        gateway.audit.record("refused", session=session_id, principal=str(who.principal), reason=reason)
        return ConfigurationError(f"{name}: {message}")

    session_id = gateway.carriers.tokens.verify(token)
    if session_id is None:
        raise refused_token(
            "invalid session token",
            "this is not a session token of this gateway. A token is what the result of initialize has at "
            f"_meta[{SESSION_KEY!r}]; a session id, or a token signed with other keys (MCP_GATEWAY_KEYS) is none. "
            f"Correct it, or {new}; for a session of a name of your own, set {KEY_VARIABLE} instead",
        )
    session = await _found(gateway, name, session_id)
    if session is None:
        raise refused_token("ended or expired", f"the session has ended or expired; {new}", session_id)
    if session.principal != who.principal:
        raise refused_token(
            "session of another principal",
            f"the session belongs to another principal; set {API_KEY_VARIABLE} to its credential, or {new}",
            session_id,
        )
    return token


async def _found(gateway: Gateway, name: str, session_id: str) -> Session | None:
    """Return the session with that id; None if there is none. Raises `ConfigurationError` if the store does not answer.
    `name`: the environment variable that the id came from, for the text of the error."""
    try:
        return await gateway.parts.foundation.backend.sessions.peek(session_id)
    except StoreUnavailable as error:
        raise ConfigurationError(f"{name}: the session store does not answer: {error}") from None


async def _lines_of(stream: TextIO) -> Callable[[], Awaitable[bytes]]:
    """Return a function. Each call of it waits for the next line of `stream`, and returns the line; empty bytes at the
    end of the stream."""
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


async def _read(next_line: Callable[[], Awaitable[bytes]], front: TwoWayConnection) -> None:
    while line := await next_line():
        await front.receive(line)


class _Output:
    """Write lines to stdout in a daemon thread. If the client does not read, this blocks neither the event loop nor the
    exit of this process; a thread of a pool would block the exit."""

    def __init__(self) -> None:
        self._lines: SimpleQueue[tuple[bytes, asyncio.Future[None]]] = SimpleQueue()
        threading.Thread(target=self._run, args=(asyncio.get_running_loop(),), name="stdout", daemon=True).start()

    async def write(self, line: bytes) -> None:
        """Write a line, after the lines of earlier calls of this method. Return when the line is written."""
        written = asyncio.get_running_loop().create_future()
        self._lines.put((line + b"\n", written))
        await written

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while True:
                line, written = self._lines.get()
                with contextlib.suppress(BrokenPipeError):
                    while line:
                        line = line[os.write(sys.stdout.fileno(), line) :]
                loop.call_soon_threadsafe(_done, written)


def _done(written: asyncio.Future[None]) -> None:
    if not written.done():
        written.set_result(None)
