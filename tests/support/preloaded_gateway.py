"""The program that starts gateways and commands for tests: it has loaded the gateway's modules, and forks.

`python -m tests.support.preloaded_gateway FD`, from the project's root. On the Unix stream socket FD it receives one
byte per process to start, with descriptors attached: a socket of that process, its stdout, its stderr, and its stdin if
that is not empty. On the socket it reads one JSON object, `{"arguments": [...], "env": {...}, "cwd": "...",
"constants": {"module.NAME": value}}`, and writes the process id and later the exit code (minus the signal number if one
ended it), each as four bytes. In the new process runs what `python -m gateway ARGUMENTS` runs, with that environment
and other values of those constants; only the modules are there already.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
from typing import Any, Final

NUMBER: Final = struct.Struct("!i")

LATE: Final = (
    "anyio._backends._asyncio",
    "gateway.cli.rest_client",
    "gateway.serving.epoll_reserve",
    "gateway.serving.uvicorn_server",
    "gateway.serving.workers",
    "transports.upstream.streamable_http",
    "uvloop",
)
"""What commands import only once they run, also those that serve a URL, and those that ask a running gateway."""


def main(requests: socket.socket) -> None:
    """Serve until the other end is closed. Returns in a started process only once its command has ended."""
    _load()
    running: dict[int, socket.socket] = {}
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    # Who ends all processes of a group still has to hear how the commands ended: this one ends with its requests.
    handlers: dict[int, Any] = {
        signal.SIGCHLD: lambda *_: None,
        signal.SIGINT: signal.SIG_IGN,
        signal.SIGTERM: signal.SIG_IGN,
    }
    as_before = {kind: signal.signal(kind, handler) for kind, handler in handlers.items()}
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    with selectors.DefaultSelector() as ready:
        ready.register(requests, selectors.EVENT_READ)
        ready.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is woken:
                    woken.recv(4096)
                    _report(running)
                    continue
                byte, fds, _, _ = socket.recv_fds(requests, 1, 4)
                if not byte:
                    return
                reports = socket.socket(fileno=fds[0])
                process = os.fork()
                if process == 0:
                    break
                for fd in fds[1:]:
                    os.close(fd)
                reports.sendall(NUMBER.pack(process))
                running[process] = reports
            else:
                continue
            break
    signal.set_wakeup_fd(-1)
    for kind, handler in as_before.items():
        signal.signal(kind, handler)
    for ours in (requests, woken, wakes, *running.values()):
        ours.close()
    _become(reports, *fds[1:])


def replace_constant(name: str, value: object) -> None:
    """Give the constant `module.NAME` another value in this process. Fails if there is none."""
    module, _, constant = name.rpartition(".")
    getattr(found := importlib.import_module(module), constant)
    setattr(found, constant, value)


def _load() -> None:
    """Import what the commands import when they run."""
    import typer

    import gateway.cli.main
    from gateway.sandbox.sandbox_checks import kernel_for

    for module in LATE:
        importlib.import_module(module)
    for listed in typer.main.get_command(gateway.cli.main.app).commands.values():  # type: ignore[attr-defined]  # a group
        listed.loaded()
    kernel_for(True)  # each gateway would try namespaces in a process of its own
    assert threading.active_count() == 1, "a process with threads cannot be forked safely"
    # A collection, as at the end of each process, would write to all that it shares with this one: 0.2 s for each.
    gc.collect()
    gc.freeze()


def _report(running: dict[int, socket.socket]) -> None:
    """Tell of each process that has ended."""
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            return
        with running.pop(process) as reports:
            try:
                reports.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
            except OSError:
                pass  # nobody waits for it any more


def _become(reports: socket.socket, *fds: int) -> None:
    """Run the command in this process, which was just forked. `fds` are stdout, stderr and, if given, stdin."""
    with reports, reports.makefile("rb") as file:
        asked: dict[str, Any] = json.loads(file.readline())
    for given, standard in zip(fds, (1, 2, 0), strict=False):
        os.dup2(given, standard)
        os.close(given)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    more = asked["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [asked["cwd"], *(path for path in more if path and path not in sys.path[1:])]
    sys.argv[1:] = asked["arguments"]
    for name, value in asked["constants"].items():
        replace_constant(name, value)
    code = 1

    def leave() -> None:
        """End without taking apart what is loaded, which would write to all that is shared: 0.1 s for each."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    atexit.register(leave)  # it runs last: after the threads have ended, and what the command registers
    try:
        runpy.run_module("gateway", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
