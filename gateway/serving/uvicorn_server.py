"""Run a gateway under uvicorn: open the listeners, serve, print `ready URL`, and stop in order."""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from math import ceil
from pathlib import Path
from typing import Any, Final, Literal

import uvicorn

from gateway.admin.routes import ADMIN
from gateway.config.addresses import host_and_port, is_loopback
from gateway.config.endpoint_paths import ALL
from gateway.config.settings import ConfigurationError, Settings
from gateway.observability.process_memory import HeapTrimming
from gateway.observability.queued_output import drain_stderr
from gateway.serving.app import Gateway, create_app, operators_app
from gateway.serving.drain import HAND_OVER_S
from gateway.serving.reload import ReloadTriggers
from gateway.serving.socket_passing import Received, SiblingWorkers, inherited_siblings
from gateway.serving.startup_greeting import Welcome, farewell
from gateway.serving.workers import (
    IS_READY,
    SERVES,
    bound_socket,
    inherited_listener,
    report,
    url_of,
    worker_number,
)
from transports.background_tasks import Tasks
from transports.inbound.connection_handover import MOST_MOVES, TAKEN
from transports.inbound.connections import Connections
from transports.inbound.head_cache import HeadCache
from transports.inbound.http_connection import http_connections
from transports.inbound.unauthenticated_limits import room_for_connections

logger = logging.getLogger(__name__)

_ASK_EVERY_S: Final = 0.5
"""Seconds between the questions whether a gateway that serves is ready."""

_TICKS: Final = 10
"""uvicorn ticks ten times a second."""

CLOSE_S: Final = ceil(HAND_OVER_S)
"""The maximum seconds that connections stay open after `Drain.drain`. A gateway without other replicas does not wait in
`drain`, so its calls in flight have this time."""

OPERATORS_CONNECTIONS = 128
"""The maximum number of connections to the operators' own listener; half of them from one address at most."""

_NOBODYS_USER: Final = 65_533
"""The id of a user that does not exist: the one before `nobody`. It is valid in containers with their own range of
users."""


def make_loop(make: Callable[[], asyncio.AbstractEventLoop]) -> asyncio.AbstractEventLoop:
    """Make an event loop. If this process is root, have the kernel count the loop's epoll watches for another user.

    The kernel counts watches for the real user of the process that made the epoll. A sandboxed server of the same user
    can use up all of them, and then uvloop ends this process.
    """
    if os.getresuid() != (0, 0, 0):
        return make()
    try:
        os.setresuid(_NOBODYS_USER, -1, -1)  # the effective user stays, and all rights with it
    except OSError:  # a container without that user
        return make()
    try:
        return make()
    finally:
        os.setresuid(0, -1, -1)


