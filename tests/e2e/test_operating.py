"""Configuration, health and the command line, as an operator meets them."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config.settings import ConfigurationError, load_settings
from tests.requirements import requirement
from tests.support.procs import eventually
from tests.support.raw import Legacy, tool_text
from tests.support.running import DEMO, ROOT, RunningGateway, running_gateway, server

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


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=ROOT,
        env={**os.environ, **env},
        check=False,
    )


@requirement("ops.config")
def test_the_file_of_a_desktop_host_works_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "claude_desktop_config.json"
    path.write_text(json.dumps(DESKTOP))
    settings = load_settings(path)
    assert settings.mcpServers["files"].argv[0] == "npx" and settings.mcpServers["files"].env == {"A": "b"}
    checked = command("check", "--config", str(path))
    assert checked.returncode == 0 and "files" in checked.stdout


@requirement("ops.config")
def test_toml_says_the_same_and_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(
        '[mcpServers.demo]\ncommand = "demo"\nshared = true\n'
        "[gateway]\nport = 9000\n[gateway.session]\nidle_ttl_s = 60\nmax_age_s = 120\n"
    )
    monkeypatch.setenv("MCP_GATEWAY_PORT", "9001")
    monkeypatch.setenv("MCP_GATEWAY_SESSION__IDLE_TTL_S", "30")
    monkeypatch.setenv("MCP_GATEWAY_API_KEYS", json.dumps({"a": "0" * 64}))
    monkeypatch.setenv("MCP_GATEWAY_ALLOWED_HOSTS", '["a.example"]')
    settings = load_settings(path, {"host": "::1"})
    assert (settings.gateway.port, settings.gateway.host) == (9001, "::1")
    assert (settings.gateway.session.idle_ttl_s, settings.gateway.session.max_age_s) == (30, 120)
    assert settings.gateway.allowed_hosts == ("a.example",) and not settings.gateway.allows_anonymous
    assert settings.mcpServers["demo"].shared


@requirement("ops.config")
@pytest.mark.parametrize(
    ("document", "where", "what"),
    [
        ("{", "mcp.json", "not valid JSON"),
        ("[]", "mcp.json", "must hold an object"),
        ({"mcpServers": {"a": {}}}, "mcpServers.a", "give a command"),
        ({"mcpServers": {"a": {"in_process": "no module"}}}, "mcpServers.a.in_process", "module:attribute"),
        ({"mcpServers": {"a": {"command": "x", "in_process": "m:a"}}}, "mcpServers.a", "not several"),
        ({"mcpServers": {"a": {"url": "ftp://x.example/mcp"}}}, "mcpServers.a.url", "http:// or https://"),
        ({"mcpServers": {"a": {"url": "https://u:p@x.example/mcp"}}}, "mcpServers.a.url", "use headers"),
        ({"mcpServers": {"a__b": {"command": "x"}}}, "mcpServers.a__b", "server name"),
        ({"mcpServers": {"a": {"command": "x", "args": "y"}}}, "mcpServers.a.args", "tuple"),
        ({"mcpServers": {"a": {"command": "x", "context_env": {"X": "nope"}}}}, "context_env.X", "session_id"),
        ({"gateway": {"prot": 1}}, "gateway.prot", "no such setting"),
        ({"gateway": {"port": 99999}}, "gateway.port", "65535"),
        ({"gateway": {"store": "mysql://x"}}, "gateway.store", "memory://"),
        ({"gateway": {"store": "redis:///0"}}, "gateway.store", "host"),
        ({"gateway": {"store": "sqlite://x.db"}}, "gateway.store", "path"),
        ({"gateway": {"session": {"metadata": {"a": "{nope}"}}}}, "gateway.session.metadata", "{principal}"),
        ({"gateway": {"api_keys": {"a": "plain-key"}}}, "gateway.api_keys", "SHA-256"),
        ({"gateway": {"session": {"idle_ttl_s": 0}}}, "gateway.session.idle_ttl_s", "greater than 0"),
        ({"gateway": 7}, "gateway", "dictionary"),
    ],
)
def test_a_bad_configuration_fails_at_start_naming_the_field(
    tmp_path: Path, document: Any, where: str, what: str
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(ConfigurationError) as caught:
        load_settings(path)
    assert where in str(caught.value) and what in str(caught.value)
    assert "plain-key" not in str(caught.value), "what was given may be a secret"


@requirement("ops.config")
def test_the_command_says_what_is_wrong_and_exits_with_2(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"gateway": {"port": "x"}}')
    for arguments in (("check", "--config", str(path)), ("run", "--config", str(path)), ("run",)):
        failed = command(*arguments)
        assert failed.returncode == 2 and failed.stderr.startswith("error "), failed.stderr
        assert "Traceback" not in failed.stderr
    path.write_text('{"servers": {"a": {"command": "a"}}}')
    assert "mcpServers is empty or missing" in command("check", "--config", str(path)).stderr
    missing = command("check", "--config", str(tmp_path / "nothing.json"))
    assert missing.returncode == 2 and "No such file" in missing.stderr
    weak = command("run", "--", "cat", MCP_GATEWAY_KEYS="too-short")
    assert weak.returncode == 2 and "32" in weak.stderr and "too-short" not in weak.stderr


def test_an_address_in_use_is_a_clear_error(demo: RunningGateway) -> None:
    port = demo.base.rpartition(":")[2]
    taken = command("run", "--port", port, "--", "cat")
    assert taken.returncode == 2 and f"127.0.0.1:{port}" in taken.stderr and "in use" in taken.stderr


def test_keygen_prints_a_key_that_can_be_used() -> None:
    from session_store import KeyRing

    key = command("keygen").stdout.strip()
    assert re.fullmatch(r"[\w-]{43}", key) and KeyRing.parse(key)


@requirement("ops.health")
def test_liveness_and_readiness(demo: RunningGateway, http: httpx.Client) -> None:
    assert http.get(f"{demo.base}/healthz").status_code == 200
    ready = http.get(f"{demo.base}/readyz")
    assert ready.status_code == 200 and ready.json() == {"ready": True, "draining": False}


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


def test_a_server_that_does_not_start_leaves_the_gateway_standing(http: httpx.Client) -> None:
    servers = {"good": server(DEMO), "broken": server(("/does/not/exist",))}
    with running_gateway(servers) as gateway:
        assert http.get(f"{gateway.base}/readyz").status_code == 200
        assert tool_text(Legacy(f"{gateway.base}/servers/good/mcp", http).open().tool("count")) == "1"
