"""A gateway as a user has it: `mcp-session-gateway run` in a process of its own."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.commands import ROOT as ROOT
from tests.support.commands import CommandProcess, start_command
from tests.support.waiting import GIVE_UP_S

READY_WITHIN_S = 60.0
DEMO = (sys.executable, "-m", "gateway", "demo-server")
TOOL = (sys.executable, "-m", "tests.support.session_tool")
PROBE = (sys.executable, str(Path(__file__).with_name("probe_server.py")))
TASKS = (sys.executable, "-m", "tests.support.task_server")
"""Serves the era that follows as an argument."""
SCRIPTED = (sys.executable, str(Path(__file__).with_name("scripted_server.py")))
WORK = (sys.executable, str(Path(__file__).with_name("work_server.py")))
"""Serves the era that follows as an argument."""
UNLIMITED = dict.fromkeys(("session_rate", "principal_rate", "principal_sessions", "principal_processes"), 0)
"""Rates and quotas switched off, for what sends more than any honest agent and measures something else."""

SIGNED = {"MCP_GATEWAY_KEYS": "k" * 40}
"""The variables of gateways that share a store."""

PATIENCE: Final = {"list_timeout_s": GIVE_UP_S}
CLIENTS: Final = {"gateway.config.limits.CLIENT_TIMEOUT_S": 3 * GIVE_UP_S}
"""On a busy machine a client of a test may need more than ten seconds between its connection and its request."""


def with_patience(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options that wait for servers' lists as long as tests do, unless they say otherwise."""
    given = dict(options or {})
    return {**given, "limits": {**PATIENCE, **given.get("limits", {})}}


def server(command: Sequence[str], **more: Any) -> dict[str, Any]:
    """An entry of `mcpServers`."""
    return {"command": command[0], "args": list(command[1:]), **more}


def operators_of(gateway: Any) -> str:
    """The base URL of the listener that a gateway has for operators alone, as its log says."""
    found = re.search(r"operators are served at (http://[^/]+)", gateway.stderr())
    assert found is not None, gateway.stderr()
    return found[1]


class RunningGateway:
    """A gateway process, its URL and its stderr."""

    def __init__(self, process: subprocess.Popen[str] | CommandProcess) -> None:
        self.process = process
        self.url = ""
        self.config = Path()
        """The file of the configuration, if there is one."""
        self._lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def base(self) -> str:
        """The URL without the path."""
        return self.url.removesuffix("/mcp")

    @property
    def port(self) -> int:
        """The port of the URL."""
        return int(self.base.rpartition(":")[2])

    def at(self, server: str) -> str:
        """The URL of one server."""
        return f"{self.base}/servers/{server}/mcp"

    def stderr(self) -> str:
        """What the gateway has written to stderr so far."""
        return "".join(self._lines)

    def wait_ready(self) -> None:
        """Wait for the line `ready URL` or `serving URL`. Fails if it does not come within `READY_WITHIN_S`."""
        if not self._ready.wait(READY_WITHIN_S) or not self.url:
            self.kill()
            raise AssertionError(f"the gateway did not start:\n{self.stderr()}")

    def stop(self) -> int:
        """Send SIGTERM, wait for the end, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self._reader.join(5)
        return code

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(10)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self._lines.append(line)
                if line.startswith(("ready ", "serving ")):  # the second: no server has answered yet
                    self.url = line.split()[1]
                    self._ready.set()
        self._ready.set()


@contextlib.contextmanager
def running_gateway(
    servers: Mapping[str, Any] | None = None,
    *,
    command: Sequence[str] = DEMO,
    options: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    must_stop: bool = True,
    port: int = 0,
    constants: Mapping[str, float] | None = None,
) -> Iterator[RunningGateway]:
    """A gateway process that is stopped when the block ends.

    Args:
        servers: the configuration's `mcpServers`; None for one server `main`.
        command: the command of that one server.
        options: the configuration's `gateway`.
        env: variables beside those of this process.
        arguments: of the command line.
        must_stop: stop with SIGTERM and fail if the exit code is not 0. If False, SIGKILL.
        port: to listen on; 0 for a free one.
        constants: other values of constants of the gateway, by `module.NAME`, where the real ones take a test too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        typed = ["run", "--port", str(port), *arguments]
        if servers is None and options is None:
            typed += ["--", *command]
            patience = {f"MCP_GATEWAY_LIMITS__{name.upper()}": str(value) for name, value in PATIENCE.items()}
            env = {**patience, **(env or {})}
        else:
            config = Path(folder, "mcp.json")
            entries = {"main": server(command)} if servers is None else servers
            config.write_text(json.dumps({"mcpServers": entries, "gateway": with_patience(options)}), encoding="utf-8")
            typed += ["--config", str(config)]
        process = start_command(typed, env={**os.environ, **(env or {})}, constants={**CLIENTS, **(constants or {})})
        gateway = RunningGateway(process)
        gateway.config = Path(folder, "mcp.json")
        try:
            gateway.wait_ready()
            yield gateway
        finally:
            if process.poll() is None:
                if must_stop:
                    assert gateway.stop() in (0, -signal.SIGTERM), gateway.stderr()
                else:
                    gateway.kill()


@contextlib.contextmanager
def replicas(
    store: str, servers: Mapping[str, Any], count: int = 2, *, env: Mapping[str, str] | None = None, **options: Any
) -> Iterator[list[RunningGateway]]:
    """So many gateways on one store, which a test may kill. `options` are others of the configuration's `gateway`."""
    with contextlib.ExitStack() as stack:
        given: Any = {"options": {"store": store, **options}, "env": SIGNED | dict(env or {}), "must_stop": False}
        yield [stack.enter_context(running_gateway(servers, **given)) for _ in range(count)]