class HandedConnections:
    """Serve connections that other workers hand over. If this worker has no room, or if `may_serve` returns False, send
    the connection back to its sender, which serves it."""

    def __init__(self, siblings: SiblingWorkers, connections: Connections, may_serve: Callable[[], bool]) -> None:
        self._siblings = siblings
        self._connections = connections
        self._may_serve = may_serve
        self._tasks = Tasks("handed connections")
        self._server: uvicorn.Server | None = None

    def start(self, server: uvicorn.Server, replica: str) -> None:
        """Begin to receive connections, which `server` serves; called once it has started. `replica`: this worker's
        name among the replicas, by which other workers find it."""
        self._server = server
        self._siblings.join(replica)
        self._wait()

    def stop(self) -> None:
        self._server = None
        asyncio.get_running_loop().remove_reader(self._siblings.inbox)

    def _wait(self) -> None:
        if self._server is not None:
            asyncio.get_running_loop().add_reader(self._siblings.inbox, self._arrived)

    def _arrived(self) -> None:
        # One at a time: each has to be counted before the limits are checked for the next.
        asyncio.get_running_loop().remove_reader(self._siblings.inbox)
        self._tasks.spawn(self._receive())

    async def _receive(self) -> None:
        try:
            while self._server is not None and (received := self._siblings.receive()) is not None:
                await self._take(received, self._server)
        finally:
            self._wait()

    async def _take(self, received: Received, server: uvicorn.Server) -> None:
        connection, moves = received.connection, received.moves
        try:
            peer = connection.getpeername()[0]
        except OSError:  # the client has gone meanwhile
            connection.close()
            return
        has_room = self._may_serve() and self._connections.has_room(peer)
        # A connection that came back is accepted or refused as any other.
        if not has_room and moves <= MOST_MOVES and self._siblings.give_back(received, MOST_MOVES + 1):
            return
        self._siblings.counts[TAKEN] += 1
        loop, config = asyncio.get_running_loop(), server.config
        made: Any = config.http_protocol_class  # a factory (`http_connections`)
        connection.setblocking(False)
        try:
            await loop.connect_accepted_socket(
                lambda: made(
                    config=config,
                    server_state=server.server_state,
                    app_state=server.lifespan.state,
                    _loop=loop,
                    moves=moves,
                ),
                connection,
            )
        except OSError:
            logger.debug("a connection from another worker failed", exc_info=True)
            connection.close()


class _Config(uvicorn.Config):
    def get_loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        factory = super().get_loop_factory()
        if sys.platform != "linux" or factory is None or not factory.__module__.startswith("uvloop"):
            return factory
        from gateway.serving.epoll_reserve import GuardedLoop  # where there is uvloop

        return partial(make_loop, GuardedLoop)


class _Beside(uvicorn.Server):
    """Serve the operators' own listener beside that of clients. Signals are left to the server of clients. `serves` is
    set once this server listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serves = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serves.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Server(uvicorn.Server):
    """Serve the clients' listener, and start and stop with it what this process serves beside it.

    `operators`: the server of the operators' own listener, with its socket; None: there is none. `handed`: receives
    connections of other workers; None: there are none. `serves` is called once clients are served.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        gateway: Gateway,
        operators: tuple[_Beside, socket.socket] | None,
        handed: HandedConnections | None,
        welcome: Welcome,
        serves: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._operators = operators
        self._handed = handed
        self._welcome = welcome
        self._serves = serves
        self._tasks = Tasks("the operators' listener")
        self._heap = HeapTrimming()

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            self._heap.trim_if_due(is_short=self._gateway.memory.is_short)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            try:
                yield
            finally:
                drain_stderr()  # after this, the signal ends the process without calling `atexit` functions

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        with self._welcome.starting(self._gateway):
            await super().startup(sockets)
        if self.started and self._operators is not None:
            server, listener = self._operators
            self._tasks.spawn(server.serve(sockets=[listener]))
            await server.serves.wait()
        if self.started and self._handed is not None:
            self._handed.start(self, self._gateway.replica)
        if self.started:
            self._serves()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        base = self._gateway.parts.foundation
        count = base.live.count  # the drain hands them over
        if calls := sum(1 for live in base.live for exchange in live.exchanges if exchange.server):
            logger.info("stopping when all calls have ended (%d in flight), at the latest in %d s", calls, HAND_OVER_S)
        await self._gateway.drain()
        if self._operators is not None:
            self._operators[0].should_exit = True
            await self._tasks.settled()
        if self._handed is not None:
            self._handed.stop()
        await super().shutdown(sockets)
        if self.force_exit:  # a second Ctrl+C: no connection is waited for, but what is buffered must still be written
            await self.lifespan.shutdown()
        logger.info("%s", farewell(count, base.settings.gateway.store, self._gateway.store_fault))


