"""Run several gateway processes (workers) on one port. Each is a replica like those on other machines."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from gateway.config.settings import ConfigurationError, Settings
from gateway.serving import hidden_process
from gateway.serving.paths import ALL
from gateway.serving.sibling_workers import Inboxes
from session_store import backend_for
from session_store.connect import shown

LISTENER: Final = "MCP_GATEWAY_WORKER_LISTENER"
_NUMBER: Final = "MCP_GATEWAY_WORKER_NUMBER"
_COUNT: Final = "MCP_GATEWAY_WORKER_COUNT"
_READY: Final = "MCP_GATEWAY_WORKER_READY"
_LIFELINE: Final = "MCP_GATEWAY_WORKER_LIFELINE"
_AGAIN_S: Final = 0.5
_READY_WITHIN_S: Final = 60.0


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
        stopping = threading.Event()

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
        workers = [start(number) for number in range(count)]
        served = _all_ready(ready, workers, stopping)
        if served:
            announce(url_of(host, listener, ALL))
            _tend(workers, start, stopping)
        # A worker that could not start has logged why. Its exit code becomes that of this process.
        failed = 0 if served or stopping.is_set() else next((code for w in workers if (code := w.poll())), 1)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
        return abs(failed)


def _tend(
    workers: list[subprocess.Popen[bytes]], start: Callable[[int], subprocess.Popen[bytes]], stopping: threading.Event
) -> None:
    """Replace each worker that dies, until `stopping` is set."""
    while not stopping.wait(_AGAIN_S):
        for place, worker in enumerate(workers):
            if worker.poll() is not None:
                print(f"worker {worker.pid} has ended; starting another", file=sys.stderr, flush=True)  # noqa: T201
                workers[place] = start(place)


def _all_ready(ready: int, workers: Sequence[subprocess.Popen[bytes]], stopping: threading.Event) -> bool:
    """Wait until all workers serve. Return False if one has ended, if `stopping` is set, or after `_READY_WITHIN_S`."""
    os.set_blocking(ready, False)
    serving = 0
    deadline = time.monotonic() + _READY_WITHIN_S
    while serving < len(workers) and time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            serving += len(os.read(ready, 1_024))
        if stopping.wait(0.02) or any(worker.poll() is not None for worker in workers):
            return False
    return serving >= len(workers)


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a TCP socket bound to an address. Raises `OSError`."""
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
    """Return the listening socket of this worker, and have it stop when its parent dies. Return None if this process is
    no worker."""
    number = os.environ.pop(LISTENER, "")
    if not number:
        return None
    lifeline = int(os.environ.pop(_LIFELINE))
    for mine in (int(number), lifeline, int(os.environ[_READY])):
        os.set_inheritable(mine, False)
    threading.Thread(target=_until_orphaned, args=(lifeline,), daemon=True).start()
    return socket.socket(fileno=int(number))


def worker_number() -> int:
    """Return the number of this worker, from 0; also 0 if this process is no worker."""
    return int(os.environ.get(_NUMBER, "0"))


def worker_count() -> int:
    """Return the number of workers of the parent; 1 if this process is no worker."""
    return int(os.environ.get(_COUNT, "1"))


def _until_orphaned(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: this returns when the parent dies
    os.kill(os.getpid(), signal.SIGTERM)


def report_ready(otherwise: Callable[[], None]) -> None:
    """Report to the parent that this worker serves. Call `otherwise` if this process is no worker."""
    number = os.environ.pop(_READY, "")
    if number:
        os.write(int(number), b".")
        os.close(int(number))
    else:
        otherwise()


def announce(url: str) -> None:
    """Print `ready URL`, for which people and programs wait."""
    print(f"ready {url}", file=sys.stderr, flush=True)  # noqa: T201
