"""What servers cannot find out: the gateway's keys, environment, memory and descriptors. Tried by a server that wants
to, as a user without privileges: with root's, nothing is closed to anybody."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.serving import hidden_process
from tests.requirements import requirement
from tests.support.gateway_process import ROOT
from tests.support.redis_server import RunningRedis
from transports.upstream.stdio import INHERITED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can close a process to others of its user")

NOBODY = 65_534
HOSTILE = ROOT / "tests/support/hostile_server.py"
GIVEN = {"MCP_SESSION_ACCESS", "MCP_SESSION_FACTS", "MCP_SESSION_SOCKET"}


@dataclass(frozen=True, slots=True)
class Unprivileged:
    """A Python, what makes a process of it an unprivileged one, and the variables it needs."""

    python: str
    how: Mapping[str, Any]
    env: Mapping[str, str]


@pytest.fixture(scope="module")
def unprivileged() -> Iterator[Unprivileged]:
    how: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder:
        # The system's Python may be older than ours by a patch, and redis wants this from before 3.11.3.
        Path(folder, "async_timeout.py").write_text("from asyncio import timeout\n", encoding="utf-8")
        os.chmod(folder, 0o755)
        libraries = [path for path in sys.path if path.endswith("site-packages")]
        path = os.pathsep.join([str(ROOT), *libraries, folder])
        env = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
            with contextlib.suppress(OSError):
                tried = subprocess.run([python, "-c", "import gateway.cli"], env=env, cwd="/", check=False, **how)
                if tried.returncode == 0:
                    yield Unprivileged(python, how, env)
                    return
        pytest.skip(f"no Python of this version that user {NOBODY} may start")


class Hostile:
    """A gateway whose server is hostile, and what that has found."""

    def __init__(self, process: subprocess.Popen[bytes], report: Path) -> None:
        self.process = process
        self._report = report

    def found(self) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while not self._report.exists():
            assert time.monotonic() < deadline and self.process.poll() is None, "the server did not start"
            time.sleep(0.05)
        told: dict[str, Any] = json.loads(self._report.read_text(encoding="utf-8"))
        return told


@contextlib.contextmanager
def hostile(user: Unprivileged, *arguments: str, word: str, env: Mapping[str, str]) -> Iterator[Hostile]:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        report = Path(folder, "reports", "found")  # the folder of the gateway's temporary files is granted to nobody
        report.parent.mkdir()
        os.chmod(report.parent, 0o777)
        half = len(word) // 2
        server = [user.python, str(HOSTILE), str(report), word[:half], word[half:]]
        process = subprocess.Popen(
            [user.python, "-m", "gateway", *arguments, "--", *server],
            env={**user.env, "TMPDIR": folder, **env},
            cwd=folder,
            stdin=subprocess.PIPE,
            **user.how,
        )
        try:
            yield Hostile(process, report)
        finally:
            process.terminate()
            process.communicate(timeout=30)


@requirement("wall.secrets", "proc.gone")
@pytest.mark.parametrize(
    ("way", "sandbox"), [("run", "off"), ("run", "standard"), ("workers", "off"), ("stdio", "off")]
)
def test_a_server_finds_nothing_of_the_gateways(
    way: str, sandbox: str, unprivileged: Unprivileged, redis_server: RunningRedis
) -> None:
    """Without a sandbox, too: the gateway closes itself."""
    word = secrets.token_urlsafe(32)
    arguments = {
        "run": ("run", "--port", "0"),
        "workers": ("run", "--port", "0", "--workers", "2", "--store", redis_server.url),
        "stdio": ("stdio",),
    }[way]
    planted = {"MCP_GATEWAY_KEYS": word, "CLOUD_SECRET": word, "MCP_GATEWAY_SANDBOX": sandbox}
    with hostile(unprivileged, *arguments, word=word, env=planted) as running:
        found = running.found()
        limits = Path(f"/proc/{running.process.pid}/limits").read_text(encoding="ascii")
    # Reaper, fork server, gateway, and with workers the one that starts them; above those are we.
    above = list(found["above"])
    ours = above[: above.index(str(running.process.pid)) + 1]
    assert len(ours) == (4 if way == "workers" else 3)
    assert {pid: found["above"][pid]["opened"] for pid in ours} == {pid: [] for pid in ours}
    assert found["leaks"] == [] and found["uid"] != 0
    assert found["fds"] == [0, 1, 2]
    resolver = set() if sandbox == "off" else {"RES_OPTIONS"}
    assert set(found["own"]) <= {*INHERITED, *GIVEN, *resolver} | {
        name for name in found["own"] if name.startswith("MCP_SESSION_")
    }
    assert any(line.split()[:5] == ["Max", "core", "file", "size", "0"] for line in limits.splitlines())


@requirement("wall.secrets")
def test_a_worker_is_started_with_nothing_worth_reading() -> None:
    """Before it could close itself, too: a server may be waiting for it."""
    word = secrets.token_urlsafe(32)
    whole = {"MCP_GATEWAY_KEYS": word, "CLOUD_SECRET": word, "PATH": "/bin", "PYTHONPATH": "/x", "LC_ALL": "C"}
    held = hidden_process.keep_environment(whole)
    try:
        seen = hidden_process.visible_environment(whole, held)
        assert word not in "".join(seen.values()) and seen.keys() >= {"PATH", "PYTHONPATH", "LC_ALL"}
        program = (
            "import os\nfrom gateway.serving import hidden_process\n"
            "for _ in range(2): hidden_process.take_environment()\n"
            "print(os.environ['MCP_GATEWAY_KEYS'], os.environ['PATH'], sorted(os.listdir('/proc/self/fd')))"
        )
        env = {**seen, "PYTHONPATH": str(ROOT)}
        for _ in range(2):  # one that is started again reads it again
            ran = subprocess.run(
                [sys.executable, "-c", program], env=env, pass_fds=[held], capture_output=True, text=True
            )
            assert ran.stdout.split()[:2] == [word, "/bin"] and f"'{held}'" not in ran.stdout, ran.stderr
    finally:
        os.close(held)
