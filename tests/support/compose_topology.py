"""The topology of docker-compose.yml as plain processes: Redis, three gateways, HAProxy."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.gateway_process import ROOT, UNLIMITED, RunningGateway, running_gateway
from tests.support.redis_server import RunningRedis, free_port, running_redis
from tests.tools.programs import program

__all__ = ["KEYS", "Topology", "running_balancer", "running_topology"]

KEYS = {"MCP_GATEWAY_KEYS": "k" * 40}


@dataclass
class Topology:
    """The processes. `url` is the endpoint at the load balancer."""

    url: str
    redis: RunningRedis
    gateways: list[RunningGateway]


@contextlib.contextmanager
def running_topology(servers: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> Iterator[Topology]:
    """All processes, stopped when the block ends. Rates and quotas are off unless `options` says otherwise."""
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        options = {"policy": UNLIMITED, **(options or {}), "store": redis.url}
        gateways = [
            stack.enter_context(running_gateway(servers, options=options, env=KEYS, must_stop=False)) for _ in range(3)
        ]
        places = [gateway.base.removeprefix("http://") for gateway in gateways]
        url = stack.enter_context(running_balancer(places))
        yield Topology(url=f"{url}/mcp", redis=redis, gateways=gateways)


@contextlib.contextmanager
def running_balancer(places: Sequence[str]) -> Iterator[str]:
    """HAProxy before three gateways, each HOST:PORT; its URL, without a path."""
    port = free_port()
    named = {f"GATEWAY_{n}": place for n, place in enumerate(places, start=1)}
    balancer = subprocess.Popen(
        [program("haproxy", "haproxy"), "-db", "-q", "-f", str(ROOT / "deploy/haproxy.cfg")],
        env={**os.environ, "LISTEN": f"127.0.0.1:{port}", **named},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 20
        while not _ready(url):
            assert time.monotonic() < deadline and balancer.poll() is None, "HAProxy does not serve"
            time.sleep(0.05)
        yield url
    finally:
        balancer.terminate()
        balancer.wait(10)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.HTTPError:
        return False
