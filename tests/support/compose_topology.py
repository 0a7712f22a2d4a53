"""The topology of docker-compose.yml as plain processes: Redis, three gateways, HAProxy."""

import contextlib
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.free_ports import free_port
from tests.support.gateway_process import ROOT, UNLIMITED, RunningGateway, running_gateway
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.waiting import eventually
from tests.tools.programs import program

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
def running_balancer(places: Sequence[str], *, by_session: bool = False) -> Iterator[str]:
    """HAProxy before three gateways, each HOST:PORT; its URL, without a path. `by_session`: it sends requests to the
    gateway that owns their session."""
    port = free_port()
    named = {f"GATEWAY_{n}": place for n, place in enumerate(places, start=1)}
    if by_session:
        named["BY_SESSION"] = "1"
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


@contextlib.contextmanager
def running_nginx(places: Sequence[str], *, by_client: bool = False) -> Iterator[str]:
    """nginx before gateways, each HOST:PORT; its URL, without a path. `by_client`: with the line that sends a client to
    one gateway."""
    port = free_port()
    config = (ROOT / "deploy/nginx.conf").read_text(encoding="utf-8")
    servers = iter(places)
    config = re.sub(r"server gateway\d:8080", lambda _: f"server {next(servers)}", config)
    config = config.replace("listen 8080;", f"listen 127.0.0.1:{port};")
    if by_client:
        assert "# hash $mcp_client consistent;" in config
        config = config.replace("# hash $mcp_client consistent;", "hash $mcp_client consistent;")
    with nginx(config, port) as url:
        yield url


@contextlib.contextmanager
def nginx(config: str, port: int) -> Iterator[str]:
    """nginx with this in its block `http`, which has it listen at that port; its URL, without a path."""
    with tempfile.TemporaryDirectory() as folder:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = " ".join(f"{kind}_temp_path {folder};" for kind in kinds)
        path = Path(folder, "nginx.conf")
        path.write_text(
            f"pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; daemon off; "
            f"events {{ worker_connections 256; }} http {{ access_log off; {temporary}\n{config} }}",
            encoding="utf-8",
        )
        process = subprocess.Popen([program("nginx", "nginx-light"), "-c", str(path)], stderr=subprocess.DEVNULL)
        try:
            assert eventually(lambda: listens(port)), "nginx does not listen"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


BALANCERS: Final[Mapping[str, Callable[[Sequence[str]], contextlib.AbstractContextManager[str]]]] = {
    "haproxy": running_balancer,
    "nginx": running_nginx,
}
"""The shipped load balancers before gateways, each HOST:PORT; their URL, without a path."""


def listens(port: int) -> bool:
    """Whether a port of this machine takes connections."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.HTTPError:
        return False
