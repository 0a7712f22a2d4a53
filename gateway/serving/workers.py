"""Run several gateway processes (workers) on one port. Each is a replica like those on other machines.

SIGHUP is passed on to all workers, which load the configuration again. If the terminal is gone, they stop.
"""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from gateway.config.endpoint_paths import ALL
from gateway.config.settings import ConfigurationError, Settings
from gateway.serving import hidden_process
from gateway.serving.socket_passing import Inboxes
from session_store import backend_for
from session_store.connect import shown

LISTENER: Final = "MCP_GATEWAY_WORKER_LISTENER"
_NUMBER: Final = "MCP_GATEWAY_WORKER_NUMBER"
_COUNT: Final = "MCP_GATEWAY_WORKER_COUNT"
_READY: Final = "MCP_GATEWAY_WORKER_READY"
_LIFELINE: Final = "MCP_GATEWAY_WORKER_LIFELINE"
_AGAIN_S: Final = 0.5
_READY_WITHIN_S: Final = 60.0
SERVES: Final = b"s"
IS_READY: Final = b"r"
_REPORT: Final = struct.Struct("!Ic")
"""The format of a worker's message to its parent: the worker's number, and one byte, `SERVES` or `IS_READY`."""


def run_workers(settings: Settings, arguments: Sequence[str], count: int) -> int:
    """Run `mcp-session-gateway ARGUMENTS` in `count` processes on one socket, until SIGTERM or SIGINT. Return the exit
    code.

    A worker that dies is replaced. If this process dies for any reason, its workers stop.

    Raises:
        ConfigurationError: the store cannot be shared by processes.
        OSError: the address cannot be listened on.
    """
    store = settings.gateway.store
    if not backend_for(store).is_shared:
        raise ConfigurationError(
            f"gateway.store: {shown(store)} serves one gateway process; more than one worker needs redis://"
        )
    host = settings.gateway.host
    with bound_socket(host, settings.gateway.port) as listener, contextlib.ExitStack() as stack:
        listener.listen(2_048)
        lifeline, held = os.pipe()
        ready, reports = os.pipe()
        environment = hidden_process.keep_environment(os.environ)
        for end in (lifeline, held, ready, reports, environment):
            stack.callback(os.close, end)
        inboxes = stack.enter_context(contextlib.closing(Inboxes(count)))
        given = {LISTENER: str(listener.fileno()), _READY: str(reports), _LIFELINE: str(lifeline)}
        stopping, had_terminal = threading.Event(), has_terminal()

        def start(number: int) -> subprocess.Popen[bytes]:
            siblings, descriptors = inboxes.for_worker(number)
            own = {**given, **siblings, _NUMBER: str(number), _COUNT: str(count)}
            return subprocess.Popen(
                [sys.executable, "-m", "gateway", *arguments],
                env={**hidden_process.visible_environment(os.environ, environment), **own},
                pass_fds=[listener.fileno(), reports, lifeline, environment, *descriptors],
            )

        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, lambda *_: stopping.set())
        workers: list[subprocess.Popen[bytes]] = []
        signal.signal(signal.SIGHUP, lambda *_: _hang_up(workers, stopping, had_terminal=had_terminal))
        workers.extend(start(number) for number in range(count))
        received = Reports(ready, count)
        served = _all_serve(received, workers, stopping)
        if served:
            _tend(workers, start, stopping, received, url_of(host, listener, ALL))
        # A worker that could not start has logged why. Its exit code becomes that of this process.
        failed = 0 if served or stopping.is_set() else next((code for w in workers if (code := w.poll())), 1)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
        return abs(failed)


def _hang_up(workers: Sequence[subprocess.Popen[bytes]], stopping: threading.Event, *, had_terminal: bool) -> None:
    """Handle SIGHUP: have all workers load the configuration again. If the terminal is gone instead, set `stopping`, so
    that the workers stop. `had_terminal`: this process had a terminal when it started."""
    if had_terminal and not has_terminal():
        stopping.set()
        return
    for worker in workers:
        worker.send_signal(signal.SIGHUP)


