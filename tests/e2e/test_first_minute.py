"""The first minute at a terminal: the greeting, its link, and what a stranger finds at the address."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.requirements import requirement
from tests.support.commands import ROOT, run_command
from tests.support.gateway_process import DEMO, server
from tests.support.mcp_clients import Legacy, Modern
from tests.support.table_server import slow, table_server

WITHIN_S = 60.0
COLOURS = re.compile(r"\x1b\[[0-9;]*[mK]")


class Terminal:
    """A person's terminal of 100 columns in which `run` was typed."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.runtime = cwd / "runtime"
        self.runtime.mkdir(mode=0o700)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "run", "--port", "0", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env={
                **environment,
                "TERM": "xterm-256color",
                "PYTHONPATH": str(ROOT),
                "XDG_RUNTIME_DIR": str(self.runtime),
            },
            # A terminal's foreground; a test run that was put into the background hands down that SIGINT is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)
        self._ours = ours
        self._shown = ""
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(self._ours, 65_536):
                with self._more:
                    self._shown += data.decode("utf-8", "replace")
                    self._more.notify_all()

    @property
    def text(self) -> str:
        """What it shows, without colours."""
        return COLOURS.sub("", self._shown).replace("\r\n", "\n")

    def beside(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command in a second terminal of the same user, where no variable names a gateway."""
        left_out = ("MCP_GATEWAY_URL", "MCP_GATEWAY_ADMIN_KEY", "MCP_GATEWAY_STORE")
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        environment |= {"XDG_RUNTIME_DIR": str(self.runtime), "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""}
        return run_command(*arguments, env=environment, cwd=self.runtime)

    def wait_for(self, words: str) -> str:
        """All that is shown once these words are."""
        with self._more:
            assert self._more.wait_for(lambda: words in self.text, WITHIN_S), self.text
        return self.text

    def stop(self) -> int:
        """Ctrl+C. The exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(20)
        self._reader.join(10)
        os.close(self._ours)
        return code


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    entry = server(DEMO)
    shown = Terminal("--", entry["command"], *entry["args"], cwd=tmp_path_factory.mktemp("project"))
    try:
        shown.wait_for("Press Ctrl+C")
        yield shown
    finally:
        shown.process.kill()
        shown.process.wait()


def found(pattern: str, terminal: Terminal) -> str:
    match = re.search(pattern, terminal.text)
    assert match is not None, terminal.text
    return match[1]


@requirement("first.greeting")
def test_run_greets_with_one_screen(terminal: Terminal) -> None:
    url = found(r"URL +(http://127\.0\.0\.1:\d+/mcp)\n", terminal)
    start = terminal.text.partition("Press Ctrl+C")[0]
    screen = start.partition("MCP Session Gateway")[2]
    assert len(screen.splitlines()) < 20
    assert re.search(r"✓ main +6 tools +2026-07-28 +sandbox standard", screen), screen
    assert "in memory: they end with this process" in screen and f"--transport http gateway {url}" in screen
    assert "process started" not in start, "the greeting says it"
    with httpx.Client() as http:
        Modern(url, http).tool("whoami")
    line = next(line for line in terminal.wait_for("whoami").splitlines() if "whoami" in line)
    assert re.match(r"\d\d:\d\d:\d\d  whoami +ok +[\d.]+ ms  main  \S+$", line), line


@requirement("first.local")
def test_commands_in_a_second_terminal_find_the_gateway(terminal: Terminal) -> None:
    url = found(r"URL +(http://127\.0\.0\.1:\d+/mcp)\n", terminal)
    with httpx.Client() as http:
        Modern(url, http).tool("whoami")
        listed = terminal.beside("sessions", "list", "--json")
        assert listed.returncode == 0 and json.loads(listed.stdout)["sessions"], listed.stderr
        assert "\x1b" not in terminal.beside("sessions", "list").stdout
        assert terminal.beside("top", "--once").returncode == 0
        assert terminal.beside("replicas", "list", "--url", url).returncode == 0
        base = url.removesuffix("/mcp")
        assert http.get(f"{base}/admin/api/sessions").status_code == 401, "others have no key"
    [file] = (terminal.runtime / "mcp-session-gateway").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and json.loads(file.read_text())["key"] not in terminal.text
    failed = [json.loads(terminal.beside("replicas", "list", "--json").stdout)[0]["failed"]]
    checked = terminal.beside("doctor")
    failed.append(json.loads(terminal.beside("replicas", "list", "--json").stdout)[0]["failed"])
    assert failed[0] == failed[1], "what the doctor asks is no failure in the figures"
    assert checked.returncode == 0 and f"gateway: {url} is served by process {terminal.process.pid}" in checked.stdout
    assert "a session was found through each" in checked.stdout and "\x1b" not in checked.stdout
    told = json.loads(file.read_text())
    other = {"config": "/elsewhere/mcp.json"}
    assert "another configuration" not in checked.stdout
    file.write_text(json.dumps(told | other))
    assert f"process {told['pid']}, with another configuration, /elsewhere/mcp.json" in terminal.beside("doctor").stdout


PRYING = """
import pathlib, sys
try:
    for file in (pathlib.Path(__file__).parents[1] / "runtime/mcp-session-gateway").iterdir():
        print("read", file.read_text(), file=sys.stderr)
except OSError as error:
    print("refused", type(error).__name__, file=sys.stderr)
sys.exit(3)
"""


@requirement("first.local")
def test_a_server_cannot_read_the_key_that_commands_find(tmp_path: Path) -> None:
    script = tmp_path / "server" / "prying.py"
    script.parent.mkdir()
    script.write_text(PRYING)
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"prying": server([sys.executable, str(script)])}}))
    shown = Terminal(cwd=tmp_path)
    try:
        shown.wait_for("Press Ctrl+C")
        assert "Operate" in shown.text
        pried = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
        assert "read {" in pried.stderr, "without a sandbox the file can be read"
        # The file is below /tmp: a server that has a /tmp of its own does not find it, and no other may open it.
        assert re.search(r"refused (FileNotFound|Permission)Error", shown.wait_for("refused "))
        shown.process.kill()
        shown.process.wait()
        gone = shown.beside("sessions", "list")
        assert gone.returncode == 2 and "none is found" in gone.stderr, "nobody holds the lock of what was left behind"
        assert not [*(shown.runtime / "mcp-session-gateway").iterdir()]
        checked = shown.beside("doctor", "--json")
        told = [finding["what"] for finding in json.loads(checked.stdout) if finding["check"] == "gateway"]
        assert len(told) == 1 and re.match(r"no gateway of yours|http://127\.0\.0\.1:8080/mcp is served", told[0]), told
    finally:
        shown.process.kill()
        shown.process.wait()


