"""A gateway that may open few files: idle strangers give way, and leave files for what has to be answered."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import DEMO, ROOT, RunningGateway, server
from tests.support.http_bytes import connected, listener_of
from tests.support.mcp_clients import Legacy, tool_text

IDLE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@requirement("wall.order", "wall.before-auth")
@pytest.mark.parametrize(
    "said", [b"", b"POST /mcp HTTP/1.1\r\nHost: local", IDLE], ids=["nothing", "half", "kept alive"]
)
def test_sixty_idle_connections_at_64_files_shut_nobody_out(said: bytes, tmp_path: Path, http: httpx.Client) -> None:
    config = tmp_path / "mcp.json"
    options = {"anonymous": True, "admin": {"listen": "127.0.0.1:0"}}
    config.write_text(json.dumps({"mcpServers": {"demo": server(DEMO)}, "gateway": options}))
    run = f"ulimit -n 64; exec {sys.executable} -m gateway run --port 0 --config {config}"
    process = subprocess.Popen(["sh", "-c", run], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    gateway = RunningGateway(process)
    try:
        gateway.wait_ready()
        line = next(line for line in gateway.stderr().splitlines() if "operators are served at" in line)
        operators = line[line.index("http://") :].partition("/admin")[0]
        with contextlib.ExitStack() as stack:
            for place in (gateway.url, operators):
                for _ in range(60):
                    stack.enter_context(connected(listener_of(place))).sendall(said)
            for _ in range(5):
                assert http.get(f"{gateway.base}/healthz", headers={"Connection": "close"}).status_code == 200
                assert http.get(f"{operators}/metrics", headers={"Connection": "close"}).status_code == 200
            client = Legacy(gateway.url, http).open()
            assert tool_text(client.tool("count")) == "1", "there are files for a server too"
        assert "connections are taken" in gateway.stderr()
        assert "Too many open files" not in gateway.stderr()
        assert gateway.stop() in (0, -signal.SIGTERM)
    finally:
        if process.poll() is None:
            gateway.kill()
