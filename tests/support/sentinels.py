"""A real Redis master, a replica of it, and three sentinels of the tests' own."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from tests.support.free_ports import free_port
from tests.support.redis_server import settled, started


class Sentinels:
    """A master, a replica of it, and three sentinels."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._folder = folder
        self.master, self.replica = free_port(), free_port()
        self.processes = {self.master: self._server(self.master), self.replica: self._server(self.replica, self.master)}
        # A sentinel asks the master for its replicas when it begins, and then every 10 s: it has to be there by then.
        settled(lambda: self.look(self.replica).info("replication").get("master_link_status") == "up")
        self.ports = [free_port() for _ in range(3)]
        for port in self.ports:
            config = folder / f"{port}.conf"
            config.write_text(
                f"port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {self.master} 2\n"
                "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n"
            )
            self._start(str(config), "--sentinel")
        places = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.url = f"redis+sentinel://{places}/main/0"
        # Each of them may be the one that is elected.
        for port in self.ports:
            settled(lambda port=port: self.known(port, "num-other-sentinels") == 2)  # type: ignore[misc]  # bound in this round
            settled(lambda port=port: self.known(port, "num-slaves") == 1)  # type: ignore[misc]  # bound in this round

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        process = started(*arguments)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def _server(self, port: int, of: int | None = None) -> subprocess.Popen[bytes]:
        more = ["--replicaof", "127.0.0.1", str(of)] if of else []
        folder = self._folder / f"data-{port}"
        folder.mkdir(exist_ok=True)
        return self._start("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *more)

    def in_step(self) -> None:
        """Wait until the replica has all that the master has, and each sentinel knows of it."""
        settled(lambda: self.look(self.replica).info("replication").get("master_link_status") == "up")
        for port in self.ports:
            settled(lambda port=port: self.known(port, "port") == self.master)  # type: ignore[misc]  # bound in this round
            settled(lambda port=port: self.known(port, "num-slaves") == 1)  # type: ignore[misc]  # bound in this round
        settled(lambda: self.look(self.master).wait(1, 1_000) == 1)
        at = self.look(self.master).info("replication")["master_repl_offset"]
        settled(lambda: self.look(self.replica).info("replication")["slave_repl_offset"] >= at)

    def lag(self) -> None:
        """Let the replica see nothing more of the master. The sentinels put that right after some seconds."""
        self.look(self.replica).replicaof("127.0.0.1", "1")

    def fail_over(self) -> None:
        """Kill the master, and wait until the replica is promoted."""
        self.processes[self.master].kill()
        self.processes[self.master].wait()
        settled(lambda: self.look(self.replica).info("replication")["role"] == "master")
        self.master, self.replica = self.replica, self.master

    def known(self, port: int, what: str) -> object:
        """One field of what the sentinel at this port reports about the master."""
        master: Any = self.look(port).sentinel_master("main")
        return master[what]

    wait = staticmethod(settled)

    def look(self, port: int) -> redis.Redis:
        return redis.Redis(port=port, socket_timeout=60)


@contextlib.contextmanager
def running_sentinels() -> Iterator[Sentinels]:
    """All of these processes, stopped when the block ends."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        yield Sentinels(Path(folder), stack)
