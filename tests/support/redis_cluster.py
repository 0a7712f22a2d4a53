"""A Redis Cluster for tests: three masters, each with a replica if asked for."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from tests.support.free_ports import free_port
from tests.support.redis_server import settled, started


class RunningCluster:
    """`url` names two of its nodes."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, *, replicas: bool) -> None:
        self.ports = [free_port() for _ in range(6 if replicas else 3)]
        self._buses = {port: free_port() for port in self.ports}
        self.masters = self.ports[:3]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for port in self.ports:
            self._start(folder, stack, port)
        for n, port in enumerate(self.masters):
            first, last = n * 16_384 // 3, (n + 1) * 16_384 // 3 - 1
            self.run(port, "CLUSTER", "ADDSLOTSRANGE", first, last)
            # Epochs of their own, or the election of a replica may have to wait for them to be settled.
            self.run(port, "CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for port in self.ports[1:]:
            self.run(self.ports[0], "CLUSTER", "MEET", "127.0.0.1", port, self._buses[port])
        settled(lambda: all(self._knows(port) == len(self.ports) for port in self.ports))
        for master, replica in zip(self.masters, self.ports[3:], strict=False):
            self.run(replica, "CLUSTER", "REPLICATE", self.id_of(master))
        settled(lambda: all(self.state(port) == "ok" for port in self.ports))
        settled(lambda: all(self._follows(port) for port in self.ports[3:]))
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in self.masters[:2])

    def _start(self, folder: Path, stack: contextlib.ExitStack, port: int) -> None:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        options += ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]
        options += ["--cluster-port", str(self._buses[port])]
        process = self.processes[port] = started(*options, "--cluster-config-file", f"nodes-{port}.conf")
        stack.callback(process.wait)
        stack.callback(process.kill)
        settled(lambda: self.node(port).ping())

    wait = staticmethod(settled)

    def node(self, port: int) -> redis.Redis:
        """A plain client of one node."""
        return redis.Redis(port=port, socket_timeout=60)

    def run(self, port: int, *command: object) -> Any:
        """Run a command on one node and return its reply."""
        return self.node(port).execute_command(*command)  # type: ignore[no-untyped-call]  # the driver has no hint

    def id_of(self, port: int) -> str:
        return str(self.run(port, "CLUSTER", "MYID").decode())

    def flush(self) -> None:
        for port in self.masters:
            self.node(port).flushall()

    def _knows(self, port: int) -> int:
        return len(self.run(port, "CLUSTER", "NODES").splitlines())

    def state(self, port: int) -> str:
        """What a node knows of the cluster: `ok` or not."""
        return "ok" if b"cluster_state:ok" in self.run(port, "CLUSTER", "INFO") else "not yet"

    def _follows(self, port: int) -> bool:
        return self.node(port).info("replication").get("master_link_status") == "up"


@contextlib.contextmanager
def running_cluster(*, replicas: bool = False) -> Iterator[RunningCluster]:
    """A cluster that is stopped when the block ends."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        yield RunningCluster(Path(folder), stack, replicas=replicas)
