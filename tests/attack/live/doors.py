"""The ways to a gateway: its own port, nginx and HAProxy with the configurations we ship, and nginx with the map that
people put there for WebSockets, with connections to the gateway that are kept and shared."""

import contextlib
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.compose_topology import running_balancer
from tests.support.free_ports import free_port
from tests.support.gateway_process import ROOT
from tests.tools.programs import program

__all__ = ["Door", "running_doors"]

WEBSOCKETS: Final = """
map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
upstream kept {{ server {place}; keepalive 1; }}
server {{
    listen 127.0.0.1:{port};
    location / {{
        proxy_pass http://kept;
        proxy_http_version 1.1;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $connection_upgrade;
        proxy_set_header Host $http_host;
        proxy_buffering off;
        client_max_body_size 8m;
    }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One way in."""

    name: str
    port: int

    @property
    def is_direct(self) -> bool:
        return self.name == "direct"


@contextlib.contextmanager
def running_doors(gateway_port: int) -> Iterator[dict[str, Door]]:
    """All of them, to one gateway."""
    place = f"127.0.0.1:{gateway_port}"
    with contextlib.ExitStack() as stack:
        plain, kept = stack.enter_context(_nginx(place))
        balancer = stack.enter_context(running_balancer([place] * 3))
        ports = {"direct": gateway_port, "nginx": plain, "nginx+ws": kept, "haproxy": int(balancer.rpartition(":")[2])}
        yield {name: Door(name=name, port=port) for name, port in ports.items()}


@contextlib.contextmanager
def _nginx(place: str) -> Iterator[tuple[int, int]]:
    """One nginx with both configurations; its ports."""
    plain, kept = free_port(), free_port()
    shipped = (ROOT / "deploy/nginx.conf").read_text(encoding="utf-8")
    shipped = re.sub(r"gateway\d:8080", place, shipped).replace("listen 8080", f"listen 127.0.0.1:{plain}")
    with tempfile.TemporaryDirectory() as folder:
        paths = " ".join(f"{kind}_temp_path {folder};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi", "client_body"))
        config = Path(folder, "nginx.conf")
        config.write_text(
            f"pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; daemon off;\n"
            f"events {{ worker_connections 4096; }}\nhttp {{ access_log off; {paths}\n{shipped}\n"
            f"{WEBSOCKETS.format(place=place, port=kept)}\n}}\n",
            encoding="utf-8",
        )
        running = subprocess.Popen(
            [program("nginx", "nginx-light"), "-c", str(config)], stderr=subprocess.DEVNULL, env=os.environ
        )
        try:
            for port in (plain, kept):
                _wait_for(port, running)
            yield plain, kept
        finally:
            running.terminate()
            running.wait(10)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise AssertionError("nginx does not start")
