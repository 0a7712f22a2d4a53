"""A gateway under uvicorn in a thread of the tests' process: no process has to start, and none to end.

For tests that assert nothing of a process: no signal, id, memory, exit code or environment. Clients reach it at a port,
as they reach the command `run`, which is tested with `running_gateway`.
"""

import asyncio
import contextlib
import json
import logging
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from gateway import Gateway, create_app
from gateway.config.configuration_difference import Difference
from gateway.config.settings import GatewaySettings, Settings, load
from gateway.observability.logs import configure_logging
from gateway.serving.startup_greeting import Welcome
from gateway.serving.uvicorn_server import open_listeners
from session_store import KeyRing
from tests.support.gateway_process import CLIENTS, DEMO, server, with_patience
from tests.support.waiting import GIVE_UP_S, eventually

READY_WITHIN_S: Final = 60.0
RING: Final = KeyRing(["k" * 40])
"""The keys of gateways that share a store."""


class InProcessGateway:
    """A gateway in this process, its URL and what it has logged."""

    def __init__(self, gateway: Gateway, url: str, log: "_Log", loop: asyncio.AbstractEventLoop) -> None:
        self.gateway = gateway
        self.url = url
        self._log = log
        self._loop = loop

    @property
    def base(self) -> str:
        """The URL without the path."""
        return self.url.removesuffix("/mcp")

    def reload(self, settings: Settings) -> Difference:
        """Give the gateway another configuration."""
        return asyncio.run_coroutine_threadsafe(self.gateway.reload(settings), self._loop).result(GIVE_UP_S)

    def stderr(self) -> str:
        """What the gateway has logged so far, as the command writes it to stderr."""
        return "".join(self._log.written)


@contextlib.contextmanager
def in_process_gateway(
    servers: Mapping[str, Any] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    ring: KeyRing | None = None,
) -> Iterator[InProcessGateway]:
    """A gateway that is stopped when the block ends.

    Args:
        servers: the configuration's `mcpServers`; None for the demo server.
        options: the configuration's `gateway`.
        ring: the keys that sign, for a store that several gateways share or that outlives them.
    """
    if servers is None:
        servers = {"main": server(DEMO)}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.joinpath("mcp.json").write_text(
            json.dumps({"mcpServers": servers, "gateway": {"port": 0, **with_patience(options)}}), encoding="utf-8"
        )
        settings = load(folder / "mcp.json").settings
        log = _Log(settings.gateway)
        with log.taken(alone=True), contextlib.ExitStack() as patient:
            for name, value in CLIENTS.items():
                patient.enter_context(patch(name, value))
            gateway = Gateway(settings, ring=ring)
        stack.enter_context(log.taken(alone=False))
        ready = list[tuple[str, asyncio.AbstractEventLoop]]()

        def serves(url: str) -> None:
            ready.append((url, asyncio.get_running_loop()))

        app = create_app(settings, gateway=gateway)
        # Not uvloop: libuv would end this process where a descriptor of its loop is gone.
        opening = open_listeners(gateway, app, serves, welcome=Welcome(), loop="asyncio")
        serving, listener = stack.enter_context(opening)
        log.thread = threading.Thread(target=serving.run, kwargs={"sockets": [listener]}, daemon=True)
        log.thread.start()
        try:
            assert eventually(lambda: ready != [] or not log.thread.is_alive(), READY_WITHIN_S)
            assert ready, f"the gateway did not start:\n{''.join(log.written)}"
            yield InProcessGateway(gateway, ready[0][0], log, ready[0][1])
        finally:
            serving.should_exit = True
            log.thread.join(30)
            assert not log.thread.is_alive(), "the gateway did not end"


class _Log:
    """The log of one of the gateways in this process: what its thread logs."""

    def __init__(self, options: GatewaySettings) -> None:
        self.written: list[str] = []
        self.thread = threading.current_thread()
        with _logging_as_before() as root:
            form = "logfmt" if options.log_format == "auto" else options.log_format
            configure_logging(options.log_level, form, self)
            (self._handler,) = root.handlers
        self._handler.setLevel(options.log_level.upper())
        self._handler.addFilter(lambda record: record.thread == self.thread.ident)

    def write(self, text: str) -> int:
        self.written.append(text)
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    @contextlib.contextmanager
    def taken(self, *, alone: bool) -> Iterator[None]:
        """Write what is logged inside. `alone`: it is the only log of the program, as in the command `run`."""
        with _logging_as_before() as root:
            root.handlers[:] = [*([] if alone else root.handlers), self._handler]
            root.setLevel(min(root.level, self._handler.level))
            for of_clients in ("httpcore", "httpx"):
                logging.getLogger(of_clients).setLevel(logging.WARNING)
            yield


@contextlib.contextmanager
def _logging_as_before() -> Iterator[logging.Logger]:
    """At the end of the block, the root logger logs as at its beginning."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
