"""A Redis server for tests, which can be stopped, frozen and started again."""

import contextlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis

from tests.support.free_ports import free_port
from tests.tools.programs import program


def started(*options: str) -> subprocess.Popen[bytes]:
    """A process of Redis with these options."""
    command = [str(program("redis-server", "redis-server")), *options, "--loglevel", "warning"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def settled(condition: Callable[[], object]) -> None:
    """Wait for a condition that processes of Redis tell of, which may not answer yet."""
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(redis.RedisError, KeyError):
            if condition():
                return
        assert time.monotonic() < deadline, "Redis does not come up"
        time.sleep(0.02)


class RunningRedis:
    """One server on a port of its own. Keeps its data over a restart, as a production server does."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Start it, with further options for this time."""
        saved = ("--save", "", "--appendonly", "yes", "--appendfsync", "no", *options)
        self._process = started("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), *saved)
        settled(lambda: self.client().ping())

    def stop(self) -> None:
        """SIGTERM: the server saves its data and exits."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(15)

    def freeze(self) -> None:
        """SIGSTOP: the server accepts connections (the kernel does) and does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: the server answers again, beginning with the commands that arrived meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        """A plain client, for tests to inspect the data."""
        return redis.Redis(port=self.port, socket_timeout=60)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(15)


@contextlib.contextmanager
def running_redis() -> Iterator[RunningRedis]:
    """A Redis server that is stopped when the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        server = RunningRedis(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.close()
