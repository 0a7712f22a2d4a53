"""`gateway.config.load`: what file, environment and command line make together, and which of them is blamed."""

import json
from pathlib import Path

import pytest

from gateway.config.load import ConfigurationError, Origins, variables
from gateway.config.settings import GatewaySettings, load_settings


def test_every_setting_has_a_variable_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_GATEWAY_PORT", "9001")
    monkeypatch.setenv("MCP_GATEWAY_SESSION__IDLE_TTL_S", "30")
    monkeypatch.setenv("MCP_GATEWAY_ALLOWED_HOSTS", '["a.example"]')
    monkeypatch.setenv("MCP_GATEWAY_STORE", "")
    monkeypatch.setenv("MCP_GATEWAY_KEYS", "no setting")
    assert variables(GatewaySettings) == {
        "port": "9001",
        "session": {"idle_ttl_s": "30"},
        "allowed_hosts": ["a.example"],
    }


def test_the_places_of_a_setting_stand_in_the_order_in_which_they_win() -> None:
    origins = Origins("mcp.json", {"port": 1, "auth": {"jwt": []}}, {"port": "2"}, {"port": 3})
    assert origins.of("port") == "mcp.json and the variable MCP_GATEWAY_PORT and --port on the command line"
    assert origins.last_of("port") == "--port on the command line"
    assert origins.of("auth.jwt") == "mcp.json" and origins.of("host") == ""


@pytest.mark.parametrize(
    ("variable", "overrides", "fault"),
    [
        ("8080", {"port": 99_999}, "--port on the command line: gateway.port: "),
        ("99999", {}, "the variable MCP_GATEWAY_PORT: gateway.port: "),
        ("8080", {"allowed_hosts": ["a b"]}, "--allowed-host on the command line: gateway.allowed_hosts: "),
        ("8080", {"port": 1}, "{path}: gateway.session.idle_ttl_s: "),
    ],
)
def test_a_fault_names_the_place_that_gave_the_value(
    variable: str, overrides: dict[str, object], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mcp.json"
    idle_s = 0 if "session" in fault else 60
    path.write_text(json.dumps({"gateway": {"port": 8_080, "session": {"idle_ttl_s": idle_s}}}))
    monkeypatch.setenv("MCP_GATEWAY_PORT", variable)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(path, overrides)
    assert str(caught.value).startswith(fault.format(path=path))
    assert len(str(caught.value).splitlines()) == 1
