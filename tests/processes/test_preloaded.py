"""A command that a preloaded process runs for the tests behaves as one that a user types."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import requirement
from tests.support.commands import ROOT, run_command, start_command
from tests.support.gateway_process import DEMO, RunningGateway


@pytest.mark.parametrize(
    "arguments", [("sessions", "--help"), ("check", "--config", "mcp.json"), ("run", "--port", "0")], ids=" ".join
)
def test_it_says_and_returns_the_same(arguments: tuple[str, ...], tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"gatway": {}, "mcpServers": {"a": {"command": "${UNSET_PROGRAM}", "arg": [1]}}}')
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MCP_GATEWAY_LOG_FORMAT": "json"}
    typed = [sys.executable, "-m", "gateway", *arguments]
    cold = subprocess.run(typed, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=env)
    warm = run_command(*arguments, env=env, cwd=tmp_path)
    assert (warm.returncode, warm.stdout, warm.stderr) == (cold.returncode, cold.stdout, cold.stderr)
    assert warm.stdout + warm.stderr, "the comparison is of something"


def test_it_finds_modules_where_its_environment_says(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("server = 1")
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {"a": {"in_process": "only_here:server"}}}')
    for folder, words in ((str(tmp_path), "not a server object"), ("", "No module named 'only_here'")):
        env = {**os.environ, "PYTHONPATH": folder}
        ran = run_command("run", "--port", "0", "--config", str(config), env=env)
        assert ran.returncode and words in " ".join((ran.stdout + ran.stderr).split())


def test_it_has_its_own_environment_directory_and_end(tmp_path: Path) -> None:
    entry = {"command": "${PROGRAM_OF_THE_TEST}", "args": [*DEMO[1:]]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"demo": entry}}))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PROGRAM_OF_THE_TEST": DEMO[0]}
    process = start_command(["run", "--port", "0", "--config", "mcp.json"], env=env, cwd=tmp_path)
    gateway = RunningGateway(process)
    gateway.wait_ready()
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    gateway.kill()
    assert process.returncode == process.wait() == process.poll() == -signal.SIGKILL
    process.send_signal(signal.SIGTERM)  # the id may be another process's by now: nothing is sent


FORKED = """
import os
from gateway.context.facts import new_correlation_id
from session_store.redis.events import _nonce
for _ in range(2):
    if (child := os.fork()) == 0:
        print(new_correlation_id(), _nonce(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print(new_correlation_id(), _nonce())
"""


@requirement("ops.find-request")
def test_processes_that_are_forked_from_one_make_ids_of_their_own() -> None:
    """As those of an app that gunicorn has loaded before it forks."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, env=env)
    words = ran.stdout.split()
    assert len(words) == 6 and len({*words}) == 6, ran