def serve(
    settings: Settings,
    welcome: Welcome | None = None,
    *,
    read: Callable[[], Settings],
    file: Path | None = None,
    read_from: tuple[int, ...] = (),
    strict: bool = False,
) -> None:
    """Serve a gateway until SIGTERM or SIGINT.

    Args:
        settings: the settings to start with.
        welcome: shows the start to the user. None: lines for programs say when the gateway serves and is ready.
        read: reads the settings again, and returns them. It is called for each reload: on SIGHUP, at an operator's
            request, and when `file` or the lock file has changed.
        file: the configuration's file; None: no configuration file is watched.
        read_from: the state of `file` (`state_of`) before `settings` were read from it; empty: unknown.
        strict: if True, refuse to start if a server cannot be used.

    Raises:
        OSError: the address cannot be listened on.
        ConfigurationError: the settings cannot be served.
    """
    welcome = welcome or Welcome()
    gateway = Gateway(settings, link=welcome.link, strict=strict, read=read)
    # Before anything listens, and where an error still reaches the person who started it.
    asyncio.run(gateway.try_store())
    app = _remembering(create_app(settings, gateway=gateway), refused := list[ConfigurationError]())

    tasks, triggers = (
        Tasks("the start"),
        ReloadTriggers(gateway.reload_again, file, lambda: gateway.settings.gateway.policy.lock, read_from),
    )

    def serves(url: str) -> None:
        _settle_interpreter()
        triggers.start()
        tasks.spawn(_tell(gateway, welcome, url))

    with contextlib.ExitStack() as stack:
        stack.callback(welcome.ended)
        siblings = inherited_siblings(gateway.metrics.counters["connection_hand_overs"])
        if siblings is not None:
            stack.callback(siblings.close)
        try:
            server, listener = stack.enter_context(
                open_listeners(gateway, app, serves, welcome=welcome, siblings=siblings)
            )
            server.run(sockets=[listener])
        except SystemExit:
            if not refused:
                raise
        if refused:
            raise refused[0]


async def _tell(gateway: Gateway, welcome: Welcome, url: str) -> None:
    """Show that clients are served at `url`. Wait until the gateway is ready, and show that, too. A worker does not
    show either: it reports both to its parent."""
    is_ready = await gateway.is_ready()
    if not report(SERVES, *([IS_READY] if is_ready else [])):
        welcome.serves(gateway, url, is_ready=is_ready)
    if is_ready:
        return
    while not is_ready:
        await asyncio.sleep(_ASK_EVERY_S)
        is_ready = await gateway.is_ready()
    if not report(IS_READY):
        welcome.ready(url)


@contextlib.contextmanager
def open_listeners(
    gateway: Gateway,
    app: Any,
    serves: Callable[[str], None],
    *,
    welcome: Welcome,
    siblings: SiblingWorkers | None = None,
    loop: Literal["auto", "asyncio"] = "auto",
) -> Iterator[tuple[uvicorn.Server, socket.socket]]:
    """Open the listeners of a gateway. Yield the server of its app, and the listening socket on which to run it.

    Args:
        gateway: the gateway to be served.
        app: its ASGI app.
        serves: called with the URL of the endpoint once clients are served.
        welcome: shows the start to the user.
        siblings: the other workers, if this process is a worker.
        loop: the kind of event loop, as uvicorn names it.

    Raises:
        OSError: the address for clients cannot be listened on.
        ConfigurationError: the address for operators cannot be listened on.
    """
    settings = gateway.parts.foundation.settings
    options = settings.gateway
    connections = _limited(gateway, settings)
    handed = None if siblings is None else HandedConnections(siblings, connections, gateway.state.may_serve)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(inherited_listener() or bound_socket(options.host, options.port))
        operators = None
        if options.admin.listen:
            host, port = host_and_port(options.admin.listen)
            try:
                beside = stack.enter_context(bound_socket(host, port and port + worker_number()))
            except OSError as error:
                raise ConfigurationError(f"gateway.admin.listen: {options.admin.listen}: {error.strerror}") from None
            operators = (_operators(gateway, settings), beside)
            logger.info("operators are served at %s", url_of(host, beside, ADMIN))
        http: Any = http_connections(connections, _head_cache(gateway), siblings)  # uvicorn's types allow only classes
        config = _Config(
            app,
            loop=loop,
            log_config=None,
            access_log=False,
            interface="asgi3",
            lifespan="on",
            ws="none",
            http=http,
            server_header=False,
            proxy_headers=False,  # the gateway reads the headers of trusted proxies itself
            timeout_graceful_shutdown=CLOSE_S,
            timeout_keep_alive=ceil(options.limits.idle_timeout_s),
        )
        announce = partial(serves, url_of(options.host, listener, ALL))
        yield _Server(config, gateway, operators, handed, welcome, announce), listener


