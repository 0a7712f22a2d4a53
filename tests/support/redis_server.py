"""A Redis server for tests, which can be stopped, frozen and started again."""

import contextlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from tests.support.free_ports import free_port
from tests.tools.programs import program

__all__ = ["RunningRedis", "running_redis"]


class RunningRedis:
    """One server on a port of its own. Keeps its data over a restart, as a production server does."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        options += [
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "no",
            "--daemonize",
            "no",
            "--loglevel",
            "warning",
        ]
        self._process = subprocess.Popen([program("redis-server", "redis-server"), *options], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 15
        while True:
            try:
                self.client().ping()
                return
            except redis.RedisError:
                assert time.monotonic() < deadline and self._process.poll() is None, "redis-server does not start"
                time.sleep(0.02)

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
        return redis.Redis(port=self.port, socket_timeout=5)

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