class Reports:
    """Collect what the running workers have reported, by worker number: that they serve, and that they are ready."""

    def __init__(self, pipe: int, count: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._count = count
        self._reported: set[tuple[int, bytes]] = set()

    def all_have(self, state: bytes) -> bool:
        self._read()
        return all((number, state) in self._reported for number in range(self._count))

    def forget(self, number: int) -> None:
        """Forget the reports of a worker that has ended."""
        self._read()  # its last reports too, or they would count as those of its successor
        self._reported -= {(number, SERVES), (number, IS_READY)}

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._reported.update(_REPORT.iter_unpack(os.read(self._pipe, 1_024 * _REPORT.size)))


def _tend(
    workers: list[subprocess.Popen[bytes]],
    start: Callable[[int], subprocess.Popen[bytes]],
    stopping: threading.Event,
    reports: Reports,
    url: str,
) -> None:
    """Announce that all workers serve, or at once that all are ready. Then, until `stopping` is set, replace each
    worker that dies, and announce once that all are ready. `start(number)` starts the worker with that number."""
    is_ready = reports.all_have(IS_READY)
    announce(url, is_ready=is_ready)
    while not stopping.wait(_AGAIN_S):
        for place, worker in enumerate(workers):
            if worker.poll() is not None:
                print(f"worker {worker.pid} has ended; starting another", file=sys.stderr, flush=True)  # noqa: T201  # the supervisor has no logging
                reports.forget(place)
                workers[place] = start(place)
        # Read always: a worker whose report found the pipe full would stop.
        if reports.all_have(IS_READY) and not is_ready:
            is_ready = True
            announce(url)


def _all_serve(reports: Reports, workers: Sequence[subprocess.Popen[bytes]], stopping: threading.Event) -> bool:
    """Wait until all workers serve, and return True. Return False if a worker ends before that, if `stopping` is set,
    or if `_READY_WITHIN_S` seconds pass."""
    deadline = time.monotonic() + _READY_WITHIN_S
    while not reports.all_have(SERVES):
        if stopping.wait(0.02) or time.monotonic() > deadline or any(worker.poll() is not None for worker in workers):
            return False
    return True


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a TCP socket that is bound to an address. Raises `OSError` if the address cannot be used."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def url_of(host: str, listener: socket.socket, path: str) -> str:
    """Return the URL of a path at a bound socket. `host`: the address that it is bound to."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}{path}"


# -- in a worker


def inherited_listener() -> socket.socket | None:
    """Return the listening socket of this worker, and stop the worker when its parent dies. Return None if this process
    is not a worker."""
    number = os.environ.pop(LISTENER, "")
    if not number:
        return None
    lifeline = int(os.environ.pop(_LIFELINE))
    for mine in (int(number), lifeline, int(os.environ[_READY])):
        os.set_inheritable(mine, False)
    threading.Thread(target=_until_orphaned, args=(lifeline,), daemon=True).start()
    return socket.socket(fileno=int(number))


def worker_number() -> int:
    """Return the number of this worker, from 0; also 0 if this process is not a worker."""
    return int(os.environ.get(_NUMBER, "0"))


def worker_count() -> int:
    """Return the number of workers of the parent; 1 if this process is not a worker."""
    return int(os.environ.get(_COUNT, "1"))


def _until_orphaned(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: this returns when the parent dies
    os.kill(os.getpid(), signal.SIGTERM)


def report(*states: bytes) -> bool:
    """Report `SERVES`, `IS_READY` or both to the parent. Return False if this process is no worker."""
    pipe = os.environ.get(_READY, "")
    if pipe:
        os.write(int(pipe), b"".join(_REPORT.pack(worker_number(), state) for state in states))
    return bool(pipe)


def announce(url: str, *, is_ready: bool = True) -> None:
    """Print `ready URL`, for which people and programs wait; `serving URL` if the gateway is not ready yet."""
    print(f"{'ready' if is_ready else 'serving'} {url}", file=sys.stderr, flush=True)  # noqa: T201  # the supervisor has no logging


def has_terminal() -> bool:
    """Return True if this process has a terminal, whose end sends SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