def _settle_interpreter() -> None:
    """Tune the garbage collector and thread switches for a process that only serves a gateway."""
    # All present objects stay: the collector need not visit them again.
    gc.freeze()
    # Reference cycles of refused connections are still found in time. To visit the youngest generation takes a
    # millisecond, and the middle one 3. The oldest one, which takes 1 µs for each object of a session, is visited
    # only when it has grown by a quarter and by a million objects.
    gc.set_threshold(2_000, 5, 100)
    # The loop releases and takes the interpreter more often than each 5 ms, the default interval. So while a server
    # floods the loop, a thread that asks after 5 ms never gets it: SQLite's needed a second for a transaction.
    sys.setswitchinterval(0.0005)


def _remembering(app: Any, refused: list[ConfigurationError]) -> Any:
    """Return an ASGI app that serves `app`. If the start of `app` raises `ConfigurationError`, the error is appended to
    `refused`, for the caller to report. Any other error of its start or end is logged."""

    async def lifespan(scope: Any, receive: Any, send: Any) -> None:
        async def telling(message: Any) -> None:
            # The caller reports the whole error, so uvicorn need not log it.
            await send(message | {"message": ""} if message["type"] == "lifespan.startup.failed" else message)

        try:
            await app(scope, receive, telling)
        except ConfigurationError as error:
            refused.append(error)
            raise
        except Exception:
            logger.exception("the gateway cannot start, or did not end well")
            raise

    def remembering(scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        # Not a coroutine function: it would add a coroutine to each request.
        serving = lifespan if scope["type"] == "lifespan" else app
        awaited: Awaitable[None] = serving(scope, receive, send)
        return awaited

    return remembering


def _head_cache(gateway: Gateway) -> HeadCache:
    """Return the cache of requests that all client connections share. Requests that it recognizes go directly to the
    endpoints, not through `GatewayApp`. So all that `GatewayApp` decides about them has to be checked here as well."""
    state = gateway.state
    counts = gateway.metrics.counters["connection_memory"]
    return HeadCache(counts, lambda: state.is_running and not state.is_draining, gateway.limits)


def _limited(gateway: Gateway, settings: Settings, **other: int) -> Connections:
    """Return the object that counts the connections of a listener and refuses those above its limits. The limits are
    those of the clients' listener, except for the ones in `other`."""
    trusted = gateway.identity.proxies
    # A reverse proxy connects for many clients. If none is configured, a process on this machine may be one.
    stands_for_many = is_loopback if settings.gateway.auth.proxies is None else trusted.__contains__
    uncounted = lru_cache(maxsize=4_096)(stands_for_many)  # each connection asks
    return Connections(replace(gateway.limits, **other), gateway.metrics.limited, uncounted=uncounted)


def _operators(gateway: Gateway, settings: Settings) -> _Beside:
    # If few files may be open, idle operators must leave some to servers and the store.
    most = min(OPERATORS_CONNECTIONS, room_for_connections())
    of_one = min(gateway.limits.peer_connections, max(1, most // 2))
    connections = _limited(gateway, settings, connections=most, peer_connections=of_one)
    http: Any = http_connections(connections)  # uvicorn's types allow only classes
    config = uvicorn.Config(
        operators_app(gateway),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        http=http,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    return _Beside(config)
