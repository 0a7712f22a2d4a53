"""Keys and passwords out of files; what commands that print secrets are given; whom the sockets of sessions serve."""

import json
import os
import sys
from pathlib import Path

import pytest

from gateway.config.secrets import SecretSettings
from gateway.context.secrets import PrincipalSecrets
from session_store import Principal
from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.gateway_process import DEMO, server

KEY = "k" * 40


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    return path


@requirement("wall.secrets", "ops.config")
def test_the_doctor_looks_at_the_files_modes(secret: Path, tmp_path: Path) -> None:
    secret.write_text(KEY, encoding="utf-8")
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"demo": server(DEMO)}}), encoding="utf-8")
    env = {**os.environ, "MCP_GATEWAY_KEYS_FILE": str(secret)}
    for mode, found in ((0o600, []), (0o644, ["secrets"])):
        secret.chmod(mode)
        ran = run_command("doctor", "--json", "--config", str(config), env=env)
        assert [one["check"] for one in json.loads(ran.stdout) if one["state"] != "ok"] == found, ran.stdout


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
