"""Configuration, health and the command line, as an operator meets them, and what commands load first."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from gateway.config.settings import load
from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.gateway_process import DEMO, ROOT, RunningGateway, running_gateway
from tests.support.mcp_clients import Legacy
from tests.support.waiting import eventually

DESKTOP = {
    "globalShortcut": "Ctrl+Space",
    "mcpServers": {
        "files": {
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-filesystem", "/tmp"],
            "env": {"A": "b"},
            "disabled": False,
            "autoApprove": ["x"],
            "type": "stdio",
        }
    },
}


def command(*arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env={**os.environ, **env}, cwd=cwd, timeout=60)


@requirement("ops.config")
def test_the_file_of_a_desktop_host_works_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "claude_desktop_config.json"
    path.write_text(json.dumps(DESKTOP))
    settings = load(path).settings
    assert settings.mcpServers["files"].argv[0] == "npx" and settings.mcpServers["files"].env == {"A": "b"}
    checked = command("check", "--offline", "--config", str(path))
    assert checked.returncode == 0 and "files" in checked.stdout


@requirement("ops.config")
def test_the_command_says_what_is_wrong_and_exits_with_2(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"gateway": {"port": "x"}}')
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments in (("check", "--config", str(path)), ("run", "--config", str(path)), ("run",)):
        failed = command(*arguments, cwd=empty)
        assert failed.returncode == 2 and failed.stderr.startswith("error "), failed.stderr
        assert "Traceback" not in failed.stderr
    path.write_text('{"people": {"a": {"command": "a"}}}')
    assert "mcpServers is empty or missing" in command("check", "--config", str(path)).stderr
    missing = command("check", "--config", str(tmp_path / "nothing.json"))
    assert missing.returncode == 2 and "No such file" in missing.stderr
    weak = command("run", "--", "cat", MCP_GATEWAY_KEYS="too-short")
    assert weak.returncode == 2 and "32" in weak.stderr and "too-short" not in weak.stderr


def test_the_command_line_starts_without_the_sdk() -> None:
    """The SDK takes a second and 55 MB to load, and commands that list or check something need nothing of it."""
    program = (
        "import sys, typer.main, gateway.cli.main as main\n"
        "for listed in typer.main.get_command(main.app).commands.values(): listed.loaded()\n"
        "sys.exit('mcp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=30, check=False).returncode == 0


def test_an_address_in_use_is_a_clear_error(demo: RunningGateway) -> None:
    port = demo.base.rpartition(":")[2]
    taken = command("run", "--port", port, "--", "cat")
    assert taken.returncode == 2 and f"127.0.0.1:{port}" in taken.stderr and "in use" in taken.stderr


def test_keygen_prints_a_key_that_can_be_used() -> None:
    from session_store import KeyRing

    key = command("keygen").stdout.strip()
    assert re.fullmatch(r"[\w-]{43}", key) and KeyRing.parse(key)


@requirement("ops.health", "proc.shutdown")
def test_sigterm_lets_calls_finish_and_ends_streams(http: httpx.Client) -> None:
    with running_gateway(command=DEMO, must_stop=False) as gateway:
        client = Legacy(gateway.url, http).open()
        answers: list[httpx.Response] = []
        with httpx.Client(timeout=20) as listening, httpx.Client(timeout=20) as calling:
            listener, caller = Legacy(gateway.url, listening), Legacy(gateway.url, calling)
            listener.session = caller.session = client.session
            with listener.get() as stream:
                started = threading.Event()

                def call() -> None:
                    params = {
                        "name": "slow",
                        "arguments": {"steps": 4, "interval_s": 0.25},
                        "_meta": {"progressToken": 1},
                    }
                    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                    with calling.stream("POST", caller.url, json=body, headers=caller.request_headers()) as answer:
                        for _ in answer.iter_text():
                            started.set()
                    answers.append(answer)

                thread = threading.Thread(target=call)
                thread.start()
                assert started.wait(10)
                gateway.process.send_signal(signal.SIGTERM)
                assert "".join(stream.iter_text()).replace(": keepalive", "").strip() == "", "the GET stream ends"
                thread.join(10)
        assert answers and answers[0].status_code == 200
        assert eventually(lambda: gateway.process.poll() is not None, 10)


@requirement("ops.two-commands")
def test_the_commands_of_the_readme_are_make_targets() -> None:
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for target in ("run", "test"):
        assert f"make {target}\n" in readme and re.search(rf"^{target}:", makefile, re.MULTILINE)
    listed = subprocess.run(["make", "-n", "run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "mcp-session-gateway run -- " in listed


# -- what commands load before they do anything, counted


@pytest.mark.parametrize(
    ("arguments", "most", "unneeded"),
    [
        (["--version"], 300, {"asyncio", "msgspec", "pydantic", "rich", "session_store", "starlette", "transports"}),
        (
            ["run", "--port", "0", "--", *DEMO],
            1_200,
            {"cryptography.x509", "httpx2", "jinja2", "jwt", "mcp", "prometheus_client", "redis", "rich"}
            | {"gateway.admin.console", "gateway.admin.rest", "gateway.cli.output", "gateway.doctor"},
        ),
    ],
    ids=["version", "run"],
)
def test_a_command_loads_what_it_needs(arguments: list[str], most: int, unneeded: set[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "gateway", *arguments]
    loaded = set()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("import time:"):
                loaded.add(line.rpartition("|")[2].strip())
            elif line.startswith("ready "):
                process.terminate()
                break
        else:
            assert process.wait() == 0
    assert "gateway.cli.main" in loaded
    assert unneeded & loaded == set()
    assert len(loaded) < most


# -- what the gateway is made of loads on systems without Linux's own calls, and says there that sandboxes do not hold


WITHOUT_LINUX = """
import importlib, os, pkgutil, resource, select, signal, socket, sys
import gateway, session_store, transports

def each():
    unwanted = ("testing", "pytest_plugin", "__main__")
    for package in (gateway, session_store, transports):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not found.name.endswith(unwanted):
                yield found.name

names = list(each())
for name in names:
    importlib.import_module(name)  # so that what others made is loaded as this system needs it
for name in [name for name in sys.modules if name.split(".")[0] in ("gateway", "session_store", "transports")]:
    del sys.modules[name]
ABSENT = {
    os: "pidfd_open memfd_create eventfd sched_getaffinity splice O_PATH pipe2 setresuid setresgid unshare setns",
    socket: "SO_PEERCRED AF_NETLINK NETLINK_ROUTE SOCK_CLOEXEC SOCK_NONBLOCK MSG_CMSG_CLOEXEC TCP_USER_TIMEOUT",
    select: "epoll EPOLLIN EPOLLOUT EPOLLHUP EPOLLERR EPOLLET",
    signal: "pidfd_send_signal sigwaitinfo sigtimedwait SIGPWR SIGPOLL",
    resource: "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING",
}
for module, absent in ABSENT.items():
    for attribute in absent.split():
        if hasattr(module, attribute):
            delattr(module, attribute)
sys.platform = "darwin"
for name in names:
    importlib.import_module(name)
from transports.upstream.walls.kernel import probe
found = probe()
print(len(names), found.landlock, bool(found.filters and found.gate and found.namespaces))
"""


@requirement("ops.other-systems")
def test_every_module_loads_without_what_only_linux_has() -> None:
    command = [sys.executable, "-c", WITHOUT_LINUX]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    count, landlock, lacks = done.stdout.split()
    assert int(count) > 400 and (landlock, lacks) == ("0", "True"), "no wall is claimed"
