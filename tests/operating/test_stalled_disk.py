"""A disk that stands still holds up what needs it, and nothing else."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.requirements import requirement
from tests.support.gateway_process import DEMO, ROOT, RunningGateway, server
from tests.support.mcp_clients import ACCEPT, Legacy
from tests.support.waiting import descendants, eventually, gone

OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}


@requirement("wall.unread-log")
def test_a_store_on_a_disk_that_stands_still_answers_503_and_holds_up_nobody_else(
    tmp_path: Path, http: httpx.Client
) -> None:
    shim, flag = tmp_path / "stalls.so", tmp_path / "stands-still"
    source = ROOT / "tests" / "support" / "stalling_disk.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"], check=True)
    env = {"LD_PRELOAD": str(shim), "STALL_WHILE": str(flag), "STALL_NAME": "sessions.db", "PYTHONPATH": str(ROOT)}
    options = {"store": f"sqlite:///{tmp_path}/sessions.db", "audit": {"file": str(tmp_path / "sessions.db.audit")}}
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"demo": server(DEMO)}, "gateway": options}))
    # Not forked from a process that has loaded the gateway: what is preloaded counts when a program starts.
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "run", "--port", "0", "--config", str(config)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | env,
    )
    gateway = RunningGateway(process)
    try:
        gateway.wait_ready()
        client = Legacy(gateway.url, http).open()
        client.tool("count")
        flag.touch()
        began = time.monotonic()
        refused = http.post(gateway.url, json=OPENING, headers=ACCEPT)
        assert refused.status_code == 503 and time.monotonic() - began < 10, refused.text
        for _ in range(20):
            assert http.get(f"{gateway.base}/healthz").status_code == 200
        assert "blocked" not in gateway.stderr()
        flag.unlink()
        assert eventually(lambda: http.post(gateway.url, json=OPENING, headers=ACCEPT).status_code == 200, 20)
        client.tool("count")
        flag.touch()
        http.post(gateway.url, json=OPENING, headers=ACCEPT)
        gateway.process.send_signal(signal.SIGTERM)
        # An exit leaves the disk to itself, within a bound.
        assert gateway.process.wait(60) in (0, -signal.SIGTERM), gateway.stderr()
    finally:
        left = descendants(process.pid)
        gateway.kill()
        assert gone(left, 10)
