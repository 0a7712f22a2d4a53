"""What this user has on the machine is closed to the tests: they neither find nor touch it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.admin.local_gateways import LocalGateway, announced, network_namespace, runtime_folder
from tests.rings import ROOT
from tests.support.commands import run_command

INSIDE = "test_commands_and_processes_of_the_tests_see_nothing_of_this_user"


def test_commands_and_processes_of_the_tests_see_nothing_of_this_user() -> None:
    code = "import os, pathlib; print(*[name for name in os.environ if 'MCP_GATEWAY' in name], pathlib.Path.home())"
    home = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert Path(home).is_dir() and not Path(home, ".netrc").exists()
    assert list(runtime_folder().parent.glob("*/gateway-*")) == []
    found = run_command("sessions", "list")
    assert (found.returncode, found.stdout) == (2, "") and "no gateway given, and none is found" in found.stderr


def test_a_run_beside_a_gateway_of_this_user_is_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With variables, a home and a gateway of the user."""
    tmp_path.joinpath(".netrc").write_text("machine 127.0.0.1 login me password mine\n", encoding="utf-8")
    for name in ("HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("MCP_GATEWAY_URL", "http://127.0.0.1:9")
    at = "http://127.0.0.1:9"
    gateway = LocalGateway(url=at, endpoint=f"{at}/mcp", key="k", pid=os.getpid(), network=network_namespace())
    with announced(gateway):
        alone = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{INSIDE}"]
        ran = subprocess.run(alone, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and "1 passed" in ran.stdout, ran.stdout + ran.stderr
