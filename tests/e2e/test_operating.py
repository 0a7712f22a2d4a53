"""Configuration, health and the command line, as an operator meets them."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx

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
