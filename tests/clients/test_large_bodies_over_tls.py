"""A body that is refused while it is still being sent over TLS, where one direction cannot be closed alone."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import Settings
from gateway.serving.app import Gateway, create_app
from tests.clients.test_large_bodies import FETCH
from tests.requirements import requirement
from tests.support.asgi import served
from tests.support.certificates import Authority
from tests.support.gateway_process import PROBE, server
from tests.tools.obtain import node
from transports.inbound.connections import Connections
from transports.inbound.http_connection import http_connections

pytestmark = requirement("wall.readable-refusal")


@contextlib.contextmanager
def gateway_under_uvicorn(folder: Path, *, own: bool) -> Iterator[tuple[str, Authority]]:
    """The URL of a gateway under uvicorn with a certificate. `own`: with the connections of the command `run`."""
    authority = Authority(folder)
    certificate = authority.issue("server")
    settings = Settings.model_validate({"mcpServers": {"p": server(PROBE)}})
    gateway = Gateway(settings)
    app = create_app(settings, gateway=gateway)
    http: Any = http_connections(Connections(gateway.limits, gateway.metrics.limited)) if own else "auto"
    tls = {"lifespan": "on", "log_config": None, "ws": "none", "http": http, "ssl_certfile": certificate}
    with served(app, **tls) as url:
        yield url, authority


@pytest.fixture(scope="module", params=[True, False], ids=["run", "uvicorn"])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Authority]]:
    with gateway_under_uvicorn(tmp_path_factory.mktemp("tls"), own=request.param) as found:
        yield found


@pytest.mark.parametrize("kind", ["text", "stream"])
def test_fetch_of_node_reads_why_its_body_was_refused(gateway: tuple[str, Authority], kind: str) -> None:
    url, authority = gateway
    env = {**os.environ, "NODE_EXTRA_CA_CERTS": str(authority.folder / "ca.pem")}
    for size in ("5", "64"):
        command = [str(node()), str(FETCH), url, size, kind]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
        assert done.stdout.startswith("413 ") and "The body is larger than" in done.stdout, done.stderr


def test_httpx_reads_why_its_body_was_refused(gateway: tuple[str, Authority]) -> None:
    url, authority = gateway
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    with authority.client() as http:
        for mebibytes in (5, 64):
            for body in (b"x" * (mebibytes << 20), (b"x" * 65_536 for _ in range(mebibytes * 16))):
                answer = http.post(url, content=body, headers=headers)
                assert answer.status_code == 413 and "The body is larger than" in answer.text
