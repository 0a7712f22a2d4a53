"""`mcp-session-gateway ARGUMENTS` in a process of its own, without the second that each process takes to load it.

Processes are forked from one that has loaded the gateway, `preloaded_gateway.py`. Tests of the start itself (the
examples, the documents' commands, hosts, workers, the wheel) start `python` instead.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from tests.support.preloaded_gateway import NUMBER

ROOT: Final = Path(__file__).parents[2]
STARTED_WITHIN_S: Final = 120.0


class CommandProcess:
    """A started process, with the methods of `subprocess.Popen` that tests use."""

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None

    def __init__(self, arguments: Sequence[str], reports: socket.socket, stderr: IO[Any] | None) -> None:
        self.arguments = tuple(arguments)
        self.stderr = stderr
        self.returncode: int | None = None
        self._reports = reports
        self._lock = threading.Lock()
        self._reports.settimeout(STARTED_WITHIN_S)
        self.pid = self._number()

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds.
        """
        with self._lock:
            if self.returncode is None:
                self._reports.settimeout(timeout)
                try:
                    self.returncode = self._number()
                except (BlockingIOError, TimeoutError):
                    raise subprocess.TimeoutExpired(list(self.arguments), timeout or 0.0) from None
                self._reports.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens if the process has ended, also where its end is not reported yet."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _number(self) -> int:
        read = self._reports.recv(NUMBER.size)
        assert len(read) == NUMBER.size, "the program that starts gateways for tests has ended"
        return int(NUMBER.unpack(read)[0])


class _Preloaded:
    """The program `preloaded_gateway.py`. Starts with the first command, and ends with this process."""

    def __init__(self) -> None:
        self._requests: socket.socket | None = None
        self._lock = threading.Lock()

    def start(self, asked: Mapping[str, object], *fds: int) -> socket.socket:
        """Start a process with this stdout, stderr and, if given, stdin; the socket that reports its id and its end."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            socket.send_fds(self._connected(), [b"s"], [theirs.fileno(), *fds])
        ours.sendall(json.dumps(asked).encode() + b"\n")
        return ours

    def _connected(self) -> socket.socket:
        if self._requests is None:
            self._requests, theirs = socket.socketpair()
            with theirs:
                program = [sys.executable, "-m", "tests.support.preloaded_gateway", str(theirs.fileno())]
                process = subprocess.Popen(program, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
            atexit.register(process.wait, 10)
            atexit.register(self._requests.close)
        return self._requests


_preloaded: Final = _Preloaded()


def _asked(
    arguments: Sequence[str], env: Mapping[str, str], cwd: Path | str, constants: Mapping[str, float] | None = None
) -> dict[str, object]:
    """Describe the process. Unless told otherwise, it looks for gateways where the tests do (`tests/conftest.py`)."""
    runtime = {name: value for name, value in os.environ.items() if name == "XDG_RUNTIME_DIR"}
    given = {"arguments": list(arguments), "env": {**runtime, **env}, "cwd": str(cwd)}
    return {**given, "constants": dict(constants or {})}


def start_command(
    arguments: Sequence[str], *, env: Mapping[str, str], constants: Mapping[str, float] | None = None
) -> CommandProcess:
    """Start a command whose stderr is a pipe, and whose stdout is that of the tests.

    Args:
        arguments: of `mcp-session-gateway`.
        env: all variables of the process.
        constants: other values of constants of the gateway, by `module.NAME`.
    """
    read, write = os.pipe()
    try:
        reports = _preloaded.start(_asked(arguments, env, ROOT, constants), 1, write)
    finally:
        os.close(write)
    return CommandProcess(arguments, reports, os.fdopen(read, encoding="utf-8"))


def piped_command(arguments: Sequence[str], *, env: Mapping[str, str]) -> CommandProcess:
    """Start a command whose stdin, stdout and stderr are pipes, which are read and written as bytes."""
    (stdin, write), (out, stdout), (err, stderr) = os.pipe(), os.pipe(), os.pipe()
    try:
        reports = _preloaded.start(_asked(arguments, env, ROOT), stdout, stderr, stdin)
    finally:
        for theirs in (stdout, stderr, stdin):
            os.close(theirs)
    process = CommandProcess(arguments, reports, os.fdopen(err, "rb"))
    process.stdin, process.stdout = os.fdopen(write, "wb"), os.fdopen(out, "rb")
    return process


def run_command(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | str = ROOT, timeout: float = 240.0
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as `subprocess.run(capture_output=True, text=True)` does. Stdin is empty.

    Args:
        arguments: of `mcp-session-gateway`.
        env: all variables of the process; None for those of the tests.
        cwd: its working directory.
        timeout: in seconds, after which the command is killed.

    Raises:
        subprocess.TimeoutExpired: the command took longer.
    """
    asked = _asked(arguments, os.environ if env is None else env, cwd)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        process = CommandProcess(arguments, _preloaded.start(asked, out.fileno(), err.fileno()), None)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return subprocess.CompletedProcess(list(arguments), code, *texts)