@requirement("first.farewell")
def test_a_second_ctrl_c_while_calls_end_is_no_error(tmp_path: Path) -> None:
    entry = server(DEMO)
    shown = Terminal("--", entry["command"], *entry["args"], cwd=tmp_path)
    try:
        shown.wait_for("Press Ctrl+C")
        with httpx.Client(timeout=WITHIN_S) as http:
            client = Legacy(found(r"URL +(http://127\.0\.0\.1:\d+/mcp)\n", shown), http).open()
            asked = {"name": "slow", "arguments": {"steps": 10}, "_meta": {"progressToken": 1}}
            with client.streaming("tools/call", asked) as events:
                next(events)
                shown.process.send_signal(signal.SIGINT)
                shown.wait_for("stopping when all calls have ended")
                assert shown.stop() == 130
        assert "stopped: 1 session ended" in shown.text and "Traceback" not in shown.text
    finally:
        shown.process.kill()
        shown.process.wait()


@requirement("first.late", "first.own-file", "first.farewell")
def test_servers_that_are_late_are_told_of_when_they_are_ready_or_fail(tmp_path: Path) -> None:
    late = {"files": table_server(slow(4)), "gone": server(["sh", "-c", "sleep 4; echo no license >&2; exit 3"])}
    document = {"mcpServers": late, "gateway": {"limits": {"list_timeout_s": 0.5}}}
    (tmp_path / "mcp.json").write_text(json.dumps(document))
    shown = Terminal(cwd=tmp_path)
    try:
        screen = shown.wait_for("Press Ctrl+C")
        assert "the configuration is mcp.json of this folder" in screen and "starting 2 servers" in screen
        assert screen.count("still starting: a line below says when it is ready") == 2
        below = shown.wait_for("server files is ready: ").partition("Press Ctrl+C")[2]
        assert re.search(r"server files is ready: \d+ tools?\n", below)
        failed = shown.wait_for("server gone cannot be used").partition("server gone cannot be used")[2]
        assert "no license" in failed.partition("\n")[0]
        assert "server gone is ready" not in shown.text
        with httpx.Client() as http:
            Legacy(found(r"URL +(http://127\.0\.0\.1:\d+/mcp)\n", shown), http).open()
        assert shown.stop() == 130, "as shells expect of Ctrl+C"
        assert "stopped: 1 session ended, which was in memory" in shown.text
    finally:
        shown.process.kill()
        shown.process.wait()


@requirement("first.greeting")
@pytest.mark.parametrize("more", [(), ("--workers", "2", "--store", "redis://127.0.0.1:1/0")], ids=["one", "workers"])
def test_a_port_that_is_taken_is_told_with_the_option_for_another(more: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        env = {**os.environ, "MCP_GATEWAY_KEYS": "k" * 40}
        ran = run_command("run", "--port", port, *more, "--", *DEMO, env=env)
    assert ran.returncode == 2, ran.stderr
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in ran.stderr and "--port" in ran.stderr
