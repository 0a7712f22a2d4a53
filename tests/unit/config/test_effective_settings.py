"""`gateway.config.effective_settings`: what is in effect, where it comes from, and that no credential is shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.effective_settings import DEFAULT, EffectiveSetting, effective
from gateway.config.settings import Settings
from tests.requirements import requirement
from tests.unit.config.conftest import Loading

SECRET = "hunter2-hunter2"
GATEWAY: dict[str, Any] = {
    "store": f"redis://:{SECRET}@localhost/0",
    "api_keys": {"ann": "a" * 64, "bob": ["b" * 64, "c" * 64]},
    "secrets": {"files": {"file": "/run/secrets/files"}},
    "policy": {"rules": [{"workspace": "w", "env": {"PLAIN": SECRET}}]},
    "session": {"idle_ttl_s": 50},
    "sandbox": "strict",
    "allowed_hosts": ["a.example"],
}
SERVER: dict[str, Any] = {
    "command": "files",
    "args": ["--token", SECRET, f"--api-key={SECRET}", f"https://a.example/?access_token={SECRET}", "plain"],
    "env": {
        "ANY_NAME": SECRET,
        "KEY": "${secret:files}",
        "AT": "${secret_file:files}",
        "MIXED": f"${{secret:files}}{SECRET}",
    },
}
REMOTE: dict[str, Any] = {"url": f"https://b.example/mcp?api_key={SECRET}", "headers": {"X-Any": SECRET}}


def shown(settings: Settings) -> dict[str, EffectiveSetting]:
    return {setting.name: setting for section in effective(settings).values() for setting in section}


def loaded(loading: Loading, overrides: dict[str, Any] | None = None) -> dict[str, EffectiveSetting]:
    return shown(loading({"mcpServers": {"files": SERVER, "far": REMOTE}, "gateway": GATEWAY}, overrides).settings)


@requirement("ops.configuration-page")
def test_no_credential_is_shown(loading: Loading) -> None:
    found = loaded(loading)
    assert SECRET not in "".join(setting.value for setting in found.values())
    assert found["mcpServers.files.args"].value.endswith(" plain")
    env = json.loads(found["mcpServers.files.env"].value)
    assert (env["KEY"], env["AT"]) == ("${secret:files}", "${secret_file:files}")
    assert json.loads(found["gateway.api_keys"].value) == {"ann": "1 key", "bob": "2 keys"}
    assert found["gateway.store"].value == "redis://…@localhost/0"


@requirement("ops.configuration-page", "ops.partial")
def test_a_server_that_is_left_out_has_its_fault(loading: Loading, tmp_path: Path) -> None:
    servers = {"good": SERVER | {"env": {}}, "bad": {"command": "x", "env": {"T": "${UNSET_1}"}}}
    (bad,) = effective(loading({"mcpServers": servers}).settings)["mcpServers.bad"]
    fault = f"left out: {tmp_path / 'mcp.json'}: mcpServers.bad.env.T: "
    assert bad.name == "mcpServers.bad" and bad.value.startswith(fault)


@requirement("ops.configuration-page", "ops.precedence")
def test_each_setting_has_the_place_that_wins(
    loading: Loading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_GATEWAY_SESSION__IDLE_TTL_S", "70")
    monkeypatch.setenv("MCP_GATEWAY_PORT", "99")
    monkeypatch.setenv("MCP_GATEWAY_ALLOWED_HOSTS", '["b.example"]')
    assert loaded(loading)["gateway.allowed_hosts"].value == "b.example"
    found = loaded(loading, {"port": 98, "allowed_hosts": ["c.example"]})
    assert found["gateway.allowed_hosts"].value == "c.example", "lists do not add up"
    ttl, port = found["gateway.session.idle_ttl_s"], found["gateway.port"]
    assert (ttl.value, ttl.origin) == ("70", "the variable MCP_GATEWAY_SESSION__IDLE_TTL_S")
    assert (port.value, port.origin) == ("98", "--port on the command line")
    assert found["gateway.store"].origin == str(tmp_path / "mcp.json") == found["mcpServers.far.url"].origin
    profile, read = found["gateway.sandbox.profile"], found["gateway.sandbox.read"]
    assert (profile.value, profile.origin, read.origin) == ("strict", str(tmp_path / "mcp.json"), DEFAULT)
    assert found["gateway.host"].origin == DEFAULT == found["gateway.policy.session_rate.per_s"].origin
    assert not found["gateway.host"].is_set


def test_settings_of_a_program_have_no_file() -> None:
    found = shown(Settings.model_validate({"mcpServers": {"a": {"command": "x"}}, "gateway": {"port": 1}}))
    assert found["gateway.port"].origin == found["mcpServers.a.command"].origin == "the program"
    assert found["gateway.host"].origin == DEFAULT
