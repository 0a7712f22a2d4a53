"""A log that nobody reads holds nobody up: its lines wait, then they are dropped and counted."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.operating.conftest import ADMIN, OPERATOR
from tests.requirements import requirement
from tests.support.commands import ROOT
from tests.support.free_ports import free_port
from tests.support.gateway_process import DEMO, UNLIMITED, server
from tests.support.mcp_clients import Legacy
from tests.support.redis_server import RunningRedis
from tests.support.waiting import descendants, eventually, gone
from tests.support.worker_processes import KEYS, worker_processes

pytestmark = requirement("wall.unread-log")

MOST_CALLS = 30_000
UNLIMITED_LINES = """
import runpy
from gateway.observability import request_log
request_log.LINES_PER_S = 1_000_000
runpy.run_module("gateway", run_name="__main__", alter_sys=True)
"""
NAME = "no-such-tool-" + "x" * 100
"""Each call of it has a line with it."""


@contextlib.contextmanager
def unread_gateway(
    folder: Path, stderr: int, *arguments: str, **options: Any
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A gateway that writes its log to a descriptor; its address and its process, which the block may end."""
    config, port = folder / "mcp.json", free_port()
    gateway = {"policy": UNLIMITED, "admin": ADMIN, **options}
    config.write_text(json.dumps({"mcpServers": {"demo": server(DEMO)}, "gateway": gateway}))
    process = subprocess.Popen(
        [sys.executable, "-c", UNLIMITED_LINES, "run", "--port", str(port), "--config", str(config), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        cwd=ROOT,
        env={**os.environ, **KEYS},
    )
    base = f"http://127.0.0.1:{port}"
    try:
        assert eventually(lambda: lives(base) or process.poll() is not None) and lives(base)
        yield base, process
    finally:
        left = descendants(process.pid)
        process.kill()
        process.wait()
        assert gone(left)


def lives(base: str) -> bool:
    try:
        return httpx.get(f"{base}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def call_until_dropped(base: str, http: httpx.Client) -> int:
    """Call until lines are dropped; how often. Each call is answered, in 20 s at most."""
    client = Legacy(f"{base}/mcp", http).open()
    for count in range(1, MOST_CALLS):
        client.call("tools/call", {"name": NAME, "arguments": {}})
        if count % 1_000 == 0:
            metrics = http.get(f"{base}/metrics", headers={"Authorization": f"Bearer {OPERATOR}"}).text
            found = re.search(r"^mcp_gateway_log_lines_dropped_total (\S+)", metrics, re.M)
            assert found is not None and lives(base)
            if float(found[1]) > 100:
                return count
    raise AssertionError("nothing was dropped")


def lines_until(descriptor: int, text: str) -> str:
    """Read until the text has come."""
    read = b""
    while text.encode() not in read:
        data = os.read(descriptor, 65_536)
        assert data, read[-2_000:]
        read += data
    return read.decode()


def test_a_pipe_that_nobody_reads_stops_nobody_and_the_gap_is_told(tmp_path: Path, http: httpx.Client) -> None:
    ours, theirs = os.pipe()
    with unread_gateway(tmp_path, theirs) as (base, process):
        os.close(theirs)
        calls = call_until_dropped(base, http)
        text = lines_until(ours, "lines of the log were dropped: they were not read")
        told = re.search(r"(\d+) lines of the log were dropped", text)
        written = sum(NAME in line for line in text.splitlines())
        assert told is not None and written + int(told[1]) >= calls, "what is not written is counted"
        process.terminate()
        rest = lines_until(ours, "stopped: ")
        assert "dropped" not in rest, "once it is read again, nothing is left out"
        assert process.wait(30) in (0, -15)
    os.close(ours)


def test_a_terminal_that_was_stopped_stops_nobody_and_no_exit(tmp_path: Path, http: httpx.Client) -> None:
    ours, theirs = pty.openpty()
    with unread_gateway(tmp_path, theirs, log_format="logfmt") as (base, process):
        termios.tcflow(theirs, termios.TCOOFF)  # what Ctrl-S does
        call_until_dropped(base, http)
        process.terminate()
        assert process.wait(30) in (0, -15), "an exit waits for no reader"
    os.close(ours)
    os.close(theirs)


def test_workers_with_a_full_pipe_serve_and_are_started_again(
    tmp_path: Path, http: httpx.Client, redis_server: RunningRedis
) -> None:
    ours, theirs = os.pipe()
    with unread_gateway(tmp_path, theirs, "--workers", "2", store=redis_server.url) as (base, process):
        lines_until(ours, "ready ")
        os.set_blocking(theirs, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(theirs, b"\n" * 4096)
        os.set_blocking(theirs, True)
        os.close(theirs)
        for worker in (first := worker_processes(process)):
            worker.kill()

        def started() -> list[Any]:
            return [one for one in worker_processes(process) if one not in first]

        assert eventually(lambda: len(started()) == 2 and lives(base))
        Legacy(f"{base}/mcp", http).open().call("tools/call", {"name": NAME, "arguments": {}})
        process.terminate()
        assert process.wait(30) == 0
    os.close(ours)


CRASHES = """
import logging, sys
from gateway.observability.logs import configure_logging
from gateway.observability.queued_output import queue_stderr
queue_stderr()
configure_logging("info")
for number in range({count}):
    logging.getLogger().info("line %d", number)
raise RuntimeError("the last word")
"""


@pytest.mark.parametrize("is_read", [True, False])
def test_the_last_line_before_a_crash_gets_out_and_nothing_hangs(is_read: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CRASHES.format(count=10_000 if is_read else 100_000)], stderr=subprocess.PIPE, cwd=ROOT
    )
    assert process.stderr is not None
    if is_read:
        lines = process.stderr.read().decode().splitlines()
        numbers = [int(found[1]) for line in lines if (found := re.search(r'"line (\d+)"', line))]
        assert numbers == sorted(numbers) and "the last word" in lines[-1]
    assert process.wait(30) == 1
    process.stderr.close()
