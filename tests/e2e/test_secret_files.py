"""Keys and passwords out of files; what commands that print secrets are given; whom the sockets of sessions serve."""

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config.keyring import key_ring
from gateway.config.policy import SecretSettings
from gateway.config.settings import ConfigurationError, load_settings
from gateway.context.secrets import PrincipalSecrets
from session_store import Principal, Purpose
from tests.requirements import requirement
from tests.support.running import DEMO, ROOT, server
from transports.inbound import app_server

KEY = "k" * 40


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    return path


@requirement("wall.secrets", "ops.config")
def test_keys_come_from_a_file_as_well(
    secret: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MCP_GATEWAY_KEYS", f"{KEY},{'l' * 40}")
    as_variable = key_ring("memory://").derive(Purpose.TOKEN)
    secret.write_text(f"{KEY}\n{'l' * 40}\n", encoding="utf-8")
    monkeypatch.setenv("MCP_GATEWAY_KEYS_FILE", str(secret))
    with pytest.raises(ConfigurationError, match="MCP_GATEWAY_KEYS and MCP_GATEWAY_KEYS_FILE are both set"):
        key_ring("memory://")
    monkeypatch.delenv("MCP_GATEWAY_KEYS")
    assert key_ring("redis://x").derive(Purpose.TOKEN) == as_variable and not caplog.records
    secret.chmod(0o640)
    assert key_ring("redis://x") and "chmod 600" in caplog.records[0].getMessage()


@requirement("wall.secrets", "ops.config")
@pytest.mark.parametrize(("held", "why"), [(None, "No such file"), (b"", "empty"), (b"\xff", "UTF-8"), (b"k", "32")])
def test_a_key_file_that_cannot_be_used_is_named_and_not_shown(
    held: bytes | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    if held is not None:
        path.write_bytes(held)
    monkeypatch.setenv("MCP_GATEWAY_KEYS_FILE", str(path))
    with pytest.raises(ConfigurationError, match=why) as caught:
        key_ring("memory://")
    assert "MCP_GATEWAY_KEYS_FILE" in str(caught.value)


@requirement("wall.secrets", "ops.config")
def test_the_store_comes_from_a_file_or_from_a_setting_and_not_from_both(
    secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret.write_text("redis://:hush@127.0.0.1:6379/0\n", encoding="utf-8")
    monkeypatch.setenv("MCP_GATEWAY_STORE_FILE", str(secret))
    assert load_settings().gateway.store == "redis://:hush@127.0.0.1:6379/0"
    with pytest.raises(ConfigurationError) as caught:
        load_settings(None, {"store": "memory://"})
    said = str(caught.value)
    assert "--store on the command line" in said and "MCP_GATEWAY_STORE_FILE" in said and "hush" not in said


@requirement("wall.secrets", "ops.config")
def test_the_doctor_looks_at_the_files_modes(secret: Path, tmp_path: Path) -> None:
    secret.write_text(KEY, encoding="utf-8")
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"demo": server(DEMO)}}), encoding="utf-8")
    command = [sys.executable, "-m", "gateway", "doctor", "--json", "--config", str(config)]
    env = {**os.environ, "MCP_GATEWAY_KEYS_FILE": str(secret)}
    for mode, found in ((0o600, []), (0o644, ["secrets"])):
        secret.chmod(mode)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, env=env)
        assert [one["check"] for one in json.loads(ran.stdout) if one["state"] != "good"] == found, ran.stdout


@requirement("wall.secrets", "ctx.credentials")
@pytest.mark.anyio
async def test_a_command_that_prints_a_secret_is_given_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_GATEWAY_KEYS", KEY)
    monkeypatch.setenv("CLOUD_SECRET", "cloud")
    monkeypatch.setenv("VAULT_TOKEN", "token")
    program = "import json, os; print(json.dumps(sorted(os.environ)))"
    command = (sys.executable, "-c", program)
    alice = Principal(issuer="api-key", subject="alice")
    for passed in ((), ("VAULT_TOKEN",)):
        credentials = PrincipalSecrets({"word": SecretSettings(command=command, pass_env=passed)}, ())
        given = await credentials.fill({"T": "${secret:word}"}, alice)
        names = set(json.loads(given["T"]))
        assert "PATH" in names and not names & {"MCP_GATEWAY_KEYS", "CLOUD_SECRET"}
        assert ("VAULT_TOKEN" in names) == bool(passed)


class Peer:
    """A connection from a process of that user."""

    def __init__(self, uid: int) -> None:
        self._uid = uid

    def getsockopt(self, *_: int) -> bytes:
        return struct.pack("3i", 1, self._uid, self._uid)


@requirement("wall.secrets", "ctx.state")
@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not say who connects")
def test_a_sessions_socket_serves_its_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert app_server.may_connect(theirs)
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    assert [app_server.may_connect(Peer(uid)) for uid in (1_000, 0, 1_001, 65_534)] == [True, True, False, False]  # type: ignore[arg-type]  # what it asks of a socket
