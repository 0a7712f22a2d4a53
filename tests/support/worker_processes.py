"""A gateway with workers, of which a test says which one accepts a connection."""

import contextlib
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx
import psutil

from tests.support.free_ports import free_ports
from tests.support.gateway_process import DEMO, PROBE, UNLIMITED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import modern_body, modern_headers
from tests.support.redis_server import RunningRedis
from tests.support.wire import PipeliningClient

KEYS = {"MCP_GATEWAY_KEYS": "k" * 40}


def worker_processes(gateway: RunningGateway | subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The workers that run, in the order of their starts."""
    alive = [p for p in psutil.Process(gateway.pid).children() if p.status() != psutil.STATUS_ZOMBIE]
    return [p for p in alive if "--workers" in p.cmdline()]


_DEMO: Final = "/servers/demo/mcp"
_COUNT: Final = modern_body("tools/call", {"name": "count", "arguments": {}})


def call(client: PipeliningClient, token: str, body: Any = _COUNT, *, path: str = _DEMO) -> bytes:
    """The bytes of a modern request in a session; of a call of `count` if no body is given."""
    return client.rpc(body, {**modern_headers(body), "MCP-Gateway-Session": token}, path)


class Workers:
    """The workers of a gateway, by number from 0."""

    def __init__(self, gateway: RunningGateway, operators_port: int) -> None:
        self.gateway = gateway
        self.processes = worker_processes(gateway)
        self._operators_port = operators_port

    @contextlib.contextmanager
    def only(self, number: int) -> Iterator[None]:
        """Inside the block only that worker runs, so that it accepts all connections."""
        others = [process for place, process in enumerate(self.processes) if place != number]
        for process in others:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in others:
                process.send_signal(signal.SIGCONT)

    def session(self, number: int) -> str:
        """The token of a new session that this worker owns."""
        with self.only(number), httpx.Client(timeout=30) as http:
            answer = http.post(self.gateway.base + _DEMO, json=_COUNT, headers=modern_headers(_COUNT))
        assert answer.json()["result"]["content"][0]["text"] == "1", answer.text
        return answer.headers["mcp-gateway-session"]

    def connected(self, number: int) -> PipeliningClient:
        """A connection that this worker has accepted."""
        with self.only(number):
            client = PipeliningClient(self.gateway.url)
            client.write(client.request("GET", "/readyz", {}))
            assert [status for status, _ in client.answers(1)] == [200]
        return client

    def counted(self, number: int, name: str) -> Counter[str]:
        """A counter of a worker by its label."""
        text = httpx.get(f"http://127.0.0.1:{self._operators_port + number}/metrics", timeout=30).text
        rows = re.findall(rf'^mcp_gateway_{name}_total\{{\w+="(\w+)"\}} ([\d.]+)$', text, re.MULTILINE)
        return Counter({label: int(float(value)) for label, value in rows})

    def total(self, name: str) -> Counter[str]:
        """A counter of all workers by its label, of what has been counted."""
        return +sum((self.counted(number, name) for number in range(len(self.processes))), Counter[str]())


@contextlib.contextmanager
def running_workers(redis: RunningRedis, count: int, options: Mapping[str, Any] | None = None) -> Iterator[Workers]:
    """A gateway with so many workers, without rates."""
    port = free_ports(count)[0]
    given = {"store": redis.url, "admin": {"listen": f"127.0.0.1:{port}"}, "policy": UNLIMITED, **(options or {})}
    arguments = ["--workers", str(count)]
    servers = {"demo": server(DEMO), "probe": server(PROBE)}
    with running_gateway(servers, options=given, env={**os.environ, **KEYS}, arguments=arguments) as up:
        yield Workers(up, port)
